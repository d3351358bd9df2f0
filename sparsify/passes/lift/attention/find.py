"""Attention written out by a model, noted at its softmax for rules.

In: `%s = matmul(%q, transpose(%k, -1, -2)); %x = div(%s, 8.0); %p = softmax(%x, -1); %y = matmul(%p, %v)`. Out:
`info(%p).attention`, by which rules name the node as `op:scaled_dot_product_attention`.

The operator table does the rest: attention is a softmax between two products of the graph's program, with entrywise
operators between them, and with no other readers of the scores or the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.passes.capture.draft import Draft
from sparsify.passes.capture.libraries.transformers_bigbird import own_pattern
from sparsify.passes.graph.canonicalize import remove_unused
from sparsify.passes.graph.node_info import set_info
from sparsify.passes.graph.operators import argument, is_dropout, operator_name, scope, tensor_value
from sparsify.passes.lift.attention.float_casts import is_within, widest
from sparsify.passes.lift.attention.windows import split_windows
from sparsify.passes.program.model import ModelProgram, sizes_of
from sparsify.passes.program.translate import translate
from sparsify.passes.rewrite.attention import Attention, attention_of

aten = torch.ops.aten


def attention(draft: Draft) -> Draft:
    """The draft with notes on the softmaxes of attention, for rules with attention patterns."""
    if any(rule.origin == "mask" for rule in draft.recipe.rules):
        softmaxes = [node for node in draft.graph.nodes if operator_name(node) == "softmax"]
        for node in softmaxes:
            split_windows(node)
        remove_unused(draft.graph)
        program = translate(draft.graph) if softmaxes else ModelProgram(draft.graph)
        for node in softmaxes:
            attention_or_refusal = nodes_of(program, node)
            note = (
                {"no_attention": attention_or_refusal}
                if isinstance(attention_or_refusal, str)
                else {"attention": attention_or_refusal}
            )
            set_info(node, **note)
        modules = dict(draft.model.named_modules())  # a graph of Dynamo names modules missing in its model
        for node in draft.graph.find_nodes(
            op="call_function", target=aten.scaled_dot_product_attention.default
        ):
            module = modules.get(scope(node).partition("@")[0])
            module_pattern = None if module is None else own_pattern(module)
            if module_pattern is not None:
                set_info(node, own_pattern=module_pattern)
    return draft


@dataclass(frozen=True)
class AttentionNodes:
    """The nodes of attention around a softmax.

    Attributes:
        scores: operand of the softmax.
        query, key: operands of the scores.
        extents: extents of the scores: numbers, or operands with their modes.
        dropout: dropout of the weights, None without.
    """

    scores: fx.Node
    query: fx.Node
    key: fx.Node
    extents: tuple[Any, ...]
    dropout: fx.Node | None

    @property
    def reader(self) -> fx.Node:
        """The first reader of the scores."""
        return min(self.scores.users)

    def moved(self, nodes: Callable[[fx.Node], fx.Node]) -> "AttentionNodes":
        """A copy in which every node is replaced by `nodes(node)`."""
        extents = tuple(
            [part if isinstance(part, int) else (nodes(part[0]), part[1]) for part in self.extents]
        )
        dropout = None if self.dropout is None else nodes(self.dropout)
        return AttentionNodes(nodes(self.scores), nodes(self.query), nodes(self.key), extents, dropout)


def nodes_of(program: ModelProgram, softmax: fx.Node) -> AttentionNodes | str:
    """The attention around a softmax, or the refusal."""
    weights = tensor_value(softmax)
    if weights is None or argument(softmax, 1, "dim") not in (-1, weights.dim() - 1):
        return "it is not taken along the last mode"
    if softmax.name not in program.statements:
        return program.opaque.get(softmax.name, "it is no tensor")
    attention = attention_of(program, softmax.name)
    if isinstance(attention, str):
        return attention
    dtype = widest(operands_of(program, attention))
    if not is_within(weights.dtype, dtype):
        return f"it is computed in {weights.dtype}, and its operands are in {dtype}"
    i = program.statements[attention.scores].target.indices[-2]
    left, right = attention.factors
    query, key = (left, right) if i in left.indices else (right, left)
    dropouts = [program.nodes[name] for name in attention.path if is_dropout(program.nodes[name])]
    return AttentionNodes(
        program.nodes[attention.scores],
        program.nodes[query.tensor],
        program.nodes[key.tensor],
        extents_of(program, attention),
        dropouts[0] if dropouts else None,
    )


def operands_of(program: ModelProgram, attention: Attention) -> list[fx.Node]:
    """The operands of attention."""
    weight_names = {attention.softmax, *attention.path}
    parts = (attention.value, attention.mean, *([] if attention.sink is None else [attention.sink]))
    read = [access.tensor for value in parts for access in find(value, Access)]
    return [program.nodes[name] for name in dict.fromkeys(read) if name not in weight_names]


def extents_of(program: ModelProgram, attention: Attention) -> tuple[Any, ...]:
    """The extents of scores as numbers, or as factors of their product with modes."""
    indices = iter(program.statements[attention.scores].target.indices)
    extents: list[Any] = []
    for size in sizes_of(program.nodes[attention.scores].meta["val"]):
        index = None if size == 1 else next(indices)
        if isinstance(size, int):
            extents.append(size)
            continue
        factor = next(factor for factor in attention.factors if index in factor.indices)
        node = program.nodes[factor.tensor]
        modes = [mode for mode, extent in enumerate(sizes_of(node.meta["val"])) if extent != 1]
        extents.append((node, modes[factor.indices.index(index)]))
    return tuple(extents)
