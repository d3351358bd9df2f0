"""`python -m tests.soak [--seconds 3600] [--only programs graphs] [--seed N]`: the nightly run, `make soak`.

In: how long. Out: a line for each part, with what it counted and how to run again what failed; 1 when a part failed.
Every part is a command of its own, so a process that ends or hangs is a failure of that part alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FAULTS: Final = Path(__file__).parent.parent / "faults"
SANITIZED: Final = "--flags=-O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"
# A part that takes so much longer than its share hangs.
PATIENCE: Final = 3.0
STARTUP_SECONDS: Final = 300.0
# pytest's status where nothing was collected.
NOTHING: Final = 5


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run.

    Attributes:
        share: of the time.
        command: the arguments of Python for a seed and a number of seconds.
        repeats: whether the command runs again, with other seeds, until the time is over.
        environment: further variables of the environment.
    """

    share: float
    command: Callable[[int, float], Sequence[str]]
    repeats: bool = False
    environment: Callable[[], dict[str, str]] = dict


def pytest(*arguments: str) -> list[str]:
    """Tests in one process, without those that only measure."""
    return ["-m", "pytest", "-q", "-m", "not bench and not exhaustive", *arguments]


def programs(seed: int, seconds: float) -> list[str]:
    """Random programs; a batch that short runs can afford."""
    count = "300" if seconds > 120 else "30"
    return [
        "-m",
        "tests.compiler.random_programs.many",
        "--first",
        str(seed),
        "--count",
        count,
        "--interpreted",
        "5",
    ]


def sanitizers(seed: int, seconds: float) -> list[str]:
    """Random programs whose kernels run under ASan and UBSan."""
    count = "60" if seconds > 120 else "5" if seconds > 10 else "1"
    many = [
        "-m",
        "tests.compiler.random_programs.many",
        "--first",
        str(seed),
        "--count",
        count,
        "--interpreted",
        "1000000",
    ]
    return [*many, "--compilers", "g++", "--batch", "5", SANITIZED]


def libraries() -> list[Path]:
    """Those of the sanitizers, as g++ names them; only their names where it has none."""
    names = ("libasan.so", "libubsan.so")
    asked = [["g++", f"-print-file-name={name}"] for name in names]
    return [
        Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()) for ask in asked
    ]


def has_sanitizers() -> bool:
    """Whether g++ is there, with its sanitizers."""
    return shutil.which("g++") is not None and all(library.is_file() for library in libraries())


def preloaded() -> dict[str, str]:
    """The libraries of the sanitizers, which come before all others; Python itself leaks on purpose."""
    return {"LD_PRELOAD": " ".join(map(str, libraries())), "ASAN_OPTIONS": "detect_leaks=0"}


def memory(name: str, count: int) -> Callable[[int, float], list[str]]:
    """Calls after which memory must be flat."""
    return lambda _, seconds: [
        "-m", "tests.soak.memory", name, "--count", str(count), "--seconds", str(seconds)
    ]  # fmt: skip


PARTS: Final = {
    "programs": Part(0.25, programs, repeats=True),
    "graphs": Part(
        0.2, lambda seed, s: ["-m", "tests.soak.graphs", "--first", str(seed), "--seconds", str(s)]
    ),
    "threads": Part(0.1, lambda *_: pytest(str(FAULTS), "-k", "test_threads")),
    "faults": Part(0.1, lambda *_: pytest(str(FAULTS), "-k", "not test_threads")),
    "sanitizers": Part(0.15, sanitizers, repeats=True, environment=preloaded),
    "applies": Part(0.1, memory("applies", 2000)),
    "shapes": Part(0.05, memory("shapes", 20_000)),
    "einsums": Part(0.05, memory("einsums", 20_000)),
}


def run(name: str, seconds: float, seed: int) -> bool:
    """Runs a part and prints what came out; whether it passed."""
    part, start, runs, passed = PARTS[name], time.monotonic(), 0, True
    environment = os.environ | {"SPARSIFY_STRESS_SECONDS": f"{seconds:.0f}", "OMP_WAIT_POLICY": "passive"}
    environment |= part.environment()
    while passed and (runs == 0 or (part.repeats and time.monotonic() - start < seconds)):
        arguments = list(part.command(seed + 1000 * runs, seconds))
        command = [sys.executable, *arguments]
        try:
            limit = PATIENCE * seconds + STARTUP_SECONDS
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=limit, check=False
            )
            status, output = done.returncode, done.stdout.strip() + "\n" + done.stderr.strip()
        except subprocess.TimeoutExpired:
            status, output = -1, f"hangs: not finished after {limit:.0f} s"
        runs += 1
        passed = status in (0, NOTHING)
        if not passed:
            again = " ".join(["python", *(repr(a) if " " in a else a for a in arguments)])
            print(f"{name} FAILED ({status}): {again}\n{output[-4000:]}", flush=True)
    last = " ".join(output.split())[-200:]
    print(
        f"{name}: {'passed' if passed else 'FAILED'}, {runs} runs, {time.monotonic() - start:.0f} s, {last}",
        flush=True,
    )
    return passed


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=int(time.time()) // 60, help="of the first random case")
    given = parser.parse_args(argv)
    total = sum(PARTS[name].share for name in given.only)
    print(f"seed {given.seed}", flush=True)
    failed = [
        name for name in given.only if not run(name, given.seconds * PARTS[name].share / total, given.seed)
    ]
    print(
        f"{len(given.only) - len(failed)} parts passed, {len(failed)} failed{': ' * bool(failed)}{', '.join(failed)}"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
