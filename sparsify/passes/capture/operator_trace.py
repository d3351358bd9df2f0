"""The operators of a captured graph as plain data, for the comparison of two captures of one model.

In: `%v = view(%x, [s0, 12])` of a graph for calls with `s0` rows, 2 or more. Out: a `Trace` with the step `view`, its
arguments and the shape of its result as formulas of extents; `sizes_of_one(general, special)` when the capture of a
call with one row has equal steps once `s0` is 1, so that the graph holds for one row, too.

Export treats an extent of 1 as a constant: comparisons with 1 in the model's code, squeezed modes and broadcasts are
decided without a guard. A graph captured for 2 rows or more is valid for 1 row only if a capture of such a call has the
same operators, arguments and shapes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from sparsify.passes.capture.guards import Holds
from sparsify.passes.graph.operators import is_mutating

# Classes of arguments that are compared as values.
PLAIN: Final = (bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
SYMBOLS: Final = torch.SymInt | torch.SymFloat | torch.SymBool
ASSERTIONS: Final = frozenset(("aten::_assert_scalar", "aten::sym_constrain_range_for_size"))


class UncomparedError(Exception):
    """An argument or a result is of a class that is not compared."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an earlier step, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a graph.

    Attributes:
        target: the called function, the name of an attribute, or the number of an input.
        arguments: leaves of the arguments: results of steps, plain values and formulas of extents.
        tree: structure of the arguments.
        values: dtype, layout, device and extents of each resulting tensor; other results as they are.
    """

    target: Any
    arguments: tuple[Any, ...]
    tree: Any
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The operators of a graph in order; numbers computed from extents are formulas in the arguments of their readers.

    Attributes:
        extents: extents of each input, as numbers and formulas.
        steps: inputs, attributes, operators and the output.
        holds: shape guard of the graph.
        names: extents of each input by name, as in `Captured.extents`.
    """

    extents: tuple[tuple[Any, ...], ...]
    steps: tuple[Step, ...]
    holds: Holds | None
    names: tuple[tuple[int | str, ...], ...]


def trace_of(graph: fx.Graph, holds: Holds | None, names: Sequence[tuple[int | str, ...]]) -> Trace | None:
    """The operators of a captured graph; None for a graph with an argument of another class."""
    numbers: dict[fx.Node, Result] = {}
    steps: list[Step] = []
    extents: list[tuple[Any, ...]] = []
    is_pure = not any(map(is_mutating, graph.nodes))
    try:
        for node in graph.nodes:
            if is_of_extents(node):
                continue
            if is_pure and node.target is torch.ops.aten.contiguous.default and node.args[0] in numbers:
                numbers[node] = numbers[node.args[0]]  # equal values; modes of extent 1 may have any stride
                continue
            leaves, tree = pytree.tree_flatten((node.args, dict(node.kwargs)))
            if node.op == "placeholder":
                extents.append(described(node.meta.get("val"))[-1])
                leaves, target = [], len(extents)
            else:
                target = node.target
            arguments = tuple([argument(leaf, numbers) for leaf in leaves])
            values = tuple([described(value) for value in pytree.tree_leaves(node.meta.get("val"))])
            numbers[node] = Result(len(steps))
            steps.append(Step(target, arguments, tree, values if node.op != "output" else ()))
    except UncomparedError:
        return None
    return Trace(tuple(extents), tuple(steps), holds, tuple(names))


def is_of_extents(node: fx.Node) -> bool:
    """Whether a node computes a number from extents, or asserts one: its readers have the formula."""
    if node.op != "call_function":
        return False
    value = node.meta.get("val")
    is_assertion = getattr(getattr(node.target, "_schema", None), "name", "") in ASSERTIONS
    return isinstance(value, SYMBOLS) or (is_assertion and not node.users)


def argument(leaf: Any, numbers: Mapping[fx.Node, Result]) -> Any:
    """A leaf of the arguments of a step.

    Raises:
        UncomparedError: the class of the leaf is not compared.
    """
    if isinstance(leaf, fx.Node):
        found = numbers.get(leaf)
        return formula(leaf.meta["val"]) if found is None else found
    if isinstance(leaf, PLAIN):
        return leaf
    if isinstance(leaf, slice):
        return "slice", *[argument(part, numbers) for part in (leaf.start, leaf.stop, leaf.step)]
    if isinstance(leaf, int | float | SYMBOLS):
        return formula(leaf)
    raise UncomparedError(type(leaf).__name__)


def described(value: Any) -> tuple[Any, ...]:
    """The dtype, layout, device and extents of a tensor; another value as formula.

    Raises:
        UncomparedError: the class of the value is not compared.
    """
    if not isinstance(value, torch.Tensor):
        return ("value", value if isinstance(value, PLAIN) else formula(value))
    return value.dtype, value.layout, value.device.type, tuple([formula(extent) for extent in value.shape])


def formula(number: Any) -> Any:
    """A number, or an expression of extents, as an expression of sympy.

    Raises:
        UncomparedError: the value is no number.
    """
    import sympy  # type: ignore[import-untyped]  # loaded by export

    if isinstance(number, SYMBOLS):
        node = number.node
        return node.shape_env.replace(node.expr)
    if isinstance(number, int | float):
        return sympy.sympify(number)
    raise UncomparedError(type(number).__name__)


@dataclass
class Correspondence:
    """The symbols of two captures of one model.

    Attributes:
        ones: values of the general capture's symbols that are numbers in the special one, by symbol.
        general: expressions of the general capture's extents by symbol of the special one.
        unbacked: unbacked symbols of the general capture by name.
    """

    ones: dict[Any, Any]
    general: dict[Any, Any]
    unbacked: dict[str, Any]

    def are_equal(self, general: Any, special: Any) -> bool:
        """Whether leaves of arguments, or descriptions of values, of both captures are equal."""
        import sympy

        if isinstance(general, tuple) and isinstance(special, tuple):
            return len(general) == len(special) and all(map(self.are_equal, general, special))
        if not (isinstance(general, sympy.Basic) and isinstance(special, sympy.Basic)):
            return type(general) is type(special) and general == special
        left, right = self.specialised(general), self.generalised(special)
        return bool(left == right or (left - right).expand() == 0)

    def specialised(self, expression: Any) -> Any:
        """An expression of the general capture with the numbers of the special one."""
        return expression.subs(self.ones)

    def generalised(self, expression: Any) -> Any:
        """An expression of the special capture in symbols of the general one."""
        for symbol in expression.free_symbols - self.general.keys():
            if (same := self.unbacked.get(symbol.name)) is not None:
                self.general[symbol] = same
        return expression.subs(self.general).subs(self.ones)


def sizes_of_one(general: Trace, special: Trace) -> tuple[frozenset[str], Holds | None] | None:
    """The names of extents that are 1 in a capture, where another capture is valid for 1, too; None where it is not.

    Args:
        general: capture of calls whose variable extents are 2 or more.
        special: capture of a call with some of these extents 1.

    Returns:
        The names in the general capture, and the shape guard of the special capture in these names.
    """
    symbols = correspondence(general, special)
    if symbols is None or len(general.steps) != len(special.steps):
        return None
    for one, other in zip(general.steps, special.steps, strict=True):
        if one.target != other.target or one.tree != other.tree:
            return None
        if not symbols.are_equal(one.arguments, other.arguments):
            return None
        if not symbols.are_equal(one.values, other.values):
            return None
    names: dict[str, str] = {}
    ones = set[str]()
    for name, other_name in pairs(general.names, special.names):
        if isinstance(name, str) and other_name == 1:
            ones.add(name)
        elif isinstance(name, str) and isinstance(other_name, str):
            names[other_name] = name
    holds = special.holds
    if holds is None:
        return frozenset(ones), None
    if not holds.names.keys() <= names.keys():
        return None
    return frozenset(ones), Holds(holds.text, {names[name]: text for name, text in holds.names.items()})


def correspondence(general: Trace, special: Trace) -> Correspondence | None:
    """The symbols of two captures by the places of extents; None where no call fits both."""
    found = Correspondence({}, {}, {})
    for extent, other in pairs(general.extents, special.extents):
        if not extent.is_Symbol and not other.is_Symbol:
            continue
        if other.is_Symbol:
            if found.general.setdefault(other, extent) != extent:
                return None
        elif extent.is_Symbol and (other != 1 or found.ones.setdefault(extent, other) != other):
            return None
    for extent, other in pairs(general.extents, special.extents):
        if not found.are_equal(extent, other):
            return None
    values = [
        expression for step in general.steps for expression in expressions((step.arguments, step.values))
    ]
    found.unbacked = {
        symbol.name: symbol
        for expression in values
        for symbol in expression.free_symbols
        if symbol.name.startswith("u")
    }
    return found


def pairs(general: Sequence[Sequence[Any]], special: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, Any]]:
    """The extents of two captures at equal places; calls of one kind have equal numbers of modes."""
    for extents, others in zip(general, special, strict=True):
        yield from zip(extents, others, strict=True)


def expressions(value: Any) -> Iterator[Any]:
    """The expressions of extents in the leaves of a step."""
    import sympy

    if isinstance(value, tuple):
        for part in value:
            yield from expressions(part)
    elif isinstance(value, sympy.Basic):
        yield value
