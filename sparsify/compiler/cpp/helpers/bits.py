"""Helper functions on bits: of bytes in memory, in words, and as the lanes of vectors.

In: `expand` of `float32x8`. Out: the C++ text of `expand_float32x8(values, bits, at, end)`: consecutive elements,
of which the first is element `at` of `end`, in the lanes with set bits, 0 in the others. Bytes are shuffled to their
lanes with AVX2, by orders from a table; AVX-512 has an instruction; elsewhere a loop runs over the lanes. Narrow
elements are shuffled first, and then converted, all lanes at a time: `expand_bfloat16_float32x8`.
"""

from functools import partial
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE
from sparsify.compiler.ir.dtypes import STORED_HALVES

BYTE: Final = 8
# Bytes of a shuffled register.
REGISTER: Final = 16
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


def order(bits: int, lanes: int, size: int) -> bytes:
    """The bytes of consecutive elements of `size` bytes in the lanes with set bits; 0x80, for 0, in the others.

    >>> order(0b101, 3, 2).hex()
    '000180800203'
    """
    found, rank = bytearray(), 0
    for lane in range(lanes):
        is_set = bits >> lane & 1
        found += bytes([rank * size + byte if is_set else 0x80 for byte in range(size)])
        rank += is_set
    return bytes(found)


def _declare_order(unit: Unit, lanes: int, size: int) -> str:
    """The table of `order` for each value of a byte, or of half a byte; its name."""
    name = f"order_of_{lanes}x{size}"
    rows = [order(bits, lanes, size).ljust(REGISTER, b"\x80") for bits in range(1 << lanes)]
    _declare_table(
        unit, name, "Bytes of consecutive elements in the lanes with set bits, 0x80 in the others.", rows
    )
    return name


def _declare_lanes(unit: Unit) -> None:
    """The table of the masks of eight lanes of four bytes."""
    rows = [
        b"".join([b"\xff" * 4 if bits >> lane & 1 else bytes(4) for lane in range(BYTE)])
        for bits in range(256)
    ]
    _declare_table(unit, "lanes_of_byte", "All bits of the lanes with set bits.", rows)


def _declare_table(unit: Unit, name: str, comment: str, rows: list[bytes]) -> None:
    """A table of bytes, aligned to its rows."""
    unit.unsigned = True
    words = [
        f"{int.from_bytes(row[at : at + 8], 'little'):#x}ull" for row in rows for at in range(0, len(row), 8)
    ]
    lines = ",\n  ".join(", ".join(words[at : at + 4]) for at in range(0, len(words), 4))
    count = len(rows[0]) // 8
    unit.declare(
        name,
        "#if defined(__AVX2__)\n"
        f"// {comment}\n"
        f"static const uint64_t {name}[{len(words)}] __attribute__((aligned({8 * count}))) = {{\n  {lines}}};\n"
        "#endif",
    )


def _declare_numbers(unit: Unit) -> None:
    """Eight bytes as eight numbers; g++ 12 converts vectors of eight bytes one by one."""
    for dtype, lanes in (("int8", BYTE), ("int32", BYTE), ("int64", 2), ("float32", BYTE)):
        unit.type(dtype, lanes)
    unit.declare(
        "numbers of bytes",
        f"{INLINE}float32x8 numbers_of_bytes(int8x8 bytes) {{\n"
        "#if defined(__AVX2__) && !defined(__clang__)\n"
        "  typedef char sixteen_bytes __attribute__((vector_size(16)));\n"
        "  const int64x2 both{__builtin_bit_cast(int64_t, bytes), 0};\n"
        "  const int32x8 wide = (int32x8)__builtin_ia32_pmovsxbd256((sixteen_bytes)both);\n"
        "  return __builtin_convertvector(wide, float32x8);\n"
        "#else\n"
        "  return __builtin_convertvector(bytes, float32x8);\n"
        "#endif\n}",
    )


def _declare_shuffle(unit: Unit) -> None:
    """Sixteen bytes in another order."""
    unit.declare(
        "shuffled",
        "#if defined(__AVX2__)\n"
        "typedef char bytes_of_lanes __attribute__((vector_size(16)));\n"
        f"{INLINE}bytes_of_lanes shuffled(const void *values, const uint64_t *order) {{\n"
        "  bytes_of_lanes found;\n"
        "  __builtin_memcpy(&found, values, sizeof(found));\n"
        "  return __builtin_ia32_pshufb128(found, *(const bytes_of_lanes *)order);\n"
        "}\n"
        "#endif",
    )


def _expand(unit: Unit, dtype: str, lanes: int) -> str:
    """Expansion of consecutive elements to the lanes with set bits."""
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    arguments = f"(const {element} *values, int64_t bits, int64_t at, int64_t end)"
    signature = f"{vector} expand_{vector}{arguments}"
    if lanes > BYTE and types.BYTES[dtype] == 4:
        native = _instruction(unit, dtype, lanes, f"{unit.use('load', dtype, lanes)}(values)")
        return _expand_halves(unit.use("expand", dtype, lanes // 2), lanes, signature, native)
    loop = (
        f"static __attribute__((noinline)) {vector} expand_slowly_{vector}{arguments} {{\n"
        f"  {vector} value{{}};\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane)\n"
        "    if (bits >> lane & 1) value[lane] = *values++;\n"
        "  return value;\n}\n"
    )
    native = ""
    if lanes == BYTE and types.BYTES[dtype] in (1, 2, 4):
        native = _shuffled(unit, vector, types.BYTES[dtype])
    slow = f"  return expand_slowly_{vector}(values, bits, at, end);\n}}"
    return f"{loop}{INLINE}{signature} {{\n{native}{slow}"


def _shuffled(unit: Unit, vector: str, size: int) -> str:
    """The return of eight elements of some bytes in the lanes with set bits, if whole registers may be read."""
    _declare_shuffle(unit)
    lanes = BYTE if size < 4 else BYTE // 2
    table = _declare_order(unit, lanes, size)
    numbers = ", ".join(map(str, range(BYTE * size)))
    if lanes == BYTE:
        found = f"shuffled(values, {table} + 2 * bits)"
        found = found if size > 1 else f"__builtin_shufflevector({found}, bytes_of_lanes{{}}, {numbers})"
    else:
        found = (
            f"__builtin_shufflevector(shuffled(values, {table} + 2 * (bits & 15)),\n"
            f"        shuffled(values + __builtin_popcountll(bits & 15), {table} + 2 * (bits >> 4)), {numbers})"
        )
    return (
        f"#if defined(__AVX2__)\n  if (__builtin_expect(at <= end - {max(BYTE, REGISTER // size)}, 1)) {{\n"
        f"    return ({vector}){found};\n  }}\n#endif\n"
    )


def _instruction(unit: Unit, dtype: str, lanes: int, value: str) -> str:
    """The return of a whole register of elements in the lanes with set bits, by one instruction of AVX-512."""
    if lanes * types.BYTES[dtype] != 64:
        return ""
    kind, letter = ("float", "sf") if dtype == "float32" else ("int", "si")
    native = f"native_lanes_{dtype}"
    unit.declare(native, f"typedef {kind} {native} __attribute__((vector_size(64)));")
    return (
        f"#if defined(__AVX512F__)\n  if (__builtin_expect(at <= end - {lanes}, 1)) {{\n"
        f"    return ({unit.type(dtype, lanes)})__builtin_ia32_expand{letter}512_mask(\n"
        f"        ({native}){value}, {native}{{}}, bits);\n"
        "  }\n#endif\n"
    )


def _expand_halves(half: str, lanes: int, signature: str, native: str) -> str:
    """The expansion of twice the lanes of the function `half`."""
    low = 2 ** (lanes // 2) - 1
    order = ", ".join(str(lane) for lane in range(lanes))
    return (
        f"{INLINE}{signature} {{\n{native}"
        f"  const int64_t before = __builtin_popcountll(bits & {low});\n"
        f"  return __builtin_shufflevector({half}(values, bits & {low}, at, end),\n"
        f"      {half}(values + before, bits >> {lanes // 2}, at + before, end), {order});\n}}"
    )


def is_expanded_wide(source: str, dtype: str, lanes: int) -> bool:
    """Whether elements of `source` are converted after being moved to lanes."""
    return source in NARROW and dtype == "float32" and lanes % BYTE == 0


def _expand_wide(source: str, unit: Unit, dtype: str, lanes: int) -> str:
    """As `expand` for narrow elements, with a conversion."""
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[source]
    signature = (
        f"{vector} expand_{source}_{vector}(const {element} *values, int64_t bits, int64_t at, int64_t end)"
    )
    if lanes > BYTE:
        loaded = f"{unit.use('load', source, lanes)}(values)"
        native = _instruction(unit, dtype, lanes, _widened(unit, source, dtype, lanes, loaded))
        return _expand_halves(unit.use(f"expand_{source}", dtype, lanes // 2), lanes, signature, native)
    moved = f"{unit.use('expand', source, lanes)}(values, bits, at, end)"
    return f"{INLINE}{signature} {{\n  return {_widened(unit, source, dtype, lanes, moved)};\n}}"


def _widened(unit: Unit, source: str, dtype: str, lanes: int, value: str) -> str:
    """A vector of narrow elements as float32."""
    if source in STORED_HALVES:
        return f"{unit.use('widen', source, lanes)}({value})"
    if lanes == BYTE:
        _declare_numbers(unit)
        return f"numbers_of_bytes({value})"
    return f"__builtin_convertvector({value}, {unit.type(dtype, lanes)})"


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
        _declare_lanes(unit)
        table = f"  return *(const {vector} *)(lanes_of_byte + 4 * bits);"
        return f"{head}#if defined(__AVX2__)\n{table}\n#else\n{body[:-2]}\n#endif\n}}"
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
