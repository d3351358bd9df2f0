"""Attention under the pattern of a rule: what the pattern leaves out is masked, densely at first.

In: `%y = scaled_dot_product_attention(%q, %k, %v)`, marked `bigbird(block=64)`.
Out: `%m = attention_mask(bigbird, (block, 64), %n, %n); %y = scaled_dot_product_attention(%q, %k, %v, attn_mask=%m)`,
which is what the kernel is compared with, and what runs where none can be built.
"""

from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.errors import CaptureError
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.canonicalize import size_node
from sparsify.passes.graph.draws import dropped_weights, seeds
from sparsify.passes.graph.insert import call, call_before, put_behind
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import argument, operator_name, scope, tensor_value
from sparsify.passes.lift.attention.bias import Bias, bias_of, combined_mask
from sparsify.passes.lift.attention.cached_keys import WHY, pasts
from sparsify.passes.lift.attention.dropout import dropped_attention
from sparsify.passes.lift.attention.find import AttentionNodes
from sparsify.passes.lift.attention.grouped_query import (
    HEADS,
    grouped_heads,
    repeat_keys,
    shared_by_heads,
    split_heads,
    without_groups,
)
from sparsify.passes.lift.attention.mask_factors import factors, is_causal
from sparsify.passes.lift.attention.reference import safe_softmax
from sparsify.passes.lift.attention.relative_bias import Distances, put_before
from sparsify.passes.region.sparse_operand import HALVES
from sparsify.sparsification.mask_spec import MaskSpec, Stamp

# How a rule calls the pattern that a model has itself.
GIVEN: Final = "given"


def masked(draft: Draft) -> Draft:
    """The draft with the patterns of rules in its attention nodes, and as the graph to compare with.

    Raises:
        CaptureError: with `strict`, attention to keys of earlier calls, which stays as it is.
    """
    has_masks = draft.asked.has_masks
    reference, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    reference.output(reference.graph_copy(draft.graph, copies))
    nodes = list(draft.graph.nodes)
    dense = pasts(draft.graph, [node for node in nodes if _chosen(node) is not None])
    # Gradients of a vector over distances have no fast kernel: where they are wanted, biases stay as they are.
    distances = Distances(draft.graph, are_looked_for=not draft.is_trainable)
    for node in nodes:
        chosen, own = _chosen(node), info(node).own_pattern
        if node in dense:
            leave(node, draft)
        elif chosen is not None or own is not None:
            spec = own if chosen is None or chosen.kind == GIVEN else chosen
            known: AttentionNodes | None = info(node).attention
            if known is not None:
                put_into_scores(copies[node], known.moved(copies.__getitem__), spec)
                put_into_scores(node, known, spec)
            else:
                put_in(copies[node], spec, is_reference=True)
                put_in(node, spec, distances)
            has_masks = True
    if has_masks:
        draft.masked = reference
    return draft


def _chosen(node: fx.Node) -> MaskSpec | None:
    """The pattern that a rule gives to a node."""
    mark = info(node).mark
    return mark.mask if isinstance(mark, Mark) else None


def leave(node: fx.Node, draft: Draft) -> None:
    """Leaves attention to keys of earlier calls as the model has it, and says so."""
    if draft.is_strict:
        raise CaptureError(f"{WHY}: {node.name}", "calls without a cache, or without strict")
    set_info(node, mark=None)
    draft.report.left_dense(node.name, operator_name(node), scope(node), WHY)
    draft.report.warnings.append(f"attention stays dense: {WHY}")


def put_into_scores(softmax: fx.Node, known: AttentionNodes, spec: MaskSpec) -> None:
    """Gives spelled attention the mask of a pattern."""
    user = known.reader
    extents = (extent(known.extents[-2], user), extent(known.extents[-1], user))
    put_pattern(softmax, known, _mask_node(user, spec, extents, known.scores.meta["val"]))


def put_pattern(softmax: fx.Node, known: AttentionNodes, mask: fx.Node) -> None:
    """Puts the mask of a pattern into the scores of a softmax, and what is dropped of its weights by seeds.

    Args:
        mask: truth values, or what is added to scores.
    """
    before, user = known.scores.meta["val"], known.reader
    if mask.meta["val"].dtype == torch.bool:
        scores = call_before(user, torch.ops.aten.where.ScalarOther, mask, known.scores, -torch.inf)
    else:
        if mask.meta["val"].dtype != before.dtype:
            mask = call_before(user, torch.ops.aten.to.dtype, mask, before.dtype)
        scores = call_before(user, torch.ops.aten.add.Tensor, known.scores, mask)
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


def put_in(
    node: fx.Node, spec: MaskSpec, distances: Distances | None = None, *, is_reference: bool = False
) -> None:
    """Gives an attention node the mask of a pattern, beside its own.

    Args:
        node: of attention.
        spec: the pattern.
        distances: what is of them in the graph; None where biases stay as they are.
        is_reference: whether the model's own mask stays as it is, for what kernels are compared with.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if given.get("is_causal"):
        spec = spec.causal()
    mask = given.get("attn_mask")
    bias: Bias | None = None
    if isinstance(mask, fx.Node) and not is_reference:
        bias = None if distances is None else bias_of(mask, distances, _pairs(given), node)
        if bias is not None:
            mask = bias.own
        else:
            spec, mask = without_needless(mask, spec, node)
    group = 1
    if spec.heads is None:
        group = grouped_heads(given)
    else:
        with node.graph.inserting_before(node):
            repeat_keys(given)
    query, key, value = _apart([given[name] for name in names[:3]], node)
    if not is_reference:
        query, key, value = _as_wide(given.get("attn_mask"), (query, key, value), node)
    extents = (_extent(query, node), _extent(key, node))
    made = _mask_node(node, spec, extents, tensor_value(query))
    dtype = tensor_value(query).dtype  # type: ignore[union-attr]
    if spec.is_weighted and dtype != torch.float32:
        made = call_before(node, torch.ops.aten.to.dtype, made, dtype)
    own = mask if isinstance(mask, fx.Node) else None
    if own is not None or bias is not None:
        made = _combined(made, own, bias, group, node)
    rest = {name: value for name, value in given.items() if name not in (*names[:4], "is_causal")}
    if group > 1:
        with node.graph.inserting_before(node):
            query, key, value = split_heads(query, group), shared_by_heads(key), shared_by_heads(value)
    operands = [query, key, value]
    if rest.get("dropout_p"):
        rows = tensor_value(query)
        assert rows is not None, "attention is of tensors"
        like = rows.new_empty(rows.shape[:-2])
        operands.append(seeds(node, _leading(query, node), like))
        node.target = dropped_attention
    node.args, node.kwargs = tuple(operands), {"attn_mask": made, **rest}
    _as_known(node, group)


def _as_wide(mask: Any, operands: tuple[fx.Node, ...], user: fx.Node) -> tuple[fx.Node, ...]:
    """Queries, keys and values as float32 where they are in halves and their mask is not: torch adds it as it is."""
    queries, added = tensor_value(operands[0]), tensor_value(mask)
    if added is None or added.dtype != torch.float32 or queries is None or queries.dtype not in HALVES:
        return operands
    return tuple(call_before(user, torch.ops.aten.to.dtype, operand, torch.float32) for operand in operands)


def _as_known(node: fx.Node, group: int) -> None:
    """Puts nodes behind attention that make what its users know: heads in one mode, in the dtype of the model."""
    query, value = (tensor_value(argument(node, place, name)) for place, name in ((0, "query"), (2, "value")))
    assert query is not None and value is not None, "attention is of tensors"
    known = node.meta["val"]
    if group > 1:
        node.meta["val"] = known.new_empty((*query.shape[:-1], value.shape[-1]))
    node.meta["val"] = node.meta["val"].to(query.dtype)
    whole = without_groups(node) if group > 1 else node
    if known.dtype != query.dtype:
        put_behind(whole, torch.ops.aten.to.dtype, known.dtype)


def without_needless(mask: fx.Node, spec: MaskSpec, user: fx.Node) -> tuple[MaskSpec, fx.Node | None]:
    """A pattern and the model's own mask, without what always holds or the pattern can say: `j <= i`."""
    found = factors(mask)
    if spec.may_be_causal and any(is_causal(factor) for factor in found):
        spec = spec.causal()
        found = [factor for factor in found if not is_causal(factor)]
    if not found:
        return spec, None
    first, *others = found
    for other in others:
        first = call_before(user, torch.ops.aten.logical_and.default, first, other)
    return spec, first


def _pairs(given: dict[str, Any]) -> tuple[str, str]:
    """How many queries and keys attention has, as texts."""
    queries, keys = (tensor_value(given[name]) for name in ("query", "key"))
    assert queries is not None and keys is not None, "attention is of tensors"
    return str(queries.shape[-2]), str(keys.shape[-2])


def _apart(operands: list[Any], user: fx.Node) -> list[Any]:
    """Queries, keys and values by names of their own: `attention(%x, %x, %x)` reads `%x` and views of it."""
    return [
        call_before(user, torch.ops.aten.alias.default, operand) if operand in operands[:place] else operand
        for place, operand in enumerate(operands)
    ]


def _in_groups(mask: fx.Node, count: int, user: fx.Node) -> fx.Node:
    """A mask for scores whose heads are in groups: `[b, h, i, j]` as `[b, g, r, i, j]`."""
    value = tensor_value(mask)
    assert value is not None, "a mask is a tensor"
    if value.dim() < -HEADS:
        return mask
    with user.graph.inserting_before(user):
        if str(value.shape[HEADS]) == "1":
            return call(torch.ops.aten.unsqueeze.default, mask, value.dim() + HEADS)
        return split_heads(mask, count)


def _combined(pattern: fx.Node, own: fx.Node | None, bias: Bias | None, group: int, user: fx.Node) -> fx.Node:
    """The node of one mask of a pattern and what the model has itself.

    Args:
        own: the model's own mask.
        bias: what is added besides; None for nothing.
        group: how many heads share keys.
    """
    while own is not None and operator_name(own) == "expand" and isinstance(own.args[0], fx.Node):
        own = own.args[0]
    if own is not None and group > 1:
        own = _in_groups(own, group, user)
    added: fx.Node | float | None = None
    if bias is not None:
        added = bias.number if bias.vector is None else bias.vector
    if group > 1 and isinstance(added, fx.Node) and added.meta["val"].dim() > 1:
        with user.graph.inserting_before(user):
            added = split_heads(added, group, -2)
    values = [part.meta["val"] for part in (pattern, own, added) if isinstance(part, fx.Node)]
    shapes = [list(value.shape) for value in values]
    if isinstance(added, fx.Node):
        shapes[-1] = [*shapes[-1][:-1], 1, 1]
    kinds = [value.dtype for value in values] + [torch.float32] * isinstance(added, float)
    made = values[0].new_empty(_broadcast(shapes), dtype=reduce(torch.promote_types, kinds))
    elsewhere = None if bias is None else bias.elsewhere
    return put_before(user, combined_mask, (pattern, own, added, elsewhere), None, made)


def _broadcast(shapes: list[list[Any]]) -> list[Any]:
    """The extents of what tensors of some shapes are together, without a comparison that would be a guard."""
    rank = max(map(len, shapes))
    modes = [[shape[mode] for shape in shapes if len(shape) >= -mode] for mode in range(-rank, 0)]
    return [next((extent for extent in mode if str(extent) != "1"), 1) for mode in modes]


def _extent(operand: fx.Node, user: fx.Node, mode: int = -2) -> Any:
    """How many tokens an operand has, or the extent of another mode, as a number or a size node."""
    value = tensor_value(operand)
    assert value is not None, "attention is of tensors"
    extent = value.shape[mode]
    return int(str(extent)) if str(extent).isdigit() else size_node(operand, mode % value.dim(), extent, user)


def _leading(operand: fx.Node, user: fx.Node) -> list[Any]:
    """The extents of batch and heads."""
    value = tensor_value(operand)
    assert value is not None, "attention is of tensors"
    return [_extent(operand, user, mode) for mode in range(value.dim() - 2)]


def _mask_node(user: fx.Node, spec: MaskSpec, extents: tuple[Any, Any], query: Tensor | None) -> fx.Node:
    """The mask of a pattern before an attention node, of which no mask is made to know what it is."""
    assert query is not None, "attention is of tensors"
    device: dict[str, Any] = {} if query.is_cpu else {"device": query.device}
    with user.graph.inserting_before(user):
        given = (spec.kind, spec.arguments, *extents, spec.stamp)
        node = user.graph.call_function(attention_mask, given, device)
    heads = spec.heads
    shape = [extent.meta["val"] if isinstance(extent, fx.Node) else extent for extent in extents]
    dtype = torch.float32 if spec.is_weighted else torch.bool
    node.meta["val"] = query.new_empty(shape if heads is None else [heads, *shape], dtype=dtype)
    if "nn_module_stack" in user.meta:
        node.meta["nn_module_stack"] = user.meta["nn_module_stack"]
    return node


def attention_mask(
    kind: str,
    arguments: tuple[tuple[str, Any], ...],
    rows: int,
    columns: int,
    stamp: Stamp | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """The dense mask of a pattern, [rows, columns] or [heads, rows, columns]: truth values, or what is added."""
    spec = MaskSpec(kind, tuple((name, value) for name, value in arguments), stamp)
    return spec.mask(rows, columns).to_dense().to(device)
