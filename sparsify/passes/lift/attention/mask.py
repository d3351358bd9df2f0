"""Attention under the pattern of a rule: masked densely at first.

In: `%p = softmax(%x, -1)` of attention, marked `bigbird(block=64)`.
Out: `%m = attention_mask(bigbird, (block, 64), %n, %n); %p = safe_softmax(where(%m, %x, -inf), -1)`, the reference of
the kernel, and the fallback where no kernel can be built.
"""

from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.compiler.einsum.nodes import Call, Const, Expr
from sparsify.errors import CaptureError
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.canonicalize import size_node
from sparsify.passes.graph.draws import dropped_weights, seeds
from sparsify.passes.graph.insert import call_before
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import argument, operator_name, scope
from sparsify.passes.lift.attention.cached_keys import WHY, pasts
from sparsify.passes.lift.attention.find import AttentionNodes
from sparsify.passes.lift.attention.reference import safe_softmax
from sparsify.passes.lift.attention.spell import arguments, reason_against, spell_out
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.program.translate import translate
from sparsify.passes.rewrite.attention import attention_of
from sparsify.passes.rewrite.masks import from_factors, in_order
from sparsify.sparsification.masks.mask_spec import MaskSpec, Stamp

# Kind in a rule for the model's built-in pattern.
GIVEN: Final = "given"


def masked(draft: Draft) -> Draft:
    """The draft with the patterns of rules in its attention, and in the reference graph.

    Raises:
        CaptureError: with `strict`, attention to keys of earlier calls, which is left unchanged.
    """
    has_masks = draft.request.has_masks
    chosen = [node for node in draft.graph.nodes if _chosen(node) is not None]
    past = pasts(draft.graph, chosen)
    specs: dict[fx.Node, MaskSpec] = {}
    dense: dict[fx.Node, MaskSpec] = {}
    for node in list(draft.graph.nodes):
        rule_spec, module_spec = _chosen(node), info(node).own_pattern
        spec = module_spec if rule_spec is None or rule_spec.kind == GIVEN else rule_spec
        if node in past:
            leave(node, draft)
        elif spec is not None and info(node).attention is not None:
            specs[node] = spec
        elif spec is not None:
            spec = spec.causal() if arguments(node).get("is_causal") else spec
            if reason_against(node):
                dense[node] = spec
            else:
                specs[spell_out(node)] = spec
    if not (has_masks or specs or dense):
        return draft
    reference, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    reference.output(reference.graph_copy(draft.graph, copies))
    program = translate(draft.graph) if specs else ModelProgram(draft.graph)
    for softmax, spec in specs.items():
        if spec.may_be_causal and is_causal(program, softmax):
            spec = spec.causal()
        noted: AttentionNodes = info(softmax).attention
        put_into_scores(copies[softmax], noted.moved(copies.__getitem__), spec)
        put_into_scores(softmax, noted, spec)
    for node, spec in dense.items():
        put_into_operator(copies[node], spec)
        put_into_operator(node, spec)
    draft.masked = reference
    return draft


def is_causal(program: ModelProgram, softmax: fx.Node) -> bool:
    """Whether a model masks keys after the query: `where(logical_and(j <= i, c), s, -inf)`."""
    attention = attention_of(program, softmax.name)
    if isinstance(attention, str):
        return False
    i, j = program.statements[attention.scores].target.indices[-2:]
    value = from_factors(program, attention.value, attention.factors, (i, j), lambda access: None)
    match value:
        case Call("where", (condition, _, Const(fill))) if fill == -torch.inf:
            return not set(in_order((i, j))).isdisjoint(conjuncts(condition))
    return False


def conjuncts(condition: Expr) -> list[Expr]:
    """The conjuncts of a condition."""
    match condition:
        case Call("logical_and", (left, right)):
            return [*conjuncts(left), *conjuncts(right)]
    return [condition]


def _chosen(node: fx.Node) -> MaskSpec | None:
    """The pattern given to a node by a rule."""
    mark = info(node).mark
    return mark.mask if isinstance(mark, Mark) else None


def leave(node: fx.Node, draft: Draft) -> None:
    """Leaves attention to keys of earlier calls unchanged, with a report entry."""
    if draft.is_strict:
        raise CaptureError(f"{WHY}: {node.name}", "calls without a cache, or without strict")
    set_info(node, mark=None)
    draft.report.left_dense(node.name, operator_name(node), scope(node), WHY)
    draft.report.warnings.append(f"attention stays dense: {WHY}")


def put_into_operator(node: fx.Node, spec: MaskSpec) -> None:
    """Adds the mask of a pattern to torch's attention operator, combined with its own mask."""
    call_arguments = arguments(node)
    query, key = call_arguments["query"], call_arguments["key"]
    rows, columns = (extent((n, n.meta["val"].dim() - 2), node) for n in (query, key))
    mask, model_mask = (
        _mask_node(node, spec, (rows, columns), query.meta["val"]),
        call_arguments.get("attn_mask"),
    )
    if isinstance(model_mask, fx.Node):
        is_kept, is_own_kept = (n.meta["val"].dtype == torch.bool for n in (mask, model_mask))
        if is_kept and is_own_kept:
            mask = call_before(node, torch.ops.aten.logical_and.default, model_mask, mask)
        elif is_kept or is_own_kept:
            condition, added = (mask, model_mask) if is_kept else (model_mask, mask)
            mask = call_before(node, torch.ops.aten.where.ScalarOther, condition, added, -torch.inf)
        else:
            mask = call_before(node, torch.ops.aten.add.Tensor, model_mask, mask)
    if mask.meta["val"].dtype not in (torch.bool, query.meta["val"].dtype):
        mask = call_before(node, torch.ops.aten.to.dtype, mask, query.meta["val"].dtype)
    rest = {
        name: part
        for name, part in call_arguments.items()
        if name not in ("query", "key", "value", "is_causal")
    }
    node.args, node.kwargs = (query, key, call_arguments["value"]), {**rest, "attn_mask": mask}


def put_into_scores(softmax: fx.Node, noted: AttentionNodes, spec: MaskSpec) -> None:
    """Adds the mask of a pattern to the scores of written-out attention."""
    user = noted.reader
    extents = (extent(noted.extents[-2], user), extent(noted.extents[-1], user))
    put_pattern(softmax, noted, _mask_node(user, spec, extents, noted.scores.meta["val"]))


def put_pattern(softmax: fx.Node, noted: AttentionNodes, mask: fx.Node) -> None:
    """Adds the mask of a pattern to the scores of a softmax, and seeds to the dropout of its weights.

    Args:
        mask: truth values, or numbers added to scores.
    """
    before, user = noted.scores.meta["val"], noted.reader
    if mask.meta["val"].dtype == torch.bool:
        scores = call_before(user, torch.ops.aten.where.ScalarOther, mask, noted.scores, -torch.inf)
    else:
        if mask.meta["val"].dtype != before.dtype:
            mask = call_before(user, torch.ops.aten.to.dtype, mask, before.dtype)
        scores = call_before(user, torch.ops.aten.add.Tensor, noted.scores, mask)
    for reader in [user for user in noted.scores.users if user is not scores]:
        reader.replace_input_with(noted.scores, scores)
    dtype = argument(softmax, 2, "dtype")
    softmax.target, softmax.args = safe_softmax, (softmax.args[0], -1)
    softmax.kwargs = {"dtype": dtype} if isinstance(dtype, torch.dtype) else {}
    if noted.dropout is not None:
        like = before.new_empty(before.shape[:-2])
        leading = [extent(part, noted.dropout) for part in noted.extents[:-2]]
        noted.dropout.kwargs = {"rate": float(argument(noted.dropout, 1, "p", 0.5))}
        noted.dropout.args = (noted.dropout.args[0], seeds(noted.dropout, leading, like))
        noted.dropout.target = dropped_weights


def extent(part: Any, user: fx.Node) -> Any:
    """An extent as a number, or as a node before `user`."""
    if isinstance(part, int):
        return part
    node, mode = part
    size = node.meta["val"].shape[mode]
    return size if isinstance(size, int) else size_node(node, mode, size, user)


def _mask_node(user: fx.Node, spec: MaskSpec, extents: tuple[Any, Any], query: Tensor | None) -> fx.Node:
    """The mask of a pattern before an attention node; its fake value is built without a mask."""
    assert query is not None, "attention is of tensors"
    device: dict[str, Any] = {} if query.is_cpu else {"device": query.device}
    with user.graph.inserting_before(user):
        mask_arguments = (spec.kind, spec.arguments, *extents, spec.stamp)
        node = user.graph.call_function(attention_mask, mask_arguments, device)
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
    """The dense mask of a pattern, [rows, columns] or [heads, rows, columns]: truth values, or summands."""
    spec = MaskSpec(kind, tuple((name, value) for name, value in arguments), stamp)
    return spec.mask(rows, columns).to_dense().to(device)
