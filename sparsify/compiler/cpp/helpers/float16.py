"""The 16-bit floats: read as float32 and rounded on write to the nearest, ties to even.

In: `widen` of `bfloat16x8`. Out: the C++ text of `widen_bfloat16x8(bits)`, with a `float32x8` as result.

g++ 12 has no bfloat16, and converts float16 by library calls on CPUs without the instruction: the helpers use integer
arithmetic, on scalars and lanes alike, and conversion instructions if available.

Source: Giesen, float to half conversions, 2012 (denormal numbers by adding a constant).
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit, indent
from sparsify.compiler.cpp.helpers.vector_memory import INLINE


def _names(unit: Unit, dtype: str, lanes: int) -> tuple[str, str, str]:
    """The types of the stored bits, of a float32 and of the bits of a float32."""
    unit.unsigned = True
    return unit.type(dtype, lanes), unit.type("float32", lanes), unit.type("uint32", lanes)


def _cast(kind: str, text: str, lanes: int) -> str:
    """The same bits as another type."""
    return f"__builtin_bit_cast({kind}, {text})" if lanes == 1 else f"({kind})({text})"


def _convert(kind: str, text: str, lanes: int) -> str:
    """The same integers as another type."""
    return f"({kind})({text})" if lanes == 1 else f"__builtin_convertvector({text}, {kind})"


def _function(head: str, lines: list[str], fast: str = "") -> str:
    """A function; `fast` is the body for CPUs with float16 conversions."""
    body = "\n".join(indent(lines))
    if fast:
        body = f"#ifdef __F16C__\n  {fast}\n#else\n{body}\n#endif"
    return f"{INLINE}{head} {{\n{body}\n}}"


def _every(unit: Unit, value: int, lanes: int) -> str:
    """An integer in every lane."""
    return f"{value}u" if lanes == 1 else f"({unit.type('uint32', lanes)}{{}} + {value}u)"


def _widen(unit: Unit, dtype: str, lanes: int) -> str:
    half, wide, bits = _names(unit, dtype, lanes)
    head = f"{wide} widen_{types.suffix(dtype, lanes)}({half} half)"
    found = f"const {bits} found = {_convert(bits, 'half', lanes)};"
    if dtype == "bfloat16":
        return _function(
            head, [*_eight_words(found, bits, lanes), f"return {_cast(wide, 'found << 16', lanes)};"]
        )
    # An exact product with 2**112 gives the exponent of a float32, of denormal numbers too.
    return _function(
        head,
        [
            found,
            f"const {wide} size = {_cast(wide, '(found & 0x7fff) << 13', lanes)} * 0x1p112f;",
            f"const {bits} infinite = size >= 0x1p16f ? {_every(unit, 0x7F800000, lanes)} : {_every(unit, 0, lanes)};",
            f"const {bits} result = {_cast(bits, 'size', lanes)} | infinite | (found & 0x8000) << 16;",
            f"return {_cast(wide, 'result', lanes)};",
        ],
        _widen_fast(lanes),
    )


def _eight_words(found: str, bits: str, lanes: int) -> list[str]:
    """The lines that convert eight words at once, because g++ 12 splits the conversion into two halves."""
    if lanes != 8:
        return [found]
    short = "short __attribute__((vector_size(16)))"
    native = f"const {bits} found = ({bits})__builtin_ia32_pmovzxwd256(({short})half);"
    return ["#if defined(__AVX2__) && !defined(__clang__)", native, "#else", found, "#endif"]


def _narrow(unit: Unit, dtype: str, lanes: int) -> str:
    half, wide, bits = _names(unit, dtype, lanes)
    head = f"{half} narrow_{types.suffix(dtype, lanes)}({wide} wide)"
    found = f"const {bits} found = {_cast(bits, 'wide', lanes)};"
    if dtype == "bfloat16":
        nan = _every(unit, 0x7FC0, lanes)
        return _function(
            head,
            [
                found,
                f"const {bits} rounded = (found + 0x7fff + ((found >> 16) & 1)) >> 16;",
                f"const {bits} result = wide != wide ? {nan} : rounded;",
                f"return {_convert(half, 'result', lanes)};",
            ],
        )
    return _function(
        head,
        [
            found,
            f"const {bits} size = found & 0x7fffffff;",
            f"const {wide} shifted = {_cast(wide, 'size', lanes)} + 0.5f;",
            f"const {bits} small = {_cast(bits, 'shifted', lanes)} - 0x3f000000;",
            f"const {bits} normal = (size + 0xc8000fff + ((size >> 13) & 1)) >> 13;",
            f"const {bits} finite = size < 0x38800000 ? small : normal;",
            f"const {bits} large = size > 0x7f800000 ? {_every(unit, 0x7E00, lanes)} : {_every(unit, 0x7C00, lanes)};",
            f"const {bits} result = (size < 0x47800000 ? finite : large) | ((found >> 16) & 0x8000);",
            f"return {_convert(half, 'result', lanes)};",
        ],
        _narrow_fast(half, lanes),
    )


def _widen_fast(lanes: int) -> str:
    if lanes != 8:
        return ""
    return "return (float32x8)__builtin_ia32_vcvtph2ps256((short __attribute__((vector_size(16))))half);"


def _narrow_fast(half: str, lanes: int) -> str:
    if lanes != 8:
        return ""
    return f"return ({half})__builtin_ia32_vcvtps2ph256((float __attribute__((vector_size(32))))wide, 0);"


TEMPLATES: Final[dict[str, Template]] = {"widen": _widen, "narrow": _narrow}
