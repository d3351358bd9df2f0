"""Biases by distance of key and query, as a vector over distances, not over all pairs.

In: `%d = sub(%j, %i); %b = permute(embedding(%table, abs(%d)), [2, 0, 1])`, [heads, queries, keys], `%i` and `%j`
counted along queries and keys.
Out: `%v = permute(embedding(%table, abs(arange(1 - queries, keys))), [1, 0])`, [heads, queries + keys - 1].

Biases of scores are of this kind: tables of buckets of distances, slopes times distances, windows.

Source: Raffel et al., Exploring the limits of transfer learning with T5, 2020, section 2.1; Press, Smith and Lewis,
ALiBi, 2022.
"""

import operator
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.passes.graph.constant_values import counted_mode
from sparsify.passes.graph.operators import COPIES, argument, operator_name, overwritten, tensor_value

aten = torch.ops.aten
# Of each entry alone; `min` and `max` are, of two tensors.
POINTWISE: Final = COPIES | {
    "__and__", "__or__", "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "clamp", "clamp_max",
    "clamp_min", "div", "eq", "exp", "floor", "ge", "gt", "le", "log", "logical_and", "logical_not", "logical_or",
    "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "sign", "sqrt", "sub", "tanh", "where",
}  # fmt: skip
OF_TWO: Final = ("min", "max")
FILLED: Final = ("full", "ones", "zeros")
# Comparisons of keys with queries as comparisons of distances with 0, and their reverses.
COMPARED: Final = {"le": "ge", "ge": "le", "lt": "gt", "gt": "lt", "eq": "eq", "ne": "ne"}
# The mode of queries, before the mode of keys, in a difference of both.
PAIRS: Final = -2


class Distances:
    """The tensors of a graph that depend on distances alone, as vectors over distances; memoized.

    Args:
        are_looked_for: whether the search is enabled; otherwise no tensor qualifies.
    """

    def __init__(self, graph: fx.Graph, *, are_looked_for: bool = True) -> None:
        self.are_looked_for = are_looked_for
        self.written = overwritten(graph)
        self.places: dict[fx.Node, int | None] = {}
        self.vectors: dict[fx.Node, fx.Node] = {}

    def mode(self, node: Any) -> int | None:
        """The mode of queries, counted from the end and followed by keys; `None` for other tensors."""
        if not self.are_looked_for or not isinstance(node, fx.Node) or tensor_value(node) is None:
            return None
        if node not in self.places:
            self.places[node] = None if node in self.written else self._mode(node)
        return self.places[node]

    def along(self, node: fx.Node) -> fx.Node:
        """The vector of a node over distances, from `1 - queries` to `keys - 1`, in place of both modes."""
        if node not in self.vectors:
            self.vectors[node] = self._along(node)
        return self.vectors[node]

    def _mode(self, node: fx.Node) -> int | None:
        name = operator_name(node)
        if _pair(node) is not None:
            return PAIRS
        if name == "embedding":
            inner = self.mode(node.args[1])
            return None if inner is None else inner - 1
        if name in ("permute", "unsqueeze"):
            return self._moved(node)
        if name not in POINTWISE and not (name in OF_TWO and len(node.args) == 2):
            return None
        modes = {self.mode(part) for part in node.all_input_nodes} - {None}
        if len(modes) != 1 or (name in OF_TWO and tensor_value(node.args[1]) is None):
            return None
        (mode,) = modes
        assert mode is not None, "what has no mode is left out"
        others = [part for part in node.all_input_nodes if self.mode(part) is None]
        return mode if all(_is_filled(part, mode) or _is_same(part, mode) for part in others) else None

    def _moved(self, node: fx.Node) -> int | None:
        """The mode of queries of a view."""
        base: Any = node.args[0]
        inner, value = self.mode(base), tensor_value(node)
        if inner is None or value is None:
            return None
        rank = base.meta["val"].dim()
        if operator_name(node) == "unsqueeze":
            at, queries = int(argument(node, 1, "dim")) % (rank + 1), rank + inner
            return None if at == queries + 1 else inner - int(at > queries + 1)
        modes = [mode % rank for mode in argument(node, 1, "dims")]
        at = modes.index(rank + inner)
        return at - rank if modes[at + 1 : at + 2] == [rank + inner + 1] else None

    def _along(self, node: fx.Node) -> fx.Node:
        row_mode, name = self.mode(node), operator_name(node)
        assert row_mode is not None, f"{node} is of distances"
        pair = _pair(node)
        if pair is not None:
            distances = self._distances(*pair, node)
            if name == "sub":
                return distances
            zero = getattr(aten, name if counted_mode(node.args[0]) == -1 else COMPARED[name]).Scalar
            return put_before(node, zero, (distances, 0))
        args = list(node.args)
        if name == "embedding":
            args[1] = self.along(node.args[1])  # type: ignore[arg-type]
        elif name in ("permute", "unsqueeze"):
            base: Any = args[0]
            rank, inner = base.meta["val"].dim(), self.mode(base)
            queries = rank + inner
            if name == "unsqueeze":
                at = int(argument(node, 1, "dim")) % (rank + 1)
                args = [self.along(base), at - int(at > queries)]
            else:
                modes = [mode % rank for mode in argument(node, 1, "dims")]
                args = [self.along(base), [m - int(m > queries) for m in modes if m != queries + 1]]
        else:
            return put_before(
                node, node.target, tuple(self._entry(part, node, row_mode) for part in args), node.kwargs
            )
        return put_before(node, node.target, tuple(args), node.kwargs)

    def _entry(self, part: Any, node: fx.Node, mode: int) -> Any:
        """An argument of an entrywise node, over distances."""
        value = tensor_value(part) if isinstance(part, fx.Node) else None
        if value is None:
            return part
        if self.mode(part) is not None:
            return self.along(part)
        if _is_filled(part, mode):
            name = operator_name(part)
            fill = argument(part, 1, "fill_value") if name == "full" else int(name == "ones")
            shape = [int(str(extent)) for extent in _along_shape(value, mode)]
            return put_before(
                node, aten.full.default, (shape, fill), {"dtype": value.dtype}, value.new_empty(shape)
            )
        return put_before(node, aten.select.int, (part, mode, 0)) if value.dim() >= -mode else part

    def _distances(self, queries: Any, keys: Any, node: fx.Node) -> fx.Node:
        """`1 - queries, .., keys - 1`."""
        value = node.meta["val"]
        like = value if operator_name(node) == "sub" else node.all_input_nodes[0].meta["val"]
        first: Any = 1 - queries if isinstance(queries, int) else None
        with node.graph.inserting_before(node):
            if first is None:
                first = node.graph.call_function(operator.sub, (1, queries))
                first.meta["val"] = 1 - queries.meta["val"]
        fake = like.new_empty((value.shape[-2] + value.shape[-1] - 1,))
        return put_before(node, aten.arange.start, (first, keys), {"dtype": like.dtype}, fake)


def spread(vector: Tensor, queries: int, keys: int) -> Tensor:
    """The entry of a vector over distances for each pair, [.., queries, keys].

    Args:
        vector: [.., queries + keys - 1], of the distances from `1 - queries` to `keys - 1`.

    >>> spread(torch.arange(-1, 3), 2, 3)
    tensor([[ 0,  1,  2],
            [-1,  0,  1]])
    """
    return vector.unfold(-1, keys, 1).flip(-2)


def _pair(node: fx.Node) -> tuple[Any, Any] | None:
    """The numbers of queries and keys for a node of pairwise distances or position comparisons."""
    name, value = operator_name(node), tensor_value(node)
    if name not in ("sub", *COMPARED) or value is None or len(node.args) != 2 or node.kwargs:
        return None
    modes = [counted_mode(part) for part in node.args]
    if sorted(mode or 0 for mode in modes) != [-2, -1] or (name == "sub" and modes[0] == -2):
        return None
    if any(str(extent) != "1" for extent in value.shape[:-2]):
        return None
    counts = dict(zip(modes, (_count(part) for part in node.args), strict=True))
    return counts[-2], counts[-1]


def _count(node: Any) -> Any:
    """The end of a counted tensor, as the number or node of its `arange`."""
    while operator_name(node) != "arange":
        mode = counted_mode(node.args[0]) if operator_name(node) == "index" else None
        node = (
            node.args[0] if mode is None else node.args[1][mode]
        )  # an indexing result is as long as its index
    return node.args[0]


def _is_filled(node: fx.Node, mode: int) -> bool:
    """Whether a node is a constant fill, with numeric extents in the modes other than queries and keys."""
    value = tensor_value(node)
    if operator_name(node) not in FILLED or value is None:
        return False
    return all(str(extent).isdigit() for extent in _along_shape(value, mode))


def _along_shape(value: Tensor, mode: int) -> list[Any]:
    """The extents of a tensor with one mode of extent 1 in place of queries and keys."""
    shape = list(value.shape)
    if len(shape) >= -mode:
        del shape[mode]
    if len(shape) >= -mode - 1:
        shape[mode + 1] = 1
    return shape


def _is_same(node: fx.Node, queries: int) -> bool:
    """Whether a tensor is constant along queries and keys: without these modes, or with extent 1."""
    value = tensor_value(node)
    if value is None:
        return False
    return all(value.dim() < -mode or str(value.shape[mode]) == "1" for mode in (queries, queries + 1))


def put_before(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any = None, value: Tensor | None = None
) -> fx.Node:
    """A new node before another one, in its module, with its fake result computed, or given as `value`."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, args, dict(kwargs or {}))
    if value is None:
        fake = fx.map_arg((args, dict(kwargs or {})), lambda n: n.meta["val"])
        value = target(*fake[0], **fake[1])
    new.meta["val"] = value
    if "nn_module_stack" in node.meta:
        new.meta["nn_module_stack"] = node.meta["nn_module_stack"]
    return new


def is_bias(node: Any, distances: Distances, extents: tuple[str, ...]) -> bool:
    """Whether a node is a bias per distance between queries and keys of some extents, equal over the batch."""
    if distances.mode(node) != PAIRS:
        return False
    value = tensor_value(node)
    assert value is not None, "what is of distances is a tensor"
    is_once = all(str(extent) == "1" for extent in value.shape[:-3])
    return is_once and value.dtype.is_floating_point and tuple(map(str, value.shape[-2:])) == extents


def plain(vector: fx.Node, user: fx.Node) -> fx.Node:
    """A vector without modes of extent 1 before the mode of distances."""
    value = tensor_value(vector)
    assert value is not None, "biases are tensors"
    for mode in reversed(range(value.dim() - 1)):
        if str(value.shape[mode]) == "1":
            vector = put_before(user, aten.select.int, (vector, mode, 0))
    return vector
