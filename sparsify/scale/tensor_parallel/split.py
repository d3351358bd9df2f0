"""Split products of a graph among processes, and the placements of the tensors between them.

In: `linear(gelu(linear(x, A)), B)` and 2 processes. Out: `A` by output rows, `gelu` of half the columns in each, `B` by
input columns, with summed products.

All products start as candidates. A tensor read by an operator without a rule removes the products at its source from
the candidates, until no such operator is left: removed products are computed in full in all processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx

aten = torch.ops.aten
# Numbers of matrices in a fused projection, in the order of trials.
FUSED: Final = (1, 3, 2)


@dataclass(frozen=True, slots=True)
class Split:
    """The entries of a tensor in one process: for a mode `[outer, processes, inner]` a share of the middle.

    Attributes:
        mode: the split mode.
        outer: number of separately split groups within the mode; an expression in the captured sizes.
    """

    mode: int
    outer: Any = 1


@dataclass(frozen=True)
class Step:
    """The placement of a result.

    Attributes:
        split: split of the result.
        size: argument and position of the size of the split mode, to be divided.
        cut: parameters cut to the share of the process, by node.
    """

    split: Split
    size: tuple[int, int | None] | None = None
    cut: Mapping[fx.Node, Split] = field(default_factory=dict)


class RefusalError(Exception):
    """An operator reads all of a split mode, or has no rule."""


@dataclass
class Splits:
    """The split products of a graph.

    Attributes:
        count: number of processes.
        columns: products with weights split by output rows, with the number of matrices in the weight.
        rows: products with weights split by input columns, with the split of their input.
        steps: steps of the nodes with split tensors.
        reasons: reason for each product computed whole.
    """

    count: int
    columns: dict[fx.Node, int]
    rows: dict[fx.Node, Split] = field(default_factory=dict)
    steps: dict[fx.Node, Step] = field(default_factory=dict)
    reasons: dict[fx.Node, str] = field(default_factory=dict)

    def of(self, value: Any) -> Split | None:
        """The split of a tensor; None for a replicated tensor."""
        step = self.steps.get(value) if isinstance(value, fx.Node) else None
        return None if step is None else step.split


# A rule returns the placement of a result with split operands.
Rule = Callable[[Splits, Any], Step]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for ATen operators by name."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def split_products(graph: fx.Graph, count: int, tied: frozenset[str] = frozenset()) -> Splits:
    """The maximum set of split products allowed by the operators between them.

    Args:
        graph: graph of `passes.capture`.
        count: number of processes.
        tied: names of parameters shared by several modules, never split.
    """
    reasons: dict[fx.Node, str] = {}
    tries = {node: list(FUSED) for node in graph.nodes if _is_product(node, tied)}
    while True:
        columns = {node: left[0] for node, left in tries.items() if left}
        found = Splits(count, columns, reasons=reasons)
        refused = _propagate(graph, found)
        if refused is None:
            found.columns = {node: outer for node, outer in columns.items() if node in found.steps}
            found.reasons = {n: why for n, why in reasons.items() if n not in {*found.columns, *found.rows}}
            return found
        sources, why = refused
        for source in sources:
            tries[source].pop(0)
            reasons[source] = why


def _is_product(node: fx.Node, tied: frozenset[str]) -> bool:
    """Whether a node is a product with a weight without other readers."""
    if node.target is not aten.linear.default:
        return False
    parameters = [value for value in node.args[1:] if isinstance(value, fx.Node)]
    return all(p.op == "get_attr" and len(p.users) == 1 and str(p.target) not in tied for p in parameters)


def _propagate(graph: fx.Graph, splits: Splits) -> tuple[frozenset[fx.Node], str] | None:
    """Propagates the splits of the columns; returns the columns at the source of a refused tensor, and the reason."""
    sources: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in graph.nodes:
        operands = [n for n in node.all_input_nodes if n in splits.steps]
        came: frozenset[fx.Node] = frozenset().union(*(sources[n] for n in operands))
        if not operands:
            if node in splits.columns:
                outer = splits.columns[node]
                size = shape_of(node)[-1]
                if not isinstance(size, int) or size % (outer * splits.count):
                    return frozenset((node,)), f"{size} outputs in {splits.count} parts"
                splits.steps[node] = Step(Split(len(shape_of(node)) - 1, outer))
                sources[node] = frozenset((node,))
            continue
        try:
            if node.target is aten.linear.default and node.args[0] in splits.steps:
                _require_row(splits, node)
                splits.rows[node] = splits.steps[node.args[0]].split
                continue
            splits.steps[node] = _step(splits, node)
            sources[node] = came
        except RefusalError as error:
            return came, str(error)
    return None


def _require_row(splits: Splits, node: Any) -> None:
    """Raises if a product cannot take its input columns in parts."""
    split = splits.of(node.args[0])
    others = [n for n in node.args[1:] if isinstance(n, fx.Node) and n.op != "get_attr"]
    weight = node.args[1]
    if split is None or split.mode != len(shape_of(node.args[0])) - 1 or others or len(weight.users) != 1:
        raise RefusalError(f"{node.name} reads all of a tensor in parts")


def _step(splits: Splits, node: Any) -> Step:
    """The step of an operator with split operands.

    Raises:
        RefusalError: the operator has no rule, or reads all of a split mode.
    """
    target: Any = node.target
    if node.op != "call_function":
        raise RefusalError(f"{node.name} is all of a tensor")
    is_operator = isinstance(target, torch._ops.OpOverload)
    name = target._schema.name.removeprefix("aten::") if is_operator else target.__name__
    if name in RULES:
        return RULES[name](splits, node)
    if is_operator and torch.Tag.nondeterministic_seeded in target.tags:
        raise RefusalError(f"{name} draws numbers that would differ between processes")
    if is_operator and torch.Tag.pointwise in target.tags:
        return _pointwise(splits, node)
    raise RefusalError(f"{name} has no rule for tensors in parts")


def shape_of(node: Any) -> tuple[Any, ...]:
    """The captured sizes of a tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        value = value[0]
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _expression(size: Any) -> Any:
    """A captured size as an expression."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _product(sizes: tuple[Any, ...]) -> Any:
    """The product of captured sizes."""
    return sympy.prod([_expression(size) for size in sizes])


def _is_whole(expression: Any) -> bool:
    """Whether an expression is an integer for all sizes."""
    return bool(sympy.fraction(sympy.cancel(expression))[1] == 1)


def reshaped(before: tuple[Any, ...], split: Split, after: tuple[Any, ...], count: int) -> Split | None:
    """The split after a reshape, None if the parts are not contiguous groups of one mode.

    >>> reshaped((10, 32), Split(1), (10, 4, 8), 2)
    Split(mode=1, outer=1)
    >>> reshaped((10, 96), Split(1, 3), (10, 3, 32), 2)
    Split(mode=2, outer=1)
    >>> reshaped((10, 32), Split(1), (5, 2, 32), 2), reshaped((10, 6), Split(1), (10, 3, 2), 2)
    (Split(mode=2, outer=1), None)
    """
    lead = _product(before[: split.mode]) * split.outer
    for place, size in reversed(list(enumerate(after))):  # one place at most, but for one process
        outer = sympy.cancel(lead / _product(after[:place]))
        if _is_whole(outer) and _is_whole(_expression(size) / (outer * count)):
            return Split(place, int(outer) if outer.is_Integer else outer)
    return None


def _aligned(splits: Splits, node: Any, operands: list[Any]) -> Split:
    """The common split of all split operands, counted in the modes of the result."""
    rank, found = len(shape_of(node)), None
    for operand in operands:
        split = splits.of(operand)
        if split is None:
            continue
        aligned = Split(split.mode + rank - len(shape_of(operand)), split.outer)
        if found is not None and aligned != found:
            raise RefusalError(f"{node.name} joins tensors in different parts")
        found = aligned
    if found is None:
        raise RefusalError(f"{node.name} takes sizes alone")
    return found


def _others(splits: Splits, node: Any, operands: list[Any], split: Split) -> dict[fx.Node, Split]:
    """Parameter vectors to be cut along with split operands.

    Raises:
        RefusalError: another operand has the whole split mode.
    """
    cut: dict[fx.Node, Split] = {}
    for operand in operands:
        shape = shape_of(operand)
        at = split.mode - len(shape_of(node)) + len(shape)
        if splits.of(operand) is not None or at < 0 or (isinstance(shape[at], int) and shape[at] == 1):
            continue
        if operand.op != "get_attr" or len(operand.users) != 1:
            raise RefusalError(f"{node.name} joins parts with all of {operand.name}")
        cut[operand] = Split(at, split.outer)
    return cut


def _pointwise(splits: Splits, node: Any) -> Step:
    """Pointwise operators."""
    operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    split = _aligned(splits, node, operands)
    return Step(split, cut=_others(splits, node, operands, split))


@rule("detach", "_to_copy", "to", "contiguous", "alias", "lift_fresh_copy", "clone")
def _kept(splits: Splits, node: Any) -> Step:
    """Copies."""
    return Step(_aligned(splits, node, [node.args[0]]))


@rule("dropout")
def _dropout(splits: Splits, node: Any) -> Step:
    """Dropout without effect."""
    if node.args[1] != 0 and (len(node.args) < 3 or node.args[2]):
        raise RefusalError("dropout draws numbers that would differ between processes")
    return _kept(splits, node)


@rule("view", "reshape", "_unsafe_view", "unflatten", "flatten", "unsqueeze", "squeeze")
def _reshape(splits: Splits, node: Any) -> Step:
    """Views, with the size of the split mode divided."""
    operand = node.args[0]
    split = splits.of(operand)
    assert split is not None, "the first operand alone is a tensor"
    found = reshaped(shape_of(operand), split, shape_of(node), splits.count)
    if found is None:
        raise RefusalError(f"{node.name} joins or splits a mode in parts")
    if node.target is aten.unflatten.int:
        place = found.mode - node.args[1] % len(shape_of(operand))
        return Step(found, (2, place) if 0 <= place < len(node.args[2]) else None)
    has_sizes = len(node.args) > 1 and isinstance(node.args[1], list | tuple)
    is_view = has_sizes and node.target not in (aten.squeeze.dims,)
    return Step(found, (1, found.mode) if is_view else None)


@rule("expand")
def _expanded(splits: Splits, node: Any) -> Step:
    """Broadcasting of other modes."""
    split = _aligned(splits, node, [node.args[0]])
    return Step(split, (1, split.mode))


@rule("transpose", "permute", "t")
def _permuted(splits: Splits, node: Any) -> Step:
    """Permutation of modes."""
    operand = node.args[0]
    split, rank = splits.of(operand), len(shape_of(operand))
    assert split is not None, "the first operand alone is a tensor"
    order = list(range(rank))
    if node.target is aten.permute.default:
        order = [mode % rank for mode in node.args[1]]
    else:
        first, second = (mode % rank for mode in node.args[1:3]) if len(node.args) > 2 else (0, rank - 1)
        order[first], order[second] = order[second], order[first]
    return Step(Split(order.index(split.mode), split.outer))


@rule("select")
def _selected(splits: Splits, node: Any) -> Step:
    """One entry of another mode."""
    operand, mode = node.args[:2]
    split, at = splits.of(operand), mode % len(shape_of(operand))
    if split is None or at == split.mode:
        raise RefusalError(f"{node.name} selects from a mode in parts")
    return Step(Split(split.mode - (at < split.mode), split.outer))


@rule("slice")
def _sliced(splits: Splits, node: Any) -> Step:
    """A range of another mode."""
    split = splits.of(node.args[0])
    if split is None or (node.args[1] if len(node.args) > 1 else 0) % len(shape_of(node)) == split.mode:
        raise RefusalError(f"{node.name} takes a range of a mode in parts")
    return Step(split)


@rule("chunk", "split")
def _chunked(splits: Splits, node: Any) -> Step:
    """The matrices of a fused projection, separated, or ranges of another mode."""
    operand = node.args[0]
    split, mode = splits.of(operand), node.args[2] if len(node.args) > 2 else 0
    assert split is not None, "the first operand alone is a tensor"
    if mode % len(shape_of(operand)) != split.mode:
        return Step(split)
    is_chunk = node.target is aten.chunk.default
    size = shape_of(operand)[split.mode]
    if not isinstance(node.args[1], int) or split.outer != (
        node.args[1] if is_chunk else size / node.args[1]
    ):
        raise RefusalError(f"{node.name} takes ranges of a mode in parts")
    return Step(Split(split.mode), None if is_chunk else (1, None))


@rule("getitem")
def _taken(splits: Splits, node: Any) -> Step:
    """One of several results."""
    split = splits.of(node.args[0])
    assert split is not None, "the first operand alone is split"
    return Step(split)


@rule("softmax", "_softmax", "log_softmax", "cumsum")
def _along(splits: Splits, node: Any) -> Step:
    """Operators along another mode."""
    split = splits.of(node.args[0])
    if split is None or node.args[1] % len(shape_of(node)) == split.mode:
        raise RefusalError(f"{node.name} reads all of a mode in parts")
    return Step(split)


@rule("matmul", "bmm")
def _matmul(splits: Splits, node: Any) -> Step:
    """Products of batches of matrices, with split batches."""
    operands, rank = list(node.args[:2]), len(shape_of(node))
    split = _aligned(splits, node, operands)
    if any(len(shape_of(operand)) < 2 for operand in operands) or split.mode >= rank - 2:
        raise RefusalError(f"{node.name} multiplies matrices in parts")
    return Step(split, cut=_others(splits, node, operands, split))


@rule("scaled_dot_product_attention")
def _attention(splits: Splits, node: Any) -> Step:
    """Attention with heads in parts; groups of heads share keys if all operands are split."""
    if (len(node.args) > 4 and node.args[4]) or node.kwargs.get("dropout_p"):
        raise RefusalError("dropout of attention draws numbers that would differ between processes")
    found = [splits.of(operand) for operand in node.args[:3]]
    rank = len(shape_of(node))
    if any(split is None or split != found[0] or split.mode >= rank - 2 for split in found):
        raise RefusalError("attention of queries, keys and values in different parts")
    split = found[0]
    assert split is not None, "all of them are split"
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    others = [] if mask is None else [mask]
    if splits.of(mask) is not None or _others(splits, node, others, split):
        raise RefusalError("attention with a mask for each head")
    return Step(split)
