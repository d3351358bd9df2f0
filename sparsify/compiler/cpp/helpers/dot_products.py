"""Dot products of numbers packed in int32, added to sums: pairs of bfloat16 to float32, four bytes to int32.

In: `add_dot_bfloat16` of `int32x16`. Out: the C++ text of `add_dot_bfloat16_int32x16(x, y, sum)`: one instruction with
AVX512-BF16, two products and sums of the halves on other CPUs. `add_dot_uint8_int8` is one instruction with AVX512-VNNI
and AVX-VNNI.

The instruction for bfloat16 takes numbers below the smallest normal float32 for 0, and rounds each of its two sums to
nearest. Assembly is the same text for all compilers, whose builtins have vectors of different types.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS and VPDPBUSD.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE

# Lanes of the instructions' registers, and of those of AVX-VNNI.
LANES: Final = (4, 8, 16)
SHORT_LANES: Final = (4, 8)


def _added(unit: Unit, function: str, lanes: int, lines: list[str], native: list[str]) -> str:
    """The function that adds a dot product to `sum`, by the lines `native` if the CPU has an instruction."""
    packed, wide = unit.type("int32", lanes), _sum_type(unit, function, lanes)
    name = f"{function}_{types.suffix('int32', lanes)}"
    if lanes in LANES:
        lines = [*native, "#else", *lines, "#endif"]
    head = f"{INLINE}{wide} {name}({packed} x, {packed} y, {wide} sum) {{"
    return "\n".join([head, *lines, "}"])


def _sum_type(unit: Unit, function: str, lanes: int) -> str:
    """The C++ type of sums."""
    return unit.type("float32" if function.endswith("bfloat16") else "int32", lanes)


def _instruction(condition: str, text: str) -> list[str]:
    """The lines of an instruction `text` that adds to `sum`, under a condition of the preprocessor."""
    return [condition, f'  __asm__("{text}" : "+v"(sum) : "v"(x), "v"(y));', "  return sum;"]


def _add_dot_bfloat16(unit: Unit, dtype: str, lanes: int) -> str:
    """`sum` and the products of the upper and of the lower halves of `x` and `y`."""
    unit.unsigned = True
    wide, bits = unit.type("float32", lanes), unit.type("uint32", lanes)

    def half(text: str) -> str:
        return f"__builtin_bit_cast({wide}, {text})" if lanes == 1 else f"({wide})({text})"

    lines = [
        f"  const {bits} left = ({bits})x, right = ({bits})y;",
        f"  sum += {half('left & 0xffff0000u')} * {half('right & 0xffff0000u')};",
        f"  return sum + {half('left << 16')} * {half('right << 16')};",
    ]
    condition = "#if defined(__AVX512BF16__) && defined(__AVX512VL__)"
    native = _instruction(condition, "vdpbf16ps %2, %1, %0")
    return _added(unit, "add_dot_bfloat16", lanes, lines, native)


def _add_dot_uint8_int8(unit: Unit, dtype: str, lanes: int) -> str:
    """`sum` and the products of four bytes of `x`, from 0 on, and of `y`, with signs."""
    lines = [f"  sum += (x >> {n} & 255) * (y << {24 - n} >> 24);" for n in range(0, 24, 8)]
    lines.append("  return sum + (x >> 24 & 255) * (y >> 24);")
    native = _instruction("#if defined(__AVX512VNNI__) && defined(__AVX512VL__)", "vpdpbusd %2, %1, %0")
    if lanes in SHORT_LANES:
        native += _instruction("#elif defined(__AVXVNNI__)", "%{vex%} vpdpbusd %2, %1, %0")
        native[-2] = native[-2].replace('"+v"', '"+x"').replace('"v"', '"x"')
    return _added(unit, "add_dot_uint8_int8", lanes, lines, native)


def _alone(function: str) -> Template:
    """The dot product without a sum."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        packed, wide = unit.type("int32", lanes), _sum_type(unit, function, lanes)
        added = unit.use(f"add_{function}", dtype, lanes)
        head = f"{INLINE}{wide} {function}_{types.suffix(dtype, lanes)}({packed} x, {packed} y)"
        return f"{head} {{\n  return {added}(x, y, {wide}{{}});\n}}"

    return template


TEMPLATES: Final[dict[str, Template]] = {
    "add_dot_bfloat16": _add_dot_bfloat16,
    "add_dot_uint8_int8": _add_dot_uint8_int8,
    "dot_bfloat16": _alone("dot_bfloat16"),
    "dot_uint8_int8": _alone("dot_uint8_int8"),
}
