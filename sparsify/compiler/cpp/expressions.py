"""Expressions of loop IR as C++ text.

In: `fma(A_vals[p], T_vals[j * k_extent ..8], w_0)`. Out:
`A_vals[p] * load_float32x8(&T_vals[j * k_extent]) + w_0`.
"""

from dataclasses import dataclass, field
from typing import Final

from sparsify.compiler.cpp import random_numbers, register_tables
from sparsify.compiler.cpp.helpers import complex_numbers, types, wide
from sparsify.compiler.cpp.helpers.arithmetic import constant, identity, narrow, power_of_two
from sparsify.compiler.cpp.helpers.bits import is_expanded_wide
from sparsify.compiler.cpp.helpers.unit import Unit
from sparsify.compiler.ir.dtypes import REAL, STORED_HALVES
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import type_of

SELECT, OR, AND, BIT_OR, BIT_XOR, BIT_AND, EQUALITY, RELATION, SHIFT, SUM, PRODUCT, PREFIX, ATOM = range(
    2, 15
)

INFIX: Final = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}
COMPARISONS: Final = {
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
    "lt": ("<", RELATION),
    "le": ("<=", RELATION),
    "gt": (">", RELATION),
    "ge": (">=", RELATION),
}
LOGIC: Final = {"logical_and": ("&&", AND), "logical_or": ("||", OR), "logical_xor": ("!=", EQUALITY)}
MASK_LOGIC: Final = {
    "logical_and": ("&", BIT_AND),
    "logical_or": ("|", BIT_OR),
    "logical_xor": ("^", BIT_XOR),
}

Text = tuple[str, int]


def within(text: Text, precedence: int) -> str:
    """The text, in parentheses if the operator binds less tightly than `precedence`."""
    return text[0] if text[1] >= precedence else f"({text[0]})"


@dataclass
class Expressions:
    """Writer of expressions; knows the dtypes of buffers and the widths of masks in variables."""

    unit: Unit
    names: dict[str, str]
    buffers: dict[str, str] = field(default_factory=dict)
    masks: dict[str, int] = field(default_factory=dict)
    loaded: dict[str, nodes.Load] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """The C++ name of a variable or a buffer."""
        return self.names[name]

    def fresh(self, name: str) -> str:
        """A name like `name`, unused by variables and buffers."""
        taken = self.names.values()
        while name in taken:
            name += "_"
        return name

    def text(self, expr: nodes.Expr) -> str:
        """`expr` without parentheses, for a context of lowest precedence."""
        return self.write(expr)[0]

    def index(self, expr: nodes.Expr) -> str:
        """`expr` as an index or an integer bound, implicitly widened by C++."""
        match expr:
            case nodes.Convert(value, nodes.Type("int64", 1)) if type_of(value).dtype in (
                "int8",
                "int16",
                "int32",
            ):
                return self.text(value)
        return self.text(expr)

    def type(self, type: nodes.Type, mask: int = 0) -> str:
        """The C++ type; a vector of bool is a mask of `mask` bytes a lane."""
        if type.dtype == "bool" and type.lanes > 1:
            return self.unit.type(types.MASKS[mask or 1], type.lanes)
        return self.unit.type(type.dtype, type.lanes)

    def address(self, buffer: str, index: nodes.Expr) -> str:
        """The address of `buffer[index]`."""
        match index:
            case nodes.Literal(0, _):
                return self.name(buffer)
        return f"&{self.name(buffer)}[{self.index(index)}]"

    def mask_bytes(self, expr: nodes.Expr) -> int:
        """Bytes of a lane of the cheapest mask for `expr`; 0 if any width costs the same."""
        match expr:
            case nodes.Var(name, _):
                return self.masks[name]
            case nodes.Op(name, args, _):
                if name in COMPARISONS and type_of(args[0]).dtype != "bool":
                    return types.BYTES[type_of(args[0]).dtype]
                conditions = args if name != "where" else args[1:]
                return max(self.mask_bytes(arg) for arg in conditions)
            case nodes.Convert(value, _):
                return types.BYTES[type_of(value).dtype]
            case nodes.Load() | nodes.Gather() | nodes.Expand():
                return 1
        return 0

    def write(self, expr: nodes.Expr) -> Text:
        """The text of `expr` and the precedence of its operator."""
        type = type_of(expr)
        if type.dtype == "bool" and type.lanes > 1:
            return self.mask(expr, self.mask_bytes(expr) or 1)
        match expr:
            case nodes.Var(name, _):
                return self.name(name), ATOM
            case nodes.Literal(value, _):
                text = constant(self.unit, value, type.dtype, type.lanes)
                return text, PREFIX if text.startswith("-") else ATOM
            case nodes.Op():
                return self._operation(expr)
            case nodes.Convert(value, _):
                return self._convert(value, type)
            case nodes.Broadcast(value, _):
                if type.lanes == 1:
                    return self.write(value)
                return f"{self.unit.use('broadcast', type.dtype, type.lanes)}({self.text(value)})", ATOM
            case nodes.Lanes(start, _):
                if type.lanes == 1:
                    return self.write(start)
                lanes = ", ".join(str(lane) for lane in range(type.lanes))
                vector = self.unit.type(type.dtype, type.lanes)
                return f"{within(self.write(start), SUM)} + {vector}{{{lanes}}}", SUM
            case nodes.Load():
                return self._load_as(expr, type.dtype)
            case nodes.Gather():
                return self._gather_as(expr, type.dtype)
            case nodes.Horizontal():
                return self._horizontal(expr)
            case nodes.Bits(buffer, index, count, first):
                word = f"{self.unit.use('bits', 'int8', count)}({self.address(buffer, index)})"
                return (word, ATOM) if count >= 8 else (f"{word} >> {first} & {2**count - 1}", BIT_AND)
            case nodes.Expand():
                return self._expand(expr, "expand", type)
        raise AssertionError(f"unknown expression {expr!r}")

    # Scalars and vectors of numbers

    def _operation(self, expr: nodes.Op) -> Text:
        name, args, type = expr.function, expr.args, expr.type
        if name in INFIX:
            symbol, precedence = INFIX[name]
            left, right = self._operands(args)
            # Only integers may be regrouped: rounding depends on the order.
            regroup = name in ("add", "mul") and type.dtype.startswith("int")
            after = precedence if regroup else precedence + 1
            return self._narrow(
                f"{within(left, precedence)} {symbol} {within(right, after)}", precedence, type
            )
        if name == "fma":
            left, right = self._operands(args[:2])
            product = f"{within(left, PRODUCT)} * {within(right, PRODUCT + 1)}"
            return self._narrow(f"{product} + {within(self.write(args[2]), SUM + 1)}", SUM, type)
        if name == "neg":
            return self._narrow(f"-{within(self.write(args[0]), PREFIX + 1)}", PREFIX, type)
        if name == "where":
            return self._where(args, type)
        if name in COMPARISONS:
            symbol, precedence = COMPARISONS[name]
            left, right = self._operands(args)
            return f"{within(left, precedence + 1)} {symbol} {within(right, precedence + 1)}", precedence
        if name in LOGIC:
            symbol, precedence = LOGIC[name]
            above = precedence + (name == "logical_xor")
            return (
                f"{within(self.write(args[0]), above)} {symbol} {within(self.write(args[1]), above)}",
                precedence,
            )
        if name == "logical_not":
            return f"!{within(self.write(args[0]), PREFIX)}", PREFIX
        if name == "lookup":
            return register_tables.call(self.unit, self.text, self.loaded, expr), ATOM
        if name == "uniform":
            return random_numbers.call(self.unit, self.text, expr), ATOM
        power = power_of_two(args[1], type) if name in ("floordiv", "mod") else None
        if power is not None:
            return self._by_power(name, args[0], power)
        helper = self.unit.use(name, type_of(args[0]).dtype, type.lanes)
        return f"{helper}({', '.join(self.text(arg) for arg in args)})", ATOM

    def _operands(self, args: tuple[nodes.Expr, ...]) -> tuple[Text, Text]:
        """Two operands; a broadcast next to a vector is written as a scalar, broadcast by C++."""
        left, right = args
        if type_of(left).lanes > 1 and types.BYTES[type_of(left).dtype] >= 4:
            if isinstance(right, nodes.Broadcast) and not isinstance(left, nodes.Broadcast):
                return self.write(left), self.write(right.value)
            if isinstance(left, nodes.Broadcast) and not isinstance(right, nodes.Broadcast):
                return self.write(left.value), self.write(right)
        return self.write(left), self.write(right)

    def _narrow(self, text: str, precedence: int, type: nodes.Type) -> Text:
        cast = narrow(text, type.dtype, type.lanes)
        return cast, precedence if cast == text else PREFIX

    def _where(self, args: tuple[nodes.Expr, ...], type: nodes.Type) -> Text:
        condition, first, second = args
        if type.lanes == 1:
            test = self.write(condition)
        else:
            test = self.mask(condition, types.BYTES[type.dtype])
        if (
            isinstance(condition, nodes.LaneBits)
            and second == nodes.Literal(0, type)
            and type.dtype in types.FLOATS
        ):
            # g++ compares the mask with zero before it selects.
            words = self.unit.type(types.MASKS[types.BYTES[type.dtype]], type.lanes)
            kept = f"({words}){within(self.write(first), PREFIX)} & {within(test, BIT_AND + 1)}"
            return f"({self.unit.type(type.dtype, type.lanes)})({kept})", PREFIX
        chosen = f"{within(self.write(first), OR)} : {within(self.write(second), OR)}"
        return f"{within(test, OR)} ? {chosen}", SELECT

    def _by_power(self, name: str, value: nodes.Expr, power: int) -> Text:
        """Floor division by `2 ** power` as a shift, the remainder as a mask, for negative numbers too."""
        left = self.write(value)
        if name == "floordiv":
            return f"{within(left, SHIFT)} >> {power}", SHIFT
        return f"{within(left, EQUALITY)} & {2**power - 1}", BIT_AND

    def _convert(self, value: nodes.Expr, type: nodes.Type) -> Text:
        source = type_of(value)
        if source == type:
            return self.write(value)
        if isinstance(value, nodes.Expand) and is_expanded_wide(source.dtype, type.dtype, type.lanes):
            return self._expand(value, f"expand_{source.dtype}", type)
        if type.dtype in STORED_HALVES or source.dtype in STORED_HALVES:
            half, helper = (type, "narrow") if type.dtype in STORED_HALVES else (source, "widen")
            return f"{self.unit.use(helper, half.dtype, half.lanes)}({self.text(value)})", ATOM
        if (source.dtype in REAL or type.dtype in REAL) and type.dtype != "bool":
            if source.dtype in REAL and type.dtype in REAL:
                complex_numbers.declare_conversion(self.unit, source.dtype, type.dtype)
            return complex_numbers.converted(self.text(value), source.dtype, type.dtype), ATOM
        if type.lanes == 1:
            if type.dtype == "bool":
                zero = types.literal(0, source.dtype) if source.dtype in REAL else "0"
                return f"{within(self.write(value), EQUALITY + 1)} != {zero}", EQUALITY
            return f"({types.ELEMENTS[type.dtype]}){within(self.write(value), PREFIX)}", PREFIX
        if wide.is_widened(source.dtype, type.dtype, type.lanes):
            return wide.converted(self.unit, self.text(value), type.dtype), ATOM
        vector = self.unit.type(type.dtype, type.lanes)
        text = f"{within(self.write(value), BIT_AND)} & 1" if source.dtype == "bool" else self.text(value)
        return f"__builtin_convertvector({text}, {vector})", ATOM

    def _expand(self, expr: nodes.Expand, helper: str, type: nodes.Type) -> Text:
        address, bits = self.address(expr.buffer, expr.index), self.text(expr.bits)
        at, end = self.index(expr.index), self.index(expr.end)
        if type.dtype == "int8" and expr.type.dtype == "bool":
            address = f"(const int8_t *){address}"
        return f"{self.unit.use(helper, type.dtype, type.lanes)}({address}, {bits}, {at}, {end})", ATOM

    def _load_as(self, expr: nodes.Load, dtype: str) -> Text:
        """A load; a vector of bool is loaded as `dtype` int8."""
        lanes, count = expr.type.lanes, _open(expr.count, expr.type.lanes)
        if lanes == 1:
            element = f"{self.name(expr.buffer)}[{self.index(expr.index)}]"
            if count is None:
                return element, ATOM
            zero = types.literal(0, dtype)
            return f"{within(self.write(count), RELATION + 1)} > 0 ? {element} : {zero}", SELECT
        address = self.address(expr.buffer, expr.index)
        if dtype != expr.type.dtype:
            address = f"(const int8_t *){address}"
        if count is None:
            return f"{self.unit.use('load', dtype, lanes)}({address})", ATOM
        return f"{self.unit.use('load_part', dtype, lanes)}({address}, {self.index(count)})", ATOM

    def _gather_as(self, expr: nodes.Gather, dtype: str) -> Text:
        type, count = expr.type, _open(expr.count, expr.type.lanes)
        if type.lanes == 1:
            return self._load_as(nodes.Load(expr.buffer, expr.indices, type, count), dtype)
        base, indices = _from_base(expr.indices)
        address = self.address(expr.buffer, base)
        if dtype != type.dtype:
            address = f"(const int8_t *){address}"
        source = self.loaded.get(indices.name) if isinstance(indices, nodes.Var) else None
        if source is not None and _open(source.count, type.lanes) == count:
            lies = self.address(source.buffer, source.index)
            if count is None:
                return f"{self.unit.use('gather', dtype, type.lanes)}({address}, {lies})", ATOM
            helper = self.unit.use("gather_part_from", dtype, type.lanes)
            return f"{helper}({address}, {lies}, {self.index(count)})", ATOM
        found = self.text(unwidened(indices))
        if count is None:
            return f"{self.unit.use('gather', dtype, type.lanes)}({address}, {found})", ATOM
        helper = self.unit.use("gather_part", dtype, type.lanes)
        return f"{helper}({address}, {found}, {self.index(count)})", ATOM

    def _horizontal(self, expr: nodes.Horizontal) -> Text:
        source = type_of(expr.value)
        count = _open(expr.count, source.lanes)
        if source.dtype == "bool":
            return self._any_or_all(expr, count)
        rest = identity(expr.function, source.dtype)
        if source.lanes == 1:
            if count is None:
                return self.write(expr.value)
            value = nodes.Op("where", (nodes.Op("gt", (count, nodes.Literal(0, type_of(count))), nodes.BOOL),
                                       expr.value, nodes.Literal(rest, source)), source)  # fmt: skip
            return self.write(value)
        text = self.text(expr.value)
        if count is not None:
            keep = self.unit.use("keep", source.dtype, source.lanes)
            text = f"{keep}({text}, {self.index(count)}, {constant(self.unit, rest, source.dtype, source.lanes)})"
        return f"{self.unit.use(f'reduce_{expr.function}', source.dtype, source.lanes)}({text})", ATOM

    def _any_or_all(self, expr: nodes.Horizontal, count: nodes.Expr | None) -> Text:
        """Reduction of a mask: any lane true, or all lanes true."""
        lanes, is_or = type_of(expr.value).lanes, expr.function == "logical_or"
        if lanes == 1:
            return self.write(expr.value)
        width = self.mask_bytes(expr.value) or 1
        mask, dtype = self.mask(expr.value, width), types.MASKS[width]
        text = mask[0] if is_or else f"~{within(mask, PREFIX)}"
        if count is not None:
            keep = self.unit.use("keep", dtype, lanes)
            text = f"{keep}({text}, {self.index(count)}, {constant(self.unit, 0, dtype, lanes)})"
        found = f"{self.unit.use('any', dtype, lanes)}({text})"
        return (found, ATOM) if is_or else (f"!{found}", PREFIX)

    # Masks

    def mask(self, expr: nodes.Expr, width: int) -> Text:
        """A vector of bool as a mask of `width` bytes a lane."""
        natural = self.mask_bytes(expr) or width
        lanes = type_of(expr).lanes
        vector = self.unit.type(types.MASKS[width], lanes)
        match expr:
            case nodes.Literal(value, _):
                return constant(self.unit, -1 if value else 0, types.MASKS[width], lanes), ATOM
            case nodes.Broadcast(value, _):
                broadcast = self.unit.use("broadcast", types.MASKS[width], lanes)
                return (
                    f"{broadcast}(-({types.ELEMENTS[types.MASKS[width]]}){within(self.write(value), PREFIX)})",
                    ATOM,
                )
            case nodes.Op(name, args, _) if name in MASK_LOGIC:
                symbol, precedence = MASK_LOGIC[name]
                left, right = (within(self.mask(arg, width), precedence + 1) for arg in args)
                return f"{left} {symbol} {right}", precedence
            case nodes.Op("logical_not", (value,), _):
                return f"~{within(self.mask(value, width), PREFIX)}", PREFIX
            case nodes.Op("where", (condition, first, second), _):
                test, *parts = (within(self.mask(part, width), OR) for part in (condition, first, second))
                if width == 1:
                    # clang compares int8 to vectors of char, a different type.
                    parts = [f"({vector})({part})" for part in parts]
                return f"{test} ? {parts[0]} : {parts[1]}", SELECT
            case nodes.LaneBits(bits, _):
                return f"{self.unit.use('lanes_of_bits', types.MASKS[width], lanes)}({self.text(bits)})", ATOM
        text = self._natural_mask(expr, natural)
        return text if natural == width else (f"__builtin_convertvector({text[0]}, {vector})", ATOM)

    def _natural_mask(self, expr: nodes.Expr, width: int) -> Text:
        lanes = type_of(expr).lanes
        vector = self.unit.type(types.MASKS[width], lanes)
        match expr:
            case nodes.Var(name, _):
                return self.name(name), ATOM
            case nodes.Load():
                return f"{self._load_as(expr, 'int8')[0]} != {vector}{{}}", EQUALITY
            case nodes.Gather():
                return f"{self._gather_as(expr, 'int8')[0]} != {vector}{{}}", EQUALITY
            case nodes.Expand():
                words = self._expand(expr, "expand", nodes.Type("int8", lanes))[0]
                return f"{words} != {vector}{{}}", EQUALITY
            case nodes.Convert(value, _):
                if type_of(value).dtype == "bool":
                    return self.mask(value, width)
                zero = constant(self.unit, 0, type_of(value).dtype, lanes)
                return f"{within(self.write(value), EQUALITY + 1)} != {zero}", EQUALITY
            case nodes.Op(name, args, _) if name in COMPARISONS:
                symbol, precedence = COMPARISONS[name]
                if type_of(args[0]).dtype == "bool":
                    left, right = (self.mask(arg, width) for arg in args)
                else:
                    left, right = self._operands(args)
                return f"{within(left, precedence + 1)} {symbol} {within(right, precedence + 1)}", precedence
        raise AssertionError(f"no mask is known for {expr!r}")


def _open(count: nodes.Expr | None, lanes: int) -> nodes.Expr | None:
    """`count`, or `None` if all lanes are covered."""
    match count:
        case nodes.Literal(value, _) if value >= lanes:
            return None
    return count


def _from_base(indices: nodes.Expr) -> tuple[nodes.Expr, nodes.Expr]:
    """`i * extent + j -> i * extent, j` with one number for all lanes and a vector; 0 for other indices."""
    match indices:
        case nodes.Op("add", (nodes.Broadcast(base, _), others), _) | nodes.Op(
            "add", (others, nodes.Broadcast(base, _)), _
        ):
            return base, others
    return nodes.Literal(0, nodes.INT), indices


def unwidened(indices: nodes.Expr) -> nodes.Expr:
    """Vector indices before their conversion to int64: a gather takes any integers."""
    match indices:
        case nodes.Convert(value, nodes.Type("int64", _)) if type_of(value).dtype in (
            "int8",
            "int16",
            "int32",
        ):
            return value
    return indices
