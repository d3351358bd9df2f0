"""`python -m tests.compiler.random_programs.many --count 1000`, also `--first 10000`, `--kinds`, `--out failures.json`.

In: seeds and kinds of programs. Out: a file of all failures with their seeds and cases, and the number of programs that
agreed. A batch runs in a process of its own, its kernels in one unit; a program that ends the process or does not
compile is left out of the next try.
"""

import argparse
import gc
import json
import multiprocessing
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import which
from typing import Any

import torch
from rich.progress import Progress

from tests.compiler.random_programs.compare import (
    Prepared,
    RefusedCodeError,
    compile_cases,
    run_again,
    run_compiled,
)
from tests.compiler.random_programs.coverage import covered, run_with, show
from tests.compiler.random_programs.data import Case, refilled
from tests.compiler.random_programs.kinds import KINDS

Task = tuple[str, int]
LIMIT_S = 120
# clang takes half the time for code that it does not optimise.
COMPILERS = [name for name in ("clang++", "clang++", "clang++", "g++") if which(name)]


@dataclass(frozen=True, slots=True)
class How:
    """Settings of the comparison of programs.

    Attributes:
        flags: flags of the C++ compiler.
        compiler: name of the C++ compiler.
        interpreted: stride of the seeds interpreted in all stages; other seeds are interpreted as programs only.
        more: number of further runs of a kernel, with other operands.
    """

    flags: tuple[str, ...]
    compiler: str
    interpreted: int
    more: int


class HangError(Exception):
    """A program took too long."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 1 when something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=30, help="seeds a unit")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--flags", default="-O0", help='of the C++ compiler: --flags="-O1 -g"')
    parser.add_argument("--compilers", nargs="+", default=COMPILERS, help="take turns, a batch each")
    parser.add_argument("--interpreted", type=int, default=1, help="one seed in so many in all stages")
    parser.add_argument("--more", type=int, default=1, help="how often a kernel runs with other operands")
    parser.add_argument("--coverage", action="store_true", help="print what was covered, and what never was")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    hows = [How(tuple(given.flags.split()), name, given.interpreted, given.more) for name in given.compilers]
    _warm_up(given.kinds)
    counts: Counter[str] = Counter()
    coverage: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    with Progress() as progress:
        bar = progress.add_task("programs", total=given.count)
        for first in range(given.first, given.first + given.count, given.batch):
            seeds = range(first, min(first + given.batch, given.first + given.count))
            tasks = [(kind, seed) for kind in given.kinds for seed in seeds]
            found = run(tasks, hows[(first - given.first) // given.batch % len(hows)])
            counts.update(found["counts"])
            coverage.update(found["coverage"])
            failures += found["failures"]
            progress.update(bar, advance=len(seeds), description=f"{len(failures)} failures")
            if given.out is not None:
                state = {"first": given.first, "end": seeds.stop, "counts": counts, "failures": failures}
                state["coverage"] = coverage
                given.out.write_text(json.dumps(state, indent=1))
    print(json.dumps(counts, indent=1))
    if given.coverage:
        show(coverage, given.compilers)
    for failure in failures:
        print(f"{failure['kind']} {failure['seed']}: {failure['error'][:200]}")
    return int(bool(failures))


def _warm_up(kinds: Sequence[str]) -> None:
    """Imports in advance the modules of all batch processes; runs no kernel, since threads do not survive a fork.

    Existing objects are frozen: batches are short-lived processes without garbage collection.
    """
    torch.set_num_threads(1)
    for kind in kinds:
        with suppress(Exception):  # a batch with this seed says what is wrong
            KINDS[kind].prepare(0)
    gc.collect()
    gc.freeze()


def run(tasks: list[Task], how: How) -> dict[str, Any]:
    """Results of a batch; if its process dies, the current program is recorded as a failure and the rest runs again."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(tasks, how, sender))
    process.start()
    sender.close()
    busy: Task = tasks[0]
    found: dict[str, Any] | None = None
    with suppress(EOFError):
        while found is None:
            message = receiver.recv()
            if isinstance(message, tuple):
                busy = message
            else:
                found = message
    process.join()
    if found is not None:
        if "broken" in found:
            raise RuntimeError(found["broken"])
        return found
    failure = {"kind": busy[0], "seed": busy[1], "error": f"the process ended with status {process.exitcode}"}
    rest = [task for task in tasks if task != busy]
    found = run(rest, how) if rest else {"counts": {}, "coverage": {}, "failures": []}
    return {**found, "failures": [failure, *found["failures"]]}


def _child(tasks: list[Task], how: How, sender: Connection) -> None:
    """Main function of a batch process: sends each program before its comparison, and finally the results."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            sender.send(_compare(tasks, how, Path(folder), sender))
        except Exception as error:
            sender.send({"broken": _text(error)})


def _compare(tasks: list[Task], how: How, folder: Path, sender: Connection) -> dict[str, Any]:
    """Compares the programs of a batch by interpreters, then their kernels with the first and with further operands."""
    signal.signal(signal.SIGALRM, _stop)
    gc.disable()
    counts: Counter[str] = Counter()
    coverage: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    prepared: list[tuple[str, int, Prepared]] = []
    for kind, seed in tasks:
        sender.send((kind, seed))
        with _caught(kind, seed, failures):
            interpreted = seed % how.interpreted == 0
            done = KINDS[kind].prepare(seed, interpreted=interpreted)
            counts[f"{kind} refused" if done is None else f"{kind} lowered"] += 1
            counts["interpreted in all stages"] += done is not None and interpreted
            prepared += [(kind, seed, done)] if done is not None else []
    for kind, seed, done in _compiled(prepared, how, folder, failures):
        sender.send((kind, seed))
        with _caught(kind, seed, failures, done):
            run_compiled(done)
            counts[f"{kind} agreed"] += 1
            coverage.update([*covered(done), run_with(done.case, how.compiler)])
            for number in range(seed, seed + how.more):
                if (case := _run_again(kind, done, number)) is not None:
                    counts["further operands"] += 1
                    coverage[run_with(case, how.compiler)] += 1
    return {"counts": dict(counts), "coverage": dict(coverage), "failures": failures}


def _compiled(
    prepared: list[tuple[str, int, Prepared]], how: How, folder: Path, failures: list[dict[str, Any]]
) -> list[tuple[str, int, Prepared]]:
    """Programs with kernels; programs that do not compile are recorded as failures."""
    while prepared:
        try:
            compile_cases([done for _, _, done in prepared], folder, how.flags, how.compiler)
        except RefusedCodeError as error:
            kind, seed, _ = next(item for item in prepared if item[2] is error.prepared)
            failures.append({"kind": kind, "seed": seed, "error": str(error)})
            prepared = [item for item in prepared if item[2] is not error.prepared]
        else:
            break
    return prepared


def _run_again(kind: str, done: Prepared, number: int) -> Case | None:
    """Runs the kernels of a program with other operands; `None` if the shapes are impossible."""
    case = None
    try:
        case = refilled(done.case, number)
        run_again(done, case)
    except KINDS[kind].refusals:
        return None
    except Exception as error:
        error.add_note(f"operands {number}: {case}")
        raise
    return case


@contextmanager
def _caught(
    kind: str, seed: int, failures: list[dict[str, Any]], done: Prepared | None = None
) -> Iterator[None]:
    """Runs a call within a time limit; an exception is recorded as a failure."""
    signal.alarm(LIMIT_S)
    try:
        yield
    except Exception as error:
        about = f"\n{done.case}" if done is not None else ""
        failures.append({"kind": kind, "seed": seed, "error": f"{_text(error)}{about}"})
    finally:
        signal.alarm(0)


def _stop(*_: object) -> None:
    raise HangError(f"took more than {LIMIT_S} s")


def _text(error: BaseException) -> str:
    """Text of an error with its notes and its origin."""
    lines = traceback.format_exception(error)
    return "".join([*traceback.format_exception_only(error), *lines[-6:]])[:4000]


if __name__ == "__main__":
    sys.exit(main())
