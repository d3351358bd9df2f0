"""Table lookups in registers: elements of a table stored in vectors, one a lane, at places given by another vector.

In: `lookup(j, x_0, x_1)` with 16 lanes of float32. Out: `lookup_2_float32x16(j, x_0, x_1)`, one instruction
with AVX-512. Larger tables are looked up by halves, selected by a bit of the place; elsewhere lane by lane.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sparsify.compiler.cpp.helpers import types, wide
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE
from sparsify.compiler.ir.dtypes import INTEGER, category
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import MOST_LOOKED_UP, type_of

# By dtype and lanes: the permutation instructions of two vectors, and of one.
PERMUTED: Final = {
    ("float32", 16): "ps512",
    ("float64", 8): "pd512",
    ("int32", 16): "d512",
    ("int64", 8): "q512",
}
PERMUTED_ALONE: Final = {("float32", 8): "permvarsf256", ("int32", 8): "permvarsi256"}
NATIVE_ELEMENTS: Final = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


def call(
    unit: Unit, text: Callable[[nodes.Expr], str], loaded: Mapping[str, nodes.Load], expr: nodes.Op
) -> str:
    """The call of the lookup function for a table of a number of vectors.

    Args:
        text: writes an operand.
        loaded: loads of vectors of indices, by the variable that holds the vector.
    """
    places, *table = expr.args
    dtype, lanes = expr.type.dtype, expr.type.lanes
    count = 1 << (len(table) - 1).bit_length()
    assert count <= MOST_LOOKED_UP, f"{expr} has a table of more than {MOST_LOOKED_UP} vectors"
    texts = [text(vector) for vector in (*table, *[table[-1]] * (count - len(table)))]
    helper = unit.use(f"lookup_{count}", dtype, lanes)
    # Places are converted directly from memory if loaded.
    source = loaded.get(places.name, places) if isinstance(places, nodes.Var) else places
    found = _as_wide(unit, text(source), type_of(source).dtype, dtype, lanes)
    return f"{helper}({found}, {', '.join(texts)})"


def _as_wide(unit: Unit, places: str, stored: str, dtype: str, lanes: int) -> str:
    """The places as integers as wide as the elements."""
    wanted = types.integer_as_wide(dtype)
    if stored == wanted:
        return places
    assert category(stored) == INTEGER, "places are integers"
    if wide.is_widened(stored, wanted, lanes):
        return wide.converted(unit, places, wanted)
    return f"__builtin_convertvector({places}, {unit.type(wanted, lanes)})"


def _lookup(count: int, unit: Unit, dtype: str, lanes: int) -> str:
    """The elements at places below `count * lanes`."""
    vector, integers = unit.type(dtype, lanes), unit.type(types.integer_as_wide(dtype), lanes)
    names = [f"table_{n}" for n in range(count)]
    arguments = ", ".join([f"{integers} places", *(f"{vector} {name}" for name in names)])
    head = f"{INLINE}{vector} lookup_{count}_{vector}({arguments}) {{\n"
    if count == 1:
        return f"{head}{_one(unit, dtype, lanes)}"
    half = unit.use(f"lookup_{count // 2}", dtype, lanes)
    low, high = (f"{half}(places, {', '.join(part)})" for part in (names[: count // 2], names[count // 2 :]))
    bit = unit.use("broadcast", types.integer_as_wide(dtype), lanes)
    chosen = f"  return (places & {bit}({count // 2 * lanes})) != {integers}{{}} ? {high} : {low};\n}}"
    return f"{head}{_of_two(unit, dtype, lanes) if count == 2 else ''}{chosen}"


def _one(unit: Unit, dtype: str, lanes: int) -> str:
    """A lookup in the lanes of one vector, by one instruction for eight 4-byte lanes, else lane by lane."""
    vector = unit.type(dtype, lanes)
    native = ""
    if (dtype, lanes) in PERMUTED_ALONE:
        builtin = f"__builtin_ia32_{PERMUTED_ALONE[dtype, lanes]}"
        table, places = _native(unit, dtype, lanes), _native(unit, "int32", lanes)
        native = f"  return ({vector}){builtin}(({table})table_0, ({places})places);\n"
        native = f"#if defined(__AVX2__)\n{native}#endif\n"
    return (
        f"{native}"
        f"  {vector} value{{}};\n"
        f"  for (int lane = 0; lane < {lanes}; ++lane) value[lane] = table_0[places[lane] & {lanes - 1}];\n"
        "  return value;\n}"
    )


def _of_two(unit: Unit, dtype: str, lanes: int) -> str:
    """A lookup in the lanes of two vectors of 64 bytes."""
    if (dtype, lanes) not in PERMUTED:
        return ""
    vector, suffix = unit.type(dtype, lanes), PERMUTED[dtype, lanes]
    table, places = _native(unit, dtype, lanes), _native(unit, types.integer_as_wide(dtype), lanes)
    first, second, at = f"({table})table_0", f"({table})table_1", f"({places})places"
    mask = "unsigned short" if lanes == 16 else "unsigned char"
    return (
        "#if defined(__AVX512F__) && defined(__clang__)\n"
        f"  return ({vector})__builtin_ia32_vpermi2var{suffix}({first}, {at}, {second});\n"
        "#elif defined(__AVX512F__)\n"
        f"  return ({vector})__builtin_ia32_vpermt2var{suffix}_mask({at}, {first}, {second}, ({mask})-1);\n"
        "#endif\n"
    )


def _native(unit: Unit, dtype: str, lanes: int) -> str:
    """The vector type of the compiler's builtin functions."""
    name, size = f"native_{dtype}x{lanes}", types.BYTES[dtype] * lanes
    unit.declare(
        f"native {name}", f"typedef {NATIVE_ELEMENTS[dtype]} {name} __attribute__((vector_size({size})));"
    )
    return name


TEMPLATES: Final[dict[str, Template]] = {
    f"lookup_{1 << power}": partial(_lookup, 1 << power) for power in range(MOST_LOOKED_UP.bit_length())
}
