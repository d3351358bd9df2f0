"""What the CPU and the C++ compiler are told about each other: vector width and flags.

In: the options. Out: `vector_bytes(options) == 32` on a CPU with AVX2, and the flags of the command line.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Final

from sparsify.options import Options

# -ffast-math would assume finite values, and fills may be infinite; integers wrap around, as those of torch do.
FLAGS: Final = (
    "-std=gnu++17",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fwrapv",
    "-ffp-contract=fast",
)
# Kernels throw nothing and are found by one name; each of these saves time of the compiler or linker.
LEAN_FLAGS: Final = (
    "-std=gnu++17",
    "-nostdlib",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-semantic-interposition",
    "-pipe",
)
WIDTHS: Final = (
    ("avx512f", 64),
    ("avx2", 32),
    ("sse2", 16),
    ("asimd", 16),
    ("neon", 16),
)


# Characters of a kernel; g++ 12 takes 2 s with -O3 for so many, and 0.7 s with -O1.
LONG: Final = 40_000


def vector_bytes(options: Options) -> int:
    """Bytes of the vectors that kernels use: forced by the options, else the widest of this CPU, 0 for none.

    A forced width above that of the CPU is right but slow: the compiler splits every vector.
    """
    if options.vector_bytes is not None:
        return options.vector_bytes
    return next((width for name, width in WIDTHS if name in instructions()), 0)


def has(instruction: str) -> bool:
    """Whether the CPU has an instruction set, by the name that the kernel of the system gives it."""
    return instruction in instructions()


@cache
def instructions() -> frozenset[str]:
    """The instruction sets of the CPU, such as `avx2` and `fma`."""
    return frozenset(_cpu_line("flags", "Features").split())


@cache
def cpu_digest() -> str:
    """A short name for the CPU; code built for one CPU is not loaded on another."""
    model = _cpu_line("model name", "CPU part")
    text = "\n".join([platform.machine(), model, *sorted(instructions())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_line(*names: str) -> str:
    """The first line of `/proc/cpuinfo` under one of these names, empty when there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() in names), "")


def optimisation(source: str) -> int:
    """How far the C++ compiler optimises a kernel: less where that would take seconds and gain nothing.

    Kernels of many loops are merges of many levels, which wait for memory and for branches; with vectors they compute.

    >>> optimisation("for (;;) {}")
    3
    """
    return 1 if len(source) > LONG and "vector_size" not in source else 3


def flags(options: Options, optimise: int = 3) -> tuple[str, ...]:
    """The flags of the compiler for a kernel, in order; those of the user come last and win.

    >>> flags(Options(compiler_flags=("-g",)))[0]
    '-O3'
    """
    return (f"-O{optimise}", *FLAGS, *LEAN_FLAGS, *options.compiler_flags)
