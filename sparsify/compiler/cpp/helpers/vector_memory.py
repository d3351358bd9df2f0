"""Helper functions that move vectors between memory and registers, whole and in part.

In: `load_part` of `float32x8`. Out: the C++ text of `load_part_float32x8(address, count)`: a masked load on instruction
sets with masks (chosen by the C++ preprocessor), a loop over the lanes on others.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit

INLINE: Final = "static inline __attribute__((always_inline)) "

# Builtins of AVX-512 by (dtype, bytes of the vector); lanes of 32 or 64 bits only.
AVX512_NAMES: Final = {"float32": "ups", "float64": "upd", "int32": "dqusi", "int64": "dqudi"}
AVX2_NAMES: Final = {"float32": "ps", "float64": "pd", "int32": "d", "int64": "q"}
GATHER_NAMES: Final = {"float32": "sf", "float64": "df", "int32": "si", "int64": "di"}
# Element types of the builtins.
BUILTIN_ELEMENTS: Final = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


def constants(name: str, lanes: int) -> str:
    """`int32x4{0, 1, 2, 3}`: the number of each lane."""
    return f"{name}{{{', '.join(str(lane) for lane in range(lanes))}}}"


def _load(unit: Unit, dtype: str, lanes: int) -> str:
    vector = unit.type(dtype, lanes)
    return (
        f"{INLINE}{vector} load_{vector}(const {types.ELEMENTS[dtype]} *address) {{\n"
        f"  return *(const {vector}_memory *)address;\n}}"
    )


def _store(unit: Unit, dtype: str, lanes: int) -> str:
    vector = unit.type(dtype, lanes)
    return (
        f"{INLINE}void store_{vector}({types.ELEMENTS[dtype]} *address, {vector} value) {{\n"
        f"  *({vector}_memory *)address = value;\n}}"
    )


def _below(unit: Unit, dtype: str, lanes: int) -> str:
    """A mask as wide as `dtype`: true in the lanes below `count`."""
    vector = unit.type(dtype, lanes)
    element = types.ELEMENTS[dtype]
    return (
        f"{INLINE}{vector} below_{vector}(int64_t count) {{\n"
        f"  return {constants(vector, lanes)} < ({element})(count < {lanes} ? count : {lanes});\n}}"
    )


def _keep(unit: Unit, dtype: str, lanes: int) -> str:
    """`value` in the lanes below `count`, `rest` in the others."""
    vector = unit.type(dtype, lanes)
    below = unit.use("below", types.integer_as_wide(dtype), lanes)
    return (
        f"{INLINE}{vector} keep_{vector}({vector} value, int64_t count, {vector} rest) {{\n"
        f"  return {below}(count) ? value : rest;\n}}"
    )


def _held(unit: Unit, dtype: str, lanes: int) -> str:
    """`value`, held in a register without a reload from memory; vectors wider than a register are unchanged."""
    vector, size = unit.type(dtype, lanes), lanes * types.BYTES[dtype]
    wide = {16: "__SSE2__", 32: "__AVX__", 64: "__AVX512F__"}.get(size)
    lines = [f"#ifdef {wide}", '  __asm__("" : "+x"(value));', "#endif"] if wide else []
    return "\n".join([f"{INLINE}{vector} held_{vector}({vector} value) {{", *lines, "  return value;", "}"])


def _load_part(unit: Unit, dtype: str, lanes: int) -> str:
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    head = f"{INLINE}{vector} load_part_{vector}(const {element} *address, int64_t count)"
    loop = (
        f"  {vector} value{{}};\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane)\n"
        "    if (lane < count) value[lane] = address[lane];\n"
        "  return value;"
    )
    return _masked(unit, dtype, lanes, head, "load", loop)


def _store_part(unit: Unit, dtype: str, lanes: int) -> str:
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    head = f"{INLINE}void store_part_{vector}({element} *address, {vector} value, int64_t count)"
    loop = f"  for (int lane = 0; lane < {lanes}; ++lane)\n    if (lane < count) address[lane] = value[lane];"
    return _masked(unit, dtype, lanes, head, "store", loop)


def _masked(unit: Unit, dtype: str, lanes: int, head: str, access: str, loop: str) -> str:
    """A function with one body for each instruction set with masks for vectors of this size, else `loop`."""
    size = types.BYTES[dtype] * lanes
    if dtype not in AVX2_NAMES or size not in (16, 32, 64):
        return _halves(unit, dtype, lanes, head, access) if size > 64 else f"{head} {{\n{loop}\n}}"
    bodies = [("__AVX512F__" if size == 64 else "__AVX512VL__", _avx512(unit, dtype, lanes, access))]
    if size == 64:
        bodies.append(("__AVX2__", _halves_body(unit, dtype, lanes, access)))
    else:
        bodies.append(("__AVX2__", _avx2(unit, dtype, lanes, access)))
    lines = [f"{head} {{"]
    for number, (macro, body) in enumerate(bodies):
        lines += [f"{'#elif' if number else '#if'} defined({macro})", body]
    return "\n".join([*lines, "#else", loop, "#endif", "}"])


def _avx512(unit: Unit, dtype: str, lanes: int, access: str) -> str:
    vector = unit.type(dtype, lanes)
    size = types.BYTES[dtype] * lanes
    native = f"native_{dtype}x{lanes}"
    bits = "unsigned char" if lanes <= 8 else "unsigned short"
    mask = f"  const {bits} mask = ({bits})((1u << (count < {lanes} ? count : {lanes})) - 1);\n"
    const = "const " if access == "load" else ""
    pointer = f"({const}{BUILTIN_ELEMENTS[dtype]} *)address"
    if size < 64:
        unit.declare("native types", NATIVE_TYPES)
        pointer = f"(SPARSIFY_MASKED({const}{native}, {const}{BUILTIN_ELEMENTS[dtype]}) *)address"
    builtin = f"__builtin_ia32_{access}{AVX512_NAMES[dtype]}{size * 8}_mask"
    unit.declare("native " + native, _native(dtype, lanes))
    if access == "load":
        return f"{mask}  return ({vector}){builtin}({pointer}, ({native}){vector}{{}}, mask);"
    return f"{mask}  {builtin}({pointer}, ({native})value, mask);"


def _avx2(unit: Unit, dtype: str, lanes: int, access: str) -> str:
    vector = unit.type(dtype, lanes)
    size = types.BYTES[dtype] * lanes
    integer = types.integer_as_wide(dtype)
    native, mask = f"native_{dtype}x{lanes}", f"native_{integer}x{lanes}"
    unit.declare("native " + native, _native(dtype, lanes))
    unit.declare("native " + mask, _native(integer, lanes))
    below = unit.use("below", integer, lanes)
    builtin = f"__builtin_ia32_mask{access}{AVX2_NAMES[dtype]}{'256' if size == 32 else ''}"
    lanes_mask = f"({mask}){below}(count)"
    if access == "load":
        return f"  return ({vector}){builtin}((const {native} *)address, {lanes_mask});"
    return f"  {builtin}(({native} *)address, {lanes_mask}, ({native})value);"


def _native(dtype: str, lanes: int) -> str:
    size = types.BYTES[dtype] * lanes
    return (
        f"typedef {BUILTIN_ELEMENTS[dtype]} native_{dtype}x{lanes} "
        f"__attribute__((vector_size({size}), aligned({types.BYTES[dtype]}), may_alias));"
    )


# Of vectors below 64 bytes the builtins take a pointer to the vector in clang and to the element in g++.
NATIVE_TYPES: Final = (
    "#ifdef __clang__\n"
    "#define SPARSIFY_MASKED(vector, element) vector\n"
    "#else\n"
    "#define SPARSIFY_MASKED(vector, element) element\n"
    "#endif"
)


def _halves(unit: Unit, dtype: str, lanes: int, head: str, access: str) -> str:
    return f"{head} {{\n{_halves_body(unit, dtype, lanes, access)}\n}}"


def _halves_body(unit: Unit, dtype: str, lanes: int, access: str) -> str:
    half = lanes // 2
    part = unit.use(f"{access}_part", dtype, half)
    rest = f"address + {half}, COUNT"
    upper = f"(count > {half} ? count - {half} : 0)"
    if access == "load":
        order = ", ".join(str(lane) for lane in range(lanes))
        low, high = f"{part}(address, count)", f"{part}({rest.replace('COUNT', upper)})"
        return f"  return __builtin_shufflevector({low}, {high}, {order});"
    low_lanes = ", ".join(str(lane) for lane in range(half))
    high_lanes = ", ".join(str(lane) for lane in range(half, lanes))
    return (
        f"  {part}(address, __builtin_shufflevector(value, value, {low_lanes}), count);\n"
        f"  {part}(address + {half}, __builtin_shufflevector(value, value, {high_lanes}), {upper});"
    )


def _gather(unit: Unit, dtype: str, lanes: int) -> str:
    # Element by element: the gather instructions are no faster than scalar loads. The indices are a vector, or in
    # memory: extracting them from a vector costs more.
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    items = ", ".join(f"address[indices[{lane}]]" for lane in range(lanes))
    return (
        "template <class Indices>\n"
        f"{INLINE}{vector} gather_{vector}(const {element} *address, Indices indices) {{\n"
        f"  return {vector}{{{items}}};\n}}"
    )


def _gather_part(unit: Unit, dtype: str, lanes: int) -> str:
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    return (
        "template <class Indices>\n"
        f"{INLINE}{vector} gather_part_{vector}(const {element} *address, Indices indices, int64_t count) {{\n"
        f"  {vector} value{{}};\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane)\n"
        "    if (lane < count) value[lane] = address[indices[lane]];\n"
        "  return value;\n}"
    )


def _gather_part_from(unit: Unit, dtype: str, lanes: int) -> str:
    # Lanes without an index read the element of the first lane: no branches.
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    keep = unit.use("keep", dtype, lanes)
    others = [f"address[indices[{lane} < count ? {lane} : 0]]" for lane in range(1, lanes)]
    items = ", ".join(["address[indices[0]]", *others])
    return (
        "template <class Index>\n"
        f"{INLINE}{vector} gather_part_from_{vector}(\n"
        f"    const {element} *address, const Index *indices, int64_t count) {{\n"
        f"{_masked_gather(unit, dtype, lanes)}"
        f"  if (count <= 0) return {vector}{{}};\n"
        f"  return {keep}({vector}{{{items}}}, count, {vector}{{}});\n}}"
    )


def _masked_gather(unit: Unit, dtype: str, lanes: int) -> str:
    """The gather instruction for int32 indices in memory, "" if AVX-512 has no masks for vectors of this size."""
    size = types.BYTES[dtype] * lanes
    if dtype not in GATHER_NAMES or lanes < 4 or size not in (16, 32, 64):
        return ""
    vector, native, index = unit.type(dtype, lanes), f"native_{dtype}x{lanes}", f"native_int32x{lanes}"
    load = unit.use("load_part", "int32", lanes)
    unit.declare("native " + native, _native(dtype, lanes))
    unit.declare("native " + index, _native("int32", lanes))
    bits = "unsigned char" if lanes <= 8 else "unsigned short"
    builtin = f"__builtin_ia32_gather{'' if size == 64 else '3'}siv{lanes}{GATHER_NAMES[dtype]}"
    places = f"({index}){load}((const int32_t *)indices, count)"
    return (
        f"#if defined({'__AVX512F__' if size == 64 else '__AVX512VL__'})\n"
        "  if (sizeof(Index) == 4) {\n"
        f"    const {bits} mask = ({bits})((1u << (count < {lanes} ? count : {lanes})) - 1);\n"
        f"    return ({vector}){builtin}(({native}){vector}{{}}, address, {places}, mask, {types.BYTES[dtype]});\n"
        "  }\n"
        "#endif\n"
    )


def _scatter(unit: Unit, dtype: str, lanes: int) -> str:
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    return (
        "template <class Indices>\n"
        f"{INLINE}void scatter_{vector}({element} *address, Indices indices, {vector} value) {{\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane) address[indices[lane]] = value[lane];\n}}"
    )


def _scatter_part(unit: Unit, dtype: str, lanes: int) -> str:
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    return (
        "template <class Indices>\n"
        f"{INLINE}void scatter_part_{vector}({element} *address, Indices indices, {vector} value, "
        "int64_t count) {\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane)\n"
        "    if (lane < count) address[indices[lane]] = value[lane];\n}"
    )


def _fill(unit: Unit, dtype: str, lanes: int) -> str:
    assert lanes == 1, "memory is filled element by element"
    element = types.ELEMENTS[dtype]
    return (
        f"static inline void fill_{dtype}({element} *address, int64_t count, {element} value) {{\n"
        "  for (int64_t p = 0; p < count; ++p) address[p] = value;\n}"
    )


def _sort(unit: Unit, dtype: str, lanes: int) -> str:
    """Shellsort in place, gaps after Tokuda; lists long in relation to the extent are enumerated instead."""
    assert lanes == 1, "memory is sorted element by element"
    element = types.ELEMENTS[dtype]
    return (
        f"static void sort_{dtype}({element} *address, int64_t count) {{\n"
        "  int64_t gap = 1;\n"
        "  while (gap * 9 / 4 + 1 < count) gap = gap * 9 / 4 + 1;\n"
        "  for (; gap > 0; gap = gap > 1 ? gap * 4 / 9 : 0)\n"
        "    for (int64_t p = gap; p < count; ++p) {\n"
        f"      const {element} value = address[p];\n"
        "      int64_t q = p;\n"
        "      for (; q >= gap && address[q - gap] > value; q -= gap) address[q] = address[q - gap];\n"
        "      address[q] = value;\n"
        "    }\n}"
    )


def _enumerate(unit: Unit, dtype: str, lanes: int) -> str:
    """Enumeration of eight flags at a time: most words are 0, and the others give their bytes from the lowest on."""
    assert lanes == 1, "numbers are written one by one"
    element = types.ELEMENTS[dtype]
    unit.unsigned = True
    return (
        f"static void enumerate_{dtype}({element} *numbers, const int8_t *flags, int64_t count) {{\n"
        "  int64_t p = 0;\n"
        "  for (; p + 8 <= count; p += 8) {\n"
        "    uint64_t word;\n"
        "    __builtin_memcpy(&word, flags + p, 8);\n"
        "    for (; word; word &= word - 1) *numbers++ = p + (__builtin_ctzll(word) >> 3);\n"
        "  }\n"
        "  for (; p < count; ++p)\n"
        "    if (flags[p]) *numbers++ = p;\n}"
    )


TEMPLATES: Final[dict[str, Template]] = {
    "load": _load,
    "store": _store,
    "below": _below,
    "keep": _keep,
    "held": _held,
    "load_part": _load_part,
    "store_part": _store_part,
    "gather": _gather,
    "gather_part": _gather_part,
    "gather_part_from": _gather_part_from,
    "scatter": _scatter,
    "scatter_part": _scatter_part,
    "fill": _fill,
    "sort": _sort,
    "enumerate": _enumerate,
}
