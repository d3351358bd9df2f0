"""A node in the view of an operator table row: arguments by name, accesses by index variables.

In: `%y = linear(%x, %w, %b)`, x [4, 3], w [5, 3]. Out: `view.out == ("i0", "i1")`, `view.at(view["bias"], ["i1"])` is
`"b[i1]"`.
"""

from collections.abc import Sequence
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Expr
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.program.model import ModelProgram, Refusal, Size, size_of, sizes_of


class OperatorView:
    """A node to be translated by a row.

    Args:
        program: program that gets the statements.
        node: node that calls the operator.
        value: fake value of the result, for a node with several results.
        at: node of the result, for a node with several results.

    Attributes:
        out: an index variable for each mode of the result.
    """

    def __init__(
        self,
        program: ModelProgram,
        node: fx.Node,
        value: torch.Tensor | None = None,
        at: fx.Node | None = None,
    ) -> None:
        self.program, self.node, self.result = program, node, at or node
        self.value: torch.Tensor = node.meta["val"] if value is None else value
        self.sizes = sizes_of(self.value)
        self.out = tuple(program.index(size) for size in self.sizes)
        self.name = operator_name(node)
        self.arguments = arguments_of(node)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __contains__(self, name: str) -> bool:
        return self.arguments.get(name) is not None

    def get(self, *names: str, default: Any = None) -> Any:
        """The first present argument out of some names, or the default."""
        return next((self.arguments[name] for name in names if name in self), default)

    def number(self, name: str, default: Any = None) -> Any:
        """An argument that must be a constant of the graph.

        Raises:
            Refusal: a node computes the argument.
        """
        value = self.get(name, default=default)
        if isinstance(value, fx.Node | torch.SymInt | torch.SymFloat):
            raise Refusal(f"{name} is computed")
        return value

    @staticmethod
    def shape(tensor: fx.Node) -> tuple[Size, ...]:
        """The extents of a tensor."""
        return sizes_of(tensor.meta["val"])

    def rank(self, tensor: fx.Node) -> int:
        """The number of modes of a tensor."""
        return len(self.shape(tensor))

    def mode(self, tensor: fx.Node, name: str = "dim", default: int = -1) -> int:
        """A mode of a tensor named by an argument, counted from the front."""
        return int(self.number(name, default)) % max(1, self.rank(tensor))

    def index(self, extent: Any) -> str:
        """A new index variable."""
        return self.program.index(extent if not isinstance(extent, torch.SymInt) else size_of(extent))

    def require_equal(self, *pairs: tuple[Size, Size]) -> None:
        """Records that extents are equal whenever the operator is valid, even if export does not know.

        Raises:
            Refusal: the extents are different numbers.
        """
        for first, second in pairs:
            if isinstance(first, int) and isinstance(second, int) and first != second:
                raise Refusal(f"extents {first} and {second} do not fit")
            self.program.unite(first, second)

    def at(self, tensor: Any, names: Sequence[str] | None = None) -> str:
        """A tensor accessed at some indices, without its modes of extent 1; a number is unchanged.

        Args:
            names: index variable or expression for each mode, broadcast from the last one; by default the result's.

        Raises:
            Refusal: neither a tensor nor a constant of the graph.
        """
        if isinstance(tensor, bool | int | float):
            return literal(tensor)
        if not isinstance(tensor, fx.Node) or not isinstance(tensor.meta.get("val"), torch.Tensor):
            raise Refusal(f"{tensor} is no tensor")
        name, shape = self.program.leaf(tensor), self.shape(tensor)
        indices = list(self.out if names is None else names)[-len(shape) or len(self.out) :]
        if len(indices) < len(shape):
            raise Refusal(f"{name} has more modes than the result")
        long_indices = [index for index, size in zip(indices, shape, strict=True) if size != 1]
        return f"{name}[{', '.join(long_indices)}]" if long_indices else name

    def at_entry(self, argument: Any) -> str:
        """An operand of an entrywise operator; records that extents not broadcast are equal."""
        if isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.Tensor):
            pairs = zip(reversed(self.shape(argument)), reversed(self.sizes), strict=False)
            self.require_equal(*[pair for pair in pairs if 1 not in pair])
        return self.at(argument)

    def let(self, suffix: str, names: Sequence[str], text: str) -> str:
        """Adds an auxiliary statement before the result and returns its access."""
        long_names = tuple([name for name in names if self.program.extents[name] != 1])
        name = f"{self.result.name}_{suffix}"
        while name in self.program.source:
            name += "_"
        self.program.assign(
            name, long_names, parse_expression(text, indices=self.program.extents), self.result
        )
        return f"{name}[{', '.join(long_names)}]" if long_names else name

    def call(self, tensor: Any, letter: str) -> None:
        """Sets the textbook letter of a tensor, of the base tensor for a view."""
        name = tensor.name if isinstance(tensor, fx.Node) else str(tensor).partition("[")[0]
        while name in self.program.statements:
            value = self.program.statements[name].value
            if not isinstance(value, Access):
                break
            name = value.tensor
        self.program.letters[name] = letter

    def reduce(self, monoid: str, names: Sequence[str], text: str) -> str:
        """`monoid(names, text)` over the index variables with more than one coordinate."""
        long_names = [name for name in names if self.program.extents[name] != 1]
        return f"{monoid}({', '.join(long_names)}, {text})" if long_names else text

    def count(self, names: Sequence[str]) -> str:
        """The number of coordinates of some index variables together, `extent(i) * extent(j)`.

        Raises:
            Refusal: the count is 0: a mean of nothing is NaN, a sum of nothing the fill.
        """
        long_names = [name for name in names if self.program.extents[name] != 1]
        if any(self.program.extents[name] == 0 for name in long_names):
            raise Refusal("a mean of no entries")
        return " * ".join(f"extent({name})" for name in long_names) or "1"

    def expression(self, text: str) -> Expr:
        """A text as a node."""
        return parse_expression(text, indices=self.program.extents)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node, named by the operator's schema or signature, defaults included."""
    target = node.target
    if isinstance(target, FunctionType):
        bound = signature(target).bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
    if not isinstance(target, torch._ops.OpOverload):
        return dict(enumerate(node.args)) | dict(node.kwargs)  # type: ignore[return-value]
    schema = target._schema.arguments
    arguments = {item.name: item.default_value for item in schema if item.has_default_value()}
    arguments |= {item.name: value for item, value in zip(schema, node.args, strict=False)}
    return arguments | dict(node.kwargs)


def literal(value: float | bool) -> str:
    """A number in index notation."""
    if isinstance(value, bool):
        return str(value)
    text = "inf" if value in (float("inf"), float("-inf")) else repr(abs(value))
    if value != value:
        return "nan"
    return f"(-{text})" if value < 0 or text.startswith("-") else text
