"""Dot products of pairs of bfloat16, added to sums of float32.

In: `add_dot_bfloat16` of `int32x16`. Out: the C++ text of `add_dot_bfloat16_int32x16(x, y, sum)`: one instruction with
AVX512-BF16, two products and sums of the halves on other CPUs.

The instruction takes numbers below the smallest normal float32 for 0, and rounds each of its two sums to nearest.
Assembly is the same text for all compilers, whose builtins have vectors of different types.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE

# The instruction set, and the lanes of its registers.
BFLOAT16: Final = "defined(__AVX512BF16__) && defined(__AVX512VL__)"
LANES: Final = (4, 8, 16)


def _add_dot_bfloat16(unit: Unit, dtype: str, lanes: int) -> str:
    """`sum` and the products of the upper and of the lower halves of `x` and `y`."""
    unit.unsigned = True
    pairs, wide = (unit.type(kind, lanes) for kind in ("int32", "float32"))
    bits = unit.type("uint32", lanes)

    def half(text: str) -> str:
        return f"__builtin_bit_cast({wide}, {text})" if lanes == 1 else f"({wide})({text})"

    head = f"add_dot_bfloat16_{types.suffix(dtype, lanes)}({pairs} x, {pairs} y, {wide} sum)"
    lines = [
        f"  const {bits} left = ({bits})x, right = ({bits})y;",
        f"  sum += {half('left & 0xffff0000u')} * {half('right & 0xffff0000u')};",
        f"  return sum + {half('left << 16')} * {half('right << 16')};",
    ]
    if lanes in LANES:
        native = '  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));'
        lines = [f"#if {BFLOAT16}", native, "  return sum;", "#else", *lines, "#endif"]
    return "\n".join([f"{INLINE}{wide} {head} {{", *lines, "}"])


def _dot_bfloat16(unit: Unit, dtype: str, lanes: int) -> str:
    """The dot product alone."""
    pairs, wide = (unit.type(kind, lanes) for kind in ("int32", "float32"))
    added = unit.use("add_dot_bfloat16", dtype, lanes)
    head = f"{INLINE}{wide} dot_bfloat16_{types.suffix(dtype, lanes)}({pairs} x, {pairs} y)"
    return f"{head} {{\n  return {added}(x, y, {wide}{{}});\n}}"


TEMPLATES: Final[dict[str, Template]] = {
    "add_dot_bfloat16": _add_dot_bfloat16,
    "dot_bfloat16": _dot_bfloat16,
}
