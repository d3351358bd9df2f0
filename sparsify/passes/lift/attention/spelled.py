"""Attention that a model spells out: noted at its softmax for rules, and put under their patterns.

In: `%s = matmul(%q, transpose(%k, -1, -2)); %x = div(%s, 8.0); %p = softmax(%x, -1); %y = matmul(%p, %v)`, `%p` marked
`bigbird(block=64)`.
Out: `%m = attention_mask(bigbird, (block, 64), %n, %n); %z = where(%m, %x, -inf); %p = safe_softmax(%z, -1)`.

The operator table has the rest: between two products, whatever lies there is a part of one program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.node import find
from sparsify.passes.graph.canonicalize import size_node
from sparsify.passes.graph.draws import dropped_weights, seeds
from sparsify.passes.graph.insert import call_before
from sparsify.passes.graph.operators import argument, is_dropout, tensor_value
from sparsify.passes.lift.attention.float_casts import is_within, widest
from sparsify.passes.program.model import ModelProgram, sizes_of
from sparsify.passes.rewrite.attention import Attention, attention_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Spelled:
    """The nodes of attention around a softmax.

    Attributes:
        scores: what the softmax is taken of.
        query, key: of the scores.
        extents: of the scores: numbers, or operands with their modes.
        dropout: of the weights, None without.
    """

    scores: fx.Node
    query: fx.Node
    key: fx.Node
    extents: tuple[Any, ...]
    dropout: fx.Node | None

    @property
    def reader(self) -> fx.Node:
        """The first node that reads the scores."""
        return min(self.scores.users)

    def moved(self, nodes: Callable[[fx.Node], fx.Node]) -> "Spelled":
        """The same of other nodes."""
        extents = tuple(
            [part if isinstance(part, int) else (nodes(part[0]), part[1]) for part in self.extents]
        )
        dropout = None if self.dropout is None else nodes(self.dropout)
        return Spelled(nodes(self.scores), nodes(self.query), nodes(self.key), extents, dropout)


def spelled(program: ModelProgram, softmax: fx.Node) -> Spelled | str:
    """The attention around a softmax; why there is none."""
    weights = tensor_value(softmax)
    if weights is None or argument(softmax, 1, "dim") not in (-1, weights.dim() - 1):
        return "it is not taken along the last mode"
    if softmax.name not in program.statements:
        return program.opaque.get(softmax.name, "it is no tensor")
    found = attention_of(program, softmax.name)
    if isinstance(found, str):
        return found
    dtype = widest(operands_of(program, found))
    if not is_within(weights.dtype, dtype):
        return f"it is computed in {weights.dtype}, and its operands are in {dtype}"
    i = program.statements[found.scores].target.indices[-2]
    left, right = found.factors
    query, key = (left, right) if i in left.indices else (right, left)
    dropouts = [program.nodes[name] for name in found.path if is_dropout(program.nodes[name])]
    return Spelled(
        program.nodes[found.scores],
        program.nodes[query.tensor],
        program.nodes[key.tensor],
        extents_of(program, found),
        dropouts[0] if dropouts else None,
    )


def operands_of(program: ModelProgram, found: Attention) -> list[fx.Node]:
    """What attention reads."""
    own = {found.softmax, *found.path}
    parts = (found.value, found.mean, *([] if found.sink is None else [found.sink]))
    read = [access.tensor for value in parts for access in find(value, Access)]
    return [program.nodes[name] for name in dict.fromkeys(read) if name not in own]


def extents_of(program: ModelProgram, found: Attention) -> tuple[Any, ...]:
    """The extents of scores as numbers, or as operands of their product with the modes that have them."""
    indices = iter(program.statements[found.scores].target.indices)
    made: list[Any] = []
    for size in sizes_of(program.nodes[found.scores].meta["val"]):
        index = None if size == 1 else next(indices)
        if isinstance(size, int):
            made.append(size)
            continue
        factor = next(factor for factor in found.factors if index in factor.indices)
        node = program.nodes[factor.tensor]
        modes = [mode for mode, extent in enumerate(sizes_of(node.meta["val"])) if extent != 1]
        made.append((node, modes[factor.indices.index(index)]))
    return tuple(made)


def put_pattern(softmax: fx.Node, known: Spelled, mask: fx.Node) -> None:
    """Puts the mask of a pattern into the scores of a softmax, and what is dropped of its weights by seeds.

    Args:
        mask: truth values, or what is added to scores.
    """
    before, user = known.scores.meta["val"], known.reader
    if mask.meta["val"].dtype == torch.bool:
        scores = call_before(user, aten.where.ScalarOther, mask, known.scores, -torch.inf)
    else:
        if mask.meta["val"].dtype != before.dtype:
            mask = call_before(user, aten.to.dtype, mask, before.dtype)
        scores = call_before(user, aten.add.Tensor, known.scores, mask)
    for reader in [user for user in known.scores.users if user is not scores]:
        reader.replace_input_with(known.scores, scores)
    dtype = argument(softmax, 2, "dtype")
    softmax.target, softmax.args = safe_softmax, (softmax.args[0], -1)
    softmax.kwargs = {"dtype": dtype} if isinstance(dtype, torch.dtype) else {}
    if known.dropout is not None:
        like = before.new_empty(before.shape[:-2])
        leading = [extent(part, known.dropout) for part in known.extents[:-2]]
        known.dropout.kwargs = {"rate": float(argument(known.dropout, 1, "p", 0.5))}
        known.dropout.args = (known.dropout.args[0], seeds(known.dropout, leading, like))
        known.dropout.target = dropped_weights


def extent(part: Any, user: fx.Node) -> Any:
    """An extent as a number, or as a node before `user`."""
    if isinstance(part, int):
        return part
    node, mode = part
    return size_node(node, mode, node.meta["val"].shape[mode], user)


def safe_softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A softmax whose rows without a score above `-inf` are 0."""
    is_empty = (scores == -torch.inf).all(dim, keepdim=True)
    weights = torch.softmax(scores.masked_fill(is_empty, 0), dim, dtype=dtype)
    return weights.masked_fill(is_empty, 0)
