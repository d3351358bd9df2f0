"""Helper functions of plain arithmetic, on scalars and on vectors.

In: `max` of `float32x8`. Out: the C++ text of `max_float32x8(x, y)`; NaN if an operand is NaN, as in torch.

The same text serves scalars and vectors: comparisons of vectors give masks and `?:` selects lane by lane.
"""

from collections.abc import Sequence
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE
from sparsify.compiler.loops import nodes

IDENTITIES: Final[dict[str, float]] = {"add": 0.0, "mul": 1.0, "min": float("inf"), "max": -float("inf")}
# Marks kernels with calls of C library functions for each lane.
LANE_BY_LANE: Final = "result[lane] = "


# Instruction set with the bounding instruction for vectors of a size; vectors of 64 bytes can mask lanes.
FEATURES: Final = {32: "__AVX__", 64: "__AVX512F__"}
MASKED_BYTES: Final = 64


def define(unit: Unit, name: str, dtype: str, lanes: int, arguments: str, body: Sequence[str]) -> str:
    """The function `name` with arguments of one type; `body` holds the lines of the function body."""
    value = unit.type(dtype, lanes)
    parameters = ", ".join(f"{value} {argument}" for argument in arguments.split())
    lines = [f"{INLINE}{value} {name}_{types.suffix(dtype, lanes)}({parameters}) {{"]
    return "\n".join([*lines, *(f"  {line}" for line in body), "}"])


def identity(function: str, dtype: str) -> float | int:
    """The identity element of a reduction's function."""
    value = IDENTITIES[function]
    if types.is_float(dtype) or abs(value) <= 1:
        return value
    bits = 8 * types.BYTES[dtype] - 1
    return (1 << bits) - 1 if value > 0 else -(1 << bits)


def constant(unit: Unit, value: float, dtype: str, lanes: int) -> str:
    """`value` in every lane, as C++ text."""
    text = types.literal(value, dtype)
    if lanes == 1:
        return text
    vector = unit.type(dtype, lanes)
    zero = f"{vector}{{}}"
    # Not -0.0: only a subtraction preserves -0.0.
    return zero if text in ("0", "0.0", "0.0f") else f"{unit.use('broadcast', dtype, lanes)}({text})"


def _min(unit: Unit, dtype: str, lanes: int) -> str:
    return _most(unit, dtype, lanes, "min", "<", "at_most")


def _max(unit: Unit, dtype: str, lanes: int) -> str:
    return _most(unit, dtype, lanes, "max", ">", "at_least")


def _most(unit: Unit, dtype: str, lanes: int, name: str, sign: str, bounded: str) -> str:
    """Maximum or minimum, NaN if an operand is NaN; a vector accumulator in x is delayed by two instructions only."""
    if types.is_float(dtype) and _is_bounded_by_name(dtype, lanes):
        most = f"{unit.use(bounded, dtype, lanes)}(y, x)"
        return define(unit, name, dtype, lanes, "x y", [f"return y != y ? y : {most};"])
    test = f"(x {sign} y) | (x != x)" if types.is_float(dtype) else f"x {sign} y"
    return define(unit, name, dtype, lanes, "x y", [f"return {test} ? x : y;"])


def _is_bounded_by_name(dtype: str, lanes: int) -> bool:
    """Whether a builtin instruction bounds vectors of this type."""
    return lanes > 1 and lanes * types.BYTES[dtype] in FEATURES


def _bounded(name: str, sign: str, builtin: str) -> Template:
    """`at_least(bound, x)` and `at_most(bound, x)`: NaN for NaN in x; one instruction if the CPU has one."""

    def write(unit: Unit, dtype: str, lanes: int) -> str:
        plain = f"  return x {sign} bound ? bound : x;"
        lines = [plain]
        if _is_bounded_by_name(dtype, lanes):
            size = lanes * types.BYTES[dtype]
            form = f"__builtin_ia32_{builtin}{'ps' if dtype == 'float32' else 'pd'}{8 * size}"
            lines = [
                f"#if defined({FEATURES[size]})",
                f"  return {form}(bound, x);",
                "#else",
                plain,
                "#endif",
            ]
            if size == MASKED_BYTES:
                mask = "short" if dtype == "float32" else "char"
                every = f"{form}_mask(bound, x, {unit.type(dtype, lanes)}{{}}, (unsigned {mask})-1, 4)"
                lines = [
                    f"#if defined({FEATURES[size]}) && defined(__clang__)",
                    f"  return {form}(bound, x, 4);",
                    f"#elif defined({FEATURES[size]})",
                    f"  return {every};",
                    *lines[2:],
                ]
        value = unit.type(dtype, lanes)
        head = f"{INLINE}{value} {name}_{types.suffix(dtype, lanes)}({value} bound, {value} x) {{"
        return "\n".join([head, *lines, "}"])

    return write


def _relu(unit: Unit, dtype: str, lanes: int) -> str:
    # The order of operands keeps NaN; both compilers emit one max instruction.
    zero = constant(unit, 0, dtype, lanes)
    return define(unit, "relu", dtype, lanes, "x", [f"return x < {zero} ? {zero} : x;"])


def _abs(unit: Unit, dtype: str, lanes: int) -> str:
    if not types.is_float(dtype):
        zero = constant(unit, 0, dtype, lanes)
        negative = "-x" if lanes > 1 else f"({types.ELEMENTS[dtype]})-x"
        return define(unit, "abs", dtype, lanes, "x", [f"return x < {zero} ? {negative} : x;"])
    if lanes == 1:
        return define(unit, "abs", dtype, lanes, "x", [f"return __builtin_fabs{float_suffix(dtype)}(x);"])
    integer = types.integer_as_wide(dtype)
    bits = unit.type(integer, lanes)
    largest = 2 ** (types.BYTES[dtype] * 8 - 1) - 1
    body = [
        f"return ({types.spelling(dtype, lanes)})(({bits})x & {constant(unit, largest, integer, lanes)});"
    ]
    return define(unit, "abs", dtype, lanes, "x", body)


def _sign(unit: Unit, dtype: str, lanes: int) -> str:
    zero, one = constant(unit, 0, dtype, lanes), constant(unit, 1, dtype, lanes)
    minus = constant(unit, -1, dtype, lanes)
    # torch gives 0 for NaN.
    return define(
        unit, "sign", dtype, lanes, "x", [f"return x > {zero} ? {one} : (x < {zero} ? {minus} : {zero});"]
    )


def _detach(unit: Unit, dtype: str, lanes: int) -> str:
    return define(unit, "detach", dtype, lanes, "x", ["return x;"])


def _square(unit: Unit, dtype: str, lanes: int) -> str:
    return define(unit, "square", dtype, lanes, "x", [f"return {narrow('x * x', dtype, lanes)};"])


def _reciprocal(unit: Unit, dtype: str, lanes: int) -> str:
    return define(unit, "reciprocal", dtype, lanes, "x", [f"return {constant(unit, 1, dtype, lanes)} / x;"])


def _heaviside(unit: Unit, dtype: str, lanes: int) -> str:
    zero, one = constant(unit, 0, dtype, lanes), constant(unit, 1, dtype, lanes)
    # torch gives 0 for NaN.
    line = f"return x == {zero} ? y : (x > {zero} ? {one} : {zero});"
    return define(unit, "heaviside", dtype, lanes, "x y", [line])


def _floordiv(unit: Unit, dtype: str, lanes: int) -> str:
    if types.is_float(dtype):
        floor = unit.use("floor", dtype, lanes)
        return define(unit, "floordiv", dtype, lanes, "x y", [f"return {floor}(x / y);"])
    value = unit.type(dtype, lanes)
    # Division truncates; for different signs and a remainder the floor is one less.
    body = [f"const {value} quotient = {narrow('x / y', dtype, lanes)};"]
    if lanes > 1:
        body.append(f"return quotient + ((quotient * y != x) & ((x ^ y) < {value}{{}}));")
    else:
        body.append(f"return {narrow('quotient - (quotient * y != x && (x ^ y) < 0)', dtype, lanes)};")
    return define(unit, "floordiv", dtype, lanes, "x y", body)


def _mod(unit: Unit, dtype: str, lanes: int) -> str:
    """The remainder with the sign of the divisor, as in torch and Python."""
    value = unit.type(dtype, lanes)
    zero = constant(unit, 0, dtype, lanes)
    if types.is_float(dtype):
        rest = f"{unit.use('fmod', dtype, lanes)}(x, y)"
        test = f"(rest != {zero}) & ((rest < {zero}) != (y < {zero}))"
    else:
        # The remainder is 0 by 0, where a division traps, and by -1, where the least integer would trap.
        unit_ = constant(unit, 1, dtype, lanes)
        divisor = f"((y == {zero}) | (y == {constant(unit, -1, dtype, lanes)}) ? {unit_} : y)"
        rest = narrow(f"x % {divisor}", dtype, lanes)
        test = f"(rest != {zero}) & ((rest ^ y) < {zero})"
    sum_ = narrow("rest + y", dtype, lanes)
    return define(
        unit, "mod", dtype, lanes, "x y", [f"const {value} rest = {rest};", f"return {test} ? {sum_} : rest;"]
    )


def narrow(text: str, dtype: str, lanes: int) -> str:
    """`text` cast back to a small integer type, because C++ computes in `int`."""
    return f"({types.ELEMENTS[dtype]})({text})" if lanes == 1 and dtype in ("int8", "int16") else text


def float_suffix(dtype: str) -> str:
    """The suffix of C functions for a dtype: `f` for float."""
    return "f" if dtype == "float32" else ""


def lanewise(name: str, builtin: str, arguments: str) -> Template:
    """The template of a function of the C library, called lane by lane."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        call = f"__builtin_{builtin}{float_suffix(dtype)}"
        names = arguments.split()
        if lanes == 1:
            return define(unit, name, dtype, lanes, arguments, [f"return {call}({', '.join(names)});"])
        operands = ", ".join(f"{argument}[lane]" for argument in names)
        loop = f"for (int lane = 0; lane < {lanes}; ++lane) {LANE_BY_LANE}{call}({operands});"
        body = [f"{unit.type(dtype, lanes)} result{{}};", loop, "return result;"]
        return define(unit, name, dtype, lanes, arguments, body)

    return template


def _rounding(name: str, builtin: str) -> Template:
    """The template of a rounding to integers; the identity for integer types."""
    of_floats = lanewise(name, builtin, "x")

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        if types.is_float(dtype):
            return of_floats(unit, dtype, lanes)
        return define(unit, name, dtype, lanes, "x", ["return x;"])

    return template


def power_of_two(divisor: nodes.Expr, type: nodes.Type) -> int | None:
    """The exponent of an integer divisor that is a constant power of two, else `None`."""
    match divisor:
        case nodes.Literal(value, _) if type.dtype in ("int32", "int64") and value > 0:
            power = int(value).bit_length() - 1
            return power if 2**power == value else None
    return None


TEMPLATES: Final[dict[str, Template]] = {
    "min": _min,
    "max": _max,
    "at_least": _bounded("at_least", "<", "max"),
    "at_most": _bounded("at_most", ">", "min"),
    "relu": _relu,
    "abs": _abs,
    "sign": _sign,
    "square": _square,
    "detach": _detach,
    "reciprocal": _reciprocal,
    "heaviside": _heaviside,
    "floordiv": _floordiv,
    "mod": _mod,
    # Half to even, the default rounding mode of processes.
    "round": _rounding("round", "nearbyint"),
    "floor": _rounding("floor", "floor"),
    "ceil": _rounding("ceil", "ceil"),
    "trunc": _rounding("trunc", "trunc"),
    "sqrt": lanewise("sqrt", "sqrt", "x"),
    "root": lanewise("root", "sqrt", "x"),
    "fmod": lanewise("fmod", "fmod", "x y"),
}
