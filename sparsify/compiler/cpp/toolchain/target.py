"""The target of the C++ compiler: vector width and flags.

In: the options. Out: `vector_bytes(options) == 32` on a CPU with AVX2, and the flags of the command line.
"""

import hashlib
import platform
import re
from functools import cache
from pathlib import Path
from typing import Final

from sparsify.options import Options

# -ffast-math would assume finite values, but fills may be infinite; integers wrap around, as in torch.
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
# Kernels never throw, and export one name; each flag saves compile or link time.
LEAN_FLAGS: Final = (
    "-std=gnu++17",
    "-nostdlib",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-semantic-interposition",
    "-Wl,-z,noseparate-code",
    "-pipe",
)
WIDTHS: Final = (
    ("avx512f", 64),
    ("avx2", 32),
    ("sse2", 16),
    ("asimd", 16),
    ("neon", 16),
)


# Characters of a long kernel: g++ 12 takes 2 s with -O3, and 0.7 s with -O1.
LONG: Final = 40_000
# Number of register sums indicating an unrolled schedule, and the pattern of a sum.
WRITTEN_OUT: Final = 4
_SUM: Final = re.compile(r"^ +(?:float|double|\w+x\d+) \w+ = (?:\w+x\d+\{\}|0\.0f?);", re.MULTILINE)


def vector_bytes(options: Options) -> int:
    """Bytes of vectors in kernels: forced by the options, else the widest of this CPU, 0 for none.

    A forced width above the width of the CPU is correct but slow: the compiler splits every vector.
    """
    if options.vector_bytes is not None:
        return options.vector_bytes
    return next((width for name, width in WIDTHS if name in instructions()), 0)


def has(instruction: str) -> bool:
    """Whether the CPU has an instruction set, by its name in `/proc/cpuinfo`."""
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
    """The first line of `/proc/cpuinfo` under one of the names, "" if missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() in names), "")


def optimisation(source: str) -> tuple[str, ...]:
    """Optimisation level of a kernel: lower if optimisation would cost compile time without a gain.

    Kernels of many loops are merges of many levels, bound by memory and branches; kernels with vectors compute.
    If sums are held in separate registers, the compiler's own vectorizer finds only loops left scalar by the schedule
    on purpose, such as the gathers of a sparse row; functions of the C library, called lane by lane, need the
    vectorizer.

    >>> optimisation("for (;;) {}")
    ('-O3',)
    """
    from sparsify.compiler.cpp.helpers.arithmetic import LANE_BY_LANE

    if len(source) > LONG and "vector_size" not in source:
        return ("-O1",)
    if len(_SUM.findall(source)) >= WRITTEN_OUT and LANE_BY_LANE not in source:
        return ("-O2", "-fno-tree-vectorize", "-fpeel-loops")
    return ("-O3",)


def flags(options: Options, optimise: tuple[str, ...] = ("-O3",)) -> tuple[str, ...]:
    """The flags of the compiler for a kernel, in order; the flags of the user come last and win.

    >>> flags(Options(compiler_flags=("-g",)))[0]
    '-O3'
    """
    return (*optimise, *FLAGS, *LEAN_FLAGS, *options.compiler_flags)
