"""Vectors of bytes as vectors of wider numbers.

In: sixteen int8 from memory. Out: `wide_int32x16(load_int8x16(..))`, one instruction; g++ 12 alone would split the
vectors into scalars.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE

LANES: Final = 16
WIDENED: Final = ("int32", "float32")


def is_widened(source: str, dtype: str, lanes: int) -> bool:
    """Whether elements of `source` become `dtype` by a helper."""
    return source == "int8" and dtype in WIDENED and lanes == LANES


def converted(unit: Unit, text: str, dtype: str) -> str:
    """Sixteen bytes as int32 or float32."""
    wide = f"{unit.use('wide', 'int32', LANES)}({text})"
    return wide if dtype == "int32" else f"__builtin_convertvector({wide}, {unit.type(dtype, LANES)})"


def _wide(unit: Unit, dtype: str, lanes: int) -> str:
    narrow, numbers = unit.type("int8", lanes), unit.type(dtype, lanes)
    native = f"native_{types.suffix(dtype, lanes)}"
    unit.declare(f"native {native}", f"typedef int {native} __attribute__((vector_size(64)));")
    unit.declare("native bytes", "typedef char native_bytes __attribute__((vector_size(16)));")
    call = f"__builtin_ia32_pmovsxbd512_mask((native_bytes)bytes, {native}{{}}, (unsigned short)-1)"
    return (
        f"{INLINE}{numbers} wide_{numbers}({narrow} bytes) {{\n"
        "#if defined(__AVX512F__) && !defined(__clang__)\n"
        f"  return ({numbers}){call};\n"
        "#else\n"
        f"  return __builtin_convertvector(bytes, {numbers});\n"
        "#endif\n}"
    )


TEMPLATES: Final[dict[str, Template]] = {"wide": _wide}
