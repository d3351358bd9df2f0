"""Helper functions on bits: of bytes in memory, in words, and as the lanes of vectors.

In: `expand` of `float32x8`. Out: the C++ text of `expand_float32x8(values, bits, left)`: consecutive elements in the
lanes with set bits, by one permutation with AVX2 and by a loop over the lanes elsewhere. Narrow elements are converted
first, all lanes at a time: `expand_bfloat16_float32x8`.
"""

from functools import partial
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE
from sparsify.compiler.ir.dtypes import STORED_HALVES

BYTE: Final = 8
# Elements converted to float32 on the way to their lanes.
NARROW: Final = ("bfloat16", "float16", "int8")


def _bits(unit: Unit, dtype: str, count: int) -> str:
    """At least `count` bits; words in memory are little-endian, as on all supported machines."""
    size = max(BYTE, count)
    unit.unsigned = True
    return (
        f"{INLINE}int64_t bits_{types.suffix(dtype, count)}(const int8_t *address) {{\n"
        f"  __UINT{size}_TYPE__ word;\n"
        "  __builtin_memcpy(&word, address, sizeof(word));\n"
        "  return (int64_t)word;\n}"
    )


def _count_bits(unit: Unit, dtype: str, lanes: int) -> str:
    unit.unsigned = True
    return f"{INLINE}int64_t count_bits_int64(int64_t bits) {{\n  return __builtin_popcountll((uint64_t)bits);\n}}"


def _lowest_bit(unit: Unit, dtype: str, lanes: int) -> str:
    unit.unsigned = True
    return f"{INLINE}int64_t lowest_bit_int64(int64_t bits) {{\n  return __builtin_ctzll((uint64_t)bits);\n}}"


def _drop_bit(unit: Unit, dtype: str, lanes: int) -> str:
    unit.unsigned = True
    return (
        f"{INLINE}int64_t drop_bit_int64(int64_t bits) {{\n"
        "  return (int64_t)((uint64_t)bits & ((uint64_t)bits - 1));\n}"
    )


def places(bits: int) -> int:
    """For each set bit of eight: the number of set bits below, with the sign bit, as the bytes of a number.

    >>> hex(places(0b101))
    '0x810080'
    """
    found, rank = 0, 0
    for bit in range(BYTE):
        if bits >> bit & 1:
            found |= (0x80 | rank) << BYTE * bit
            rank += 1
    return found


def _declare_places(unit: Unit) -> None:
    """The table of `places`, 2 KB."""
    unit.unsigned = True
    _declare_numbers(unit)
    rows = [", ".join(f"{places(bits):#x}u" for bits in range(row, row + 4)) for row in range(0, 256, 4)]
    listed = ",\n  ".join(row.replace("u", "ull") for row in rows)
    unit.declare(
        "places of bits",
        "// Of the set ones of eight bits: how many are set below, with the sign bit.\n"
        f"static const uint64_t places_of_bits[256] = {{\n  {listed}}};\n"
        "#if defined(__AVX2__)\n"
        f"{INLINE}int32x8 places_at(int64_t bits) {{\n"
        "  return numbers_of_bytes((int64_t)places_of_bits[bits]);\n}\n"
        "#endif",
    )


def _declare_numbers(unit: Unit) -> None:
    """Eight bytes as eight numbers."""
    for dtype, lanes in (("int8", BYTE), ("int32", BYTE), ("int64", 2)):
        unit.type(dtype, lanes)
    unit.declare(
        "numbers of bytes",
        "#if defined(__AVX2__)\n"
        "typedef char bytes_of_numbers __attribute__((vector_size(16)));\n"
        f"{INLINE}int32x8 numbers_of_bytes(int64_t bytes) {{\n"
        "#ifdef __clang__\n"
        "  int8x8 each;\n  __builtin_memcpy(&each, &bytes, 8);\n"
        "  return __builtin_convertvector(each, int32x8);\n"
        "#else\n"  # g++ 12 converts vectors of eight bytes one by one
        "  const int64x2 both{bytes, 0};\n"
        "  return (int32x8)__builtin_ia32_pmovsxbd256((bytes_of_numbers)both);\n"
        "#endif\n}\n"
        "#endif",
    )


def _expand(unit: Unit, dtype: str, lanes: int) -> str:
    """Expansion of consecutive elements to the lanes with set bits; `left` elements may be read."""
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    arguments = f"(const {element} *values, int64_t bits, int64_t left)"
    loop = (
        f"static __attribute__((noinline)) {vector} expand_slowly_{vector}{arguments} {{\n"
        f"  {vector} value{{}};\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane)\n"
        "    if (bits >> lane & 1) value[lane] = *values++;\n"
        "  return value;\n}\n"
    )
    head = f"{loop}{INLINE}{vector} expand_{vector}{arguments} {{\n"
    slow = f"  return expand_slowly_{vector}(values, bits, left);\n}}"
    if lanes > BYTE and types.BYTES[dtype] == 4:
        return _expand_halves(
            unit.use("expand", dtype, lanes // 2), lanes, f"{vector} expand_{vector}{arguments}"
        )
    if lanes != BYTE or types.BYTES[dtype] != 4:
        return f"{head}{slow}"
    found = _permuted(unit, dtype, f"{unit.use('load', dtype, lanes)}(values)")
    return f"{head}{_where_native(f'return {found};')}{slow}"


def _expand_halves(half: str, lanes: int, signature: str) -> str:
    """The expansion of twice the lanes of the function `half`."""
    low = 2 ** (lanes // 2) - 1
    order = ", ".join(str(lane) for lane in range(lanes))
    return (
        f"{INLINE}{signature} {{\n"
        f"  const int64_t before = __builtin_popcountll(bits & {low});\n"
        f"  return __builtin_shufflevector({half}(values, bits & {low}, left),\n"
        f"      {half}(values + before, bits >> {lanes // 2}, left - before), {order});\n}}"
    )


def _where_native(line: str) -> str:
    """The code for CPUs with permutations, used if eight elements may be read."""
    return f"#if defined(__AVX2__)\n  if (__builtin_expect(left >= {BYTE}, 1)) {{\n    {line}\n  }}\n#endif\n"


def _permuted(unit: Unit, dtype: str, value: str) -> str:
    """Eight elements of four bytes in the lanes with set bits."""
    _declare_places(unit)
    vector, native = unit.type(dtype, BYTE), f"native_places_{dtype}"
    kind, builtin = ("float", "permvarsf256") if dtype == "float32" else ("int", "permvarsi256")
    unit.declare(f"native {native}", f"typedef {kind} {native} __attribute__((vector_size(32)));")
    unit.declare("native places_int32", "typedef int native_places_int32 __attribute__((vector_size(32)));")
    return f"({vector})__builtin_ia32_{builtin}(({native}){value}, (native_places_int32)places_at(bits))"


def is_expanded_wide(source: str, dtype: str, lanes: int) -> bool:
    """Whether elements of `source` are converted before being moved to lanes."""
    return source in NARROW and dtype == "float32" and lanes % BYTE == 0


def _expand_wide(source: str, unit: Unit, dtype: str, lanes: int) -> str:
    """As `expand` for narrow elements, with a conversion."""
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[source]
    signature = f"{vector} expand_{source}_{vector}(const {element} *values, int64_t bits, int64_t left)"
    if lanes > BYTE:
        return _expand_halves(unit.use(f"expand_{source}", dtype, lanes // 2), lanes, signature)
    slow = f"{unit.use('expand', source, lanes)}(values, bits, left)"
    if source in STORED_HALVES:
        widen, load = unit.use("widen", source, lanes), unit.use("load", source, lanes)
        slow, found, before = f"{widen}({slow})", f"{widen}({load}(values))", ""
    else:
        _declare_numbers(unit)
        slow = f"__builtin_convertvector({slow}, {vector})"
        before = "int64_t bytes;\n    __builtin_memcpy(&bytes, values, sizeof(bytes));\n    "
        found = f"__builtin_convertvector(numbers_of_bytes(bytes), {vector})"
    native = _where_native(f"{before}return {_permuted(unit, dtype, found)};")
    return f"{INLINE}{signature} {{\n{native}  return {slow};\n}}"


def _lanes_of_bits(unit: Unit, dtype: str, lanes: int) -> str:
    """A mask as wide as `dtype`: true in the lanes with set bits."""
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    head = f"{INLINE}{vector} lanes_of_bits_{vector}(int64_t bits) {{\n"
    if types.BYTES[dtype] * BYTE >= lanes:
        one = f"({element})1" if types.BYTES[dtype] > 1 else "1"
        tests = ", ".join(f"({element})({one} << {lane})" for lane in range(lanes))
        broadcast = unit.use("broadcast", dtype, lanes)
        body = f"  return ({broadcast}(({element})bits) & {vector}{{{tests}}}) != {vector}{{}};\n}}"
    else:
        body = (
            f"  {vector} value{{}};\n"
            f"  for (int lane = 0; lane < {lanes}; ++lane) value[lane] = -(bits >> lane & 1);\n  return value;\n}}"
        )
    if lanes == BYTE and types.BYTES[dtype] == 4:
        _declare_places(unit)
        return f"{head}#if defined(__AVX2__)\n  return places_at(bits) < 0;\n#else\n{body[:-2]}\n#endif\n}}"
    return head + body


TEMPLATES: Final[dict[str, Template]] = {
    "bits": _bits,
    "count_bits": _count_bits,
    "lowest_bit": _lowest_bit,
    "drop_bit": _drop_bit,
    "expand": _expand,
    **{f"expand_{source}": partial(_expand_wide, source) for source in NARROW},
    "lanes_of_bits": _lanes_of_bits,
}
