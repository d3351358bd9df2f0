"""CPU levels as targets of kernels, besides the CPU at hand.

In: `"avx2"`. Out: the options that build kernels of the level anywhere on x86-64, and the instructions required to run
them. `"native"` is the CPU at hand.

Source: System V ABI, AMD64 supplement, section 3.1.1: the levels x86-64-v3 and x86-64-v4.
"""

import platform
from dataclasses import dataclass, replace
from typing import Final

from sparsify.compiler.cpp.toolchain import target
from sparsify.errors import CompilerError
from sparsify.options import Options

NATIVE: Final = "native"
# Instruction sets used by compilers, by their names in `/proc/cpuinfo`.
SETS: Final = (
    *("sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "sse4a", "popcnt", "cx16", "lahf_lm", "movbe"),
    *("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "adx", "aes", "vaes", "pclmulqdq", "vpclmulqdq"),
    *("fma4", "xop", "tbm"),
    *("gfni", "sha_ni", "avx_vnni", "xsave", "xsaveopt", "xsavec", "fsgsbase", "rdrand", "rdseed", "clwb"),
    *("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi"),
    *("avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_vp2intersect"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *(
        "asimd",
        "asimdhp",
        "asimddp",
        "asimdfhm",
        "fphp",
        "sve",
        "sve2",
        "i8mm",
        "bf16",
        "atomics",
        "fcma",
        "jscvt",
    ),
)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of CPUs.

    Attributes:
        name: name in `save`.
        march: value of the compiler flag `-march`.
        vector_bytes: bytes of the vectors in kernels.
        needs: required instruction sets.
    """

    name: str
    march: str
    vector_bytes: int
    needs: frozenset[str]


_V3: Final = frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"))
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: Final = {
    "avx512": Level("avx512", "x86-64-v4", 64, _V4),
    "avx2": Level("avx2", "x86-64-v3", 32, _V3),
}
NAMES: Final = (NATIVE, *LEVELS)


def options_for(name: str, options: Options) -> Options:
    """The options for building kernels of a level.

    Raises:
        CompilerError: the compiler on this machine does not build for x86-64.
    """
    if name == NATIVE:
        return options
    if platform.machine() not in ("x86_64", "AMD64"):
        raise CompilerError(
            f"{name} is a level of x86-64, and this machine is {platform.machine()}", "native"
        )
    level = LEVELS[name]
    flags = (*options.compiler_flags, f"-march={level.march}", "-mtune=generic")
    return replace(options, vector_bytes=level.vector_bytes, compiler_flags=flags)


def own_sets() -> list[str]:
    """The instruction sets of this CPU, among the ones used by compilers."""
    return sorted(target.instructions() & frozenset(SETS))


def lacking(name: str, saved: list[str]) -> list[str]:
    """The instruction sets used by kernels of a level and missing on this CPU.

    Args:
        name: name of the level.
        saved: instruction sets of the build machine.
    """
    needs = frozenset(saved) if name == NATIVE else LEVELS[name].needs
    return sorted(needs - target.instructions())
