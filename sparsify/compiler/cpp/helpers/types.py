"""C++ names of dtypes and vector types.

In: `float32` with 8 lanes. Out: the type `float32x8` and, when used, its definition
`typedef float float32x8 __attribute__((vector_size(32)));`.

A vector of bool is a mask: integers as wide as the compared values, -1 for true and 0 for false.
The 16-bit floats are stored as bits, `uint16_t`; complex numbers are pairs, `complex64`.
"""

from typing import Final

import torch

from sparsify.compiler.ir import dtypes

ELEMENTS: Final = {
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
    "bfloat16": "uint16_t",
    "float16": "uint16_t",
    "complex64": "complex64",
    "complex128": "complex128",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
}
BYTES: Final = {**dtypes.BYTES, "uint32": 4, "uint64": 8}
FLOATS: Final = ("float32", "float64")
MASKS: Final = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}

INTEGER_TYPES: Final = (
    "typedef __INT8_TYPE__ int8_t;\n"
    "typedef __INT16_TYPE__ int16_t;\n"
    "typedef __INT32_TYPE__ int32_t;\n"
    "typedef __INT64_TYPE__ int64_t;"
)
UNSIGNED_TYPES: Final = "typedef __UINT32_TYPE__ uint32_t;\ntypedef __UINT64_TYPE__ uint64_t;"
HALF_TYPE: Final = "typedef __UINT16_TYPE__ uint16_t;"


def is_float(dtype: str) -> bool:
    """Whether `dtype` is a floating point type."""
    return dtype in FLOATS


def integer_as_wide(dtype: str) -> str:
    """The signed integer dtype with as many bytes as `dtype`."""
    return MASKS[BYTES[dtype]]


def spelling(dtype: str, lanes: int) -> str:
    """The C++ type: `float` for one lane, `float32x8` for eight."""
    return ELEMENTS[dtype] if lanes == 1 else f"{dtype}x{lanes}"


def suffix(dtype: str, lanes: int) -> str:
    """The suffix of functions for a type: `float32` or `float32x8`."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def definition(dtype: str, lanes: int) -> str:
    """The definition of a vector type and of the unaligned type in memory."""
    element, name = ELEMENTS[dtype], spelling(dtype, lanes)
    size = BYTES[dtype] * lanes
    memory = f"vector_size({size}), aligned({BYTES[dtype]}), may_alias"
    return (
        f"typedef {element} {name} __attribute__((vector_size({size})));\n"
        f"typedef {element} {name}_memory __attribute__(({memory}));"
    )


def literal(value: float | int | bool, dtype: str) -> str:
    """`value` as a C++ constant of `dtype`, exact when read back."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in dtypes.REAL:
        return f"{dtype}{{{_float_literal(float(value), dtypes.REAL[dtype])}, 0}}"
    if dtype in dtypes.STORED_HALVES:
        bits = torch.tensor(float(value), dtype=dtypes.torch_dtype(dtype)).view(torch.int16).item()
        return f"(uint16_t){hex(int(bits) & 0xFFFF)}"
    if not is_float(dtype):
        number = int(value)
        if number == -(2**63):
            return f"({number + 1} - 1)"
        return str(number)
    return _float_literal(float(value), dtype)


def _float_literal(value: float, dtype: str) -> str:
    single = dtype == "float32"
    if value != value:
        return '__builtin_nanf("")' if single else '__builtin_nan("")'
    if value in (float("inf"), float("-inf")):
        text = "__builtin_inff()" if single else "__builtin_inf()"
        return text if value > 0 else f"-{text}"
    # A float32 is a float64 too: the shortest text of the float64 rounds to the same float32.
    return f"{value!r}f" if single else repr(value)
