"""Attention that a model spells out, as the one operator that rules name: `scaled_dot_product_attention`.

In: `%s = matmul(%q, transpose(%k, -1, -2)); %s2 = div(%s, 8.0); %s3 = add(%s2, %mask); %p = softmax(%s3, -1);
%y = matmul(%p, %v)`. Out: `%y = scaled_dot_product_attention(%q, %k, %v, attn_mask=%mask, scale=0.125)`.

Only where nothing else reads the scores or the weights, so that no output of the model is lost. Scores whose first mode
is two for a while, to add a mask to those of each window, are of attention with that many modes. What torch's operator
has no argument for is one of `reference`: `20 * tanh(%s / 20)` for scores, and sinks, `cat([%s, %z], -1)`.
Scores and weights may be in other dtypes than the operands: `softmax(%s, -1, dtype=float32)` of halves.
"""

from dataclasses import dataclass, field
from functools import partial, reduce
from math import inf
from typing import Any

import torch
from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.capture.libraries.transformers_bigbird import own_pattern
from sparsify.passes.graph.canonicalize import remove_unused, sizes_of
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.node_info import set_info
from sparsify.passes.graph.operators import (
    COPIES,
    argument,
    is_dropout,
    is_inactive_dropout,
    operator_name,
    scope,
    tensor_value,
)
from sparsify.passes.lift.attention import reference, sinks
from sparsify.passes.lift.attention.float_casts import (
    CONVERSIONS,
    are_numbers,
    in_dtype,
    is_within,
    keeps_values,
    not_widened,
    widest,
)
from sparsify.passes.lift.attention.spelled import spelled
from sparsify.passes.program.translate import translate

aten = torch.ops.aten
PRODUCTS = ("matmul", "bmm")


@dataclass
class Scores:
    """What a softmax is taken of: `scale * (query @ keys) + masks`, or `cap * tanh(scale * (query @ keys)) + masks`.

    Attributes:
        product: of queries and keys.
        scale: of the product.
        cap: of the scores, None without.
        masks: what is added to it.
        kept: truth values, where entries are kept; other ones count nothing.
        split: the view of the scores with their first mode as two, to which the last ones of `masks` are added.
        grouped: how many of `masks` are.
    """

    product: fx.Node
    scale: float = 1.0
    cap: float | None = None
    masks: list[fx.Node] = field(default_factory=list)
    kept: fx.Node | None = None
    split: fx.Node | None = None
    grouped: int = 0


def attention(draft: Draft) -> Draft:
    """The draft with attention as one operator, where rules put patterns into attention."""
    if draft.asked.has_masks:
        program = translate(draft.graph)
        for node in list(draft.graph.nodes):
            if operator_name(node) == "softmax":
                found = spelled(program, node)
                if not isinstance(found, str):
                    set_info(node, attention=found)
                    continue
                spell_sum(node)
                if join(node):
                    set_info(node, no_attention=found)
        remove_unused(draft.graph)
        modules = dict(draft.model.named_modules())  # a graph of Dynamo's has none of those that it names
        for node in draft.graph.find_nodes(
            op="call_function", target=aten.scaled_dot_product_attention.default
        ):
            module = modules.get(scope(node).partition("@")[0])
            own = None if module is None else own_pattern(module)
            if own is not None:
                set_info(node, own_pattern=own)
    return draft


def spell_sum(softmax: fx.Node) -> None:
    """`softmax(baddbmm(m, q, k, beta, alpha)) -> softmax(alpha * bmm(q, k) + beta * m)`."""
    node = softmax.args[0]
    while isinstance(node, fx.Node) and operator_name(node) in COPIES:
        node = node.args[0]
    if not isinstance(node, fx.Node) or operator_name(node) != "baddbmm":
        return
    mask, query, keys = node.args[:3]
    with node.graph.inserting_before(node):
        total = call(aten.bmm.default, query, keys)
        if (alpha := argument(node, 4, "alpha", 1)) != 1:
            total = call(aten.mul.Tensor, total, alpha)
        if (beta := argument(node, 3, "beta", 1)) != 0:
            total = call(aten.add.Tensor, total, mask if beta == 1 else call(aten.mul.Tensor, mask, beta))
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)


def join(softmax: fx.Node) -> str:
    """Replaces the attention around a softmax, where it is one; why it is none elsewhere."""
    weights = tensor_value(softmax)
    if weights is None or argument(softmax, 1, "dim") not in (-1, weights.dim() - 1):
        return "it is not taken along the last mode"
    path, rate, is_cut = weighted_sum(softmax)
    if not path:
        readers = ", ".join(map(str, softmax.users))
        return (
            f"its weights are read by {readers}: attention is one product with values that alone reads them"
        )
    found = sinks.apart(softmax.args[0], is_cut)
    scores = None if found is None else scores_of(found.scores)
    if found is None or scores is None or (found.sinks is not None and scores.split is not None):
        return "it is not taken of a product of queries and keys, scaled, with masks added, that nothing else reads"
    product = path[-1]
    query, keys = scores.product.args[:2]
    value = product.args[1]
    operands = [
        not_widened(node)
        for node in (query, keys, value)
        if isinstance(node, fx.Node) and tensor_value(node) is not None
    ]
    if len(operands) < 3:
        return "queries, keys or values are no tensors of the graph"
    beside = [*scores.masks, *([] if found.sinks is None else [found.sinks])]
    dtype = widest([*operands, *beside, product])
    if not is_within(weights.dtype, dtype):
        return f"it is computed in {weights.dtype}, and its operands are in {dtype}"
    with product.graph.inserting_before(product):
        keys = operands[1]
        operands[1] = not_widened(turned_back(keys, weights.dim()) or turned(keys))
        if scores.split is not None:
            operands = [split_first(operand, scores.split) for operand in operands]
        operands = [in_dtype(operand, dtype) for operand in operands]
        mask, logits = (None if n is None else in_dtype(n, dtype) for n in (mask_of(scores), found.logits()))
        named: dict[str, Any] = {"attn_mask": mask, "scale": scores.scale * (scores.cap or 1.0)}
        if rate:
            named["dropout_p"] = rate
        target: Any = aten.scaled_dot_product_attention.default
        if scores.cap is not None or found.sinks is not None:
            target = reference.scaled_dot_product_attention
            named |= {"softcap": scores.cap, "sinks": logits}
        new = product.graph.call_function(target, tuple(operands), named)
        whole = product.meta["val"]
        new.meta = {**product.meta, "val": whole.to(dtype)}
        if scores.split is not None:
            new.meta["val"] = split_value(product, scores.split).to(dtype)
            new = call(aten.flatten.using_ints, new, 0, 1)
        new = in_dtype(new, whole.dtype)
    product.replace_all_uses_with(new)
    for node in reversed(path):  # dropout among them: what is random stays where it is, read or not
        node.graph.erase_node(node)
    return ""


def mask_of(scores: Scores) -> fx.Node | None:
    """All masks of scores as one, None without any."""
    if scores.kept is not None:
        return call(aten.logical_not.default, scores.kept)
    masks = list(scores.masks)
    for place, mask in enumerate(masks[scores.grouped :] if scores.split is not None else ()):
        if mask.meta["val"].dim() == scores.product.meta["val"].dim():
            masks[scores.grouped + place] = call(aten.unsqueeze.default, mask, 0)
    return reduce(partial(call, aten.add.Tensor), masks) if masks else None


def split_first(node: fx.Node, split: fx.Node) -> fx.Node:
    """A tensor with its first mode as two, as `split` has it."""
    sizes = sizes_of(node, split)
    assert sizes is not None, "queries, keys and values are tensors"
    leading = argument(split, 1, "size")[:-2]
    view = node.graph.call_function(aten.reshape.default, (node, [*leading, *sizes[-2:]]))
    view.meta["val"] = split_value(node, split)
    return view


def split_value(node: fx.Node, split: fx.Node) -> torch.Tensor:
    """What `split_first` computes."""
    value, wanted = tensor_value(node), tensor_value(split)
    assert value is not None and wanted is not None, "scores are of tensors"
    return value.new_empty((*wanted.shape[:-2], *value.shape[-2:]))


def weighted_sum(softmax: fx.Node) -> tuple[list[fx.Node], float, bool]:
    """The nodes from the weights to their product with the values, the rate of dropout, and whether a sink is cut off.

    No nodes where something else reads the weights.
    """
    node, path, rate, is_cut = softmax, list[fx.Node](), 0.0, False
    while len(node.users) == 1:
        user = next(iter(node.users))
        path.append(user)
        if operator_name(user) in PRODUCTS:
            return (path, rate, is_cut) if user.args[0] is node else ([], 0.0, False)
        if not is_cut and sinks.is_without_last(user):
            is_cut = True
        elif is_dropout(user) and rate == 0:
            rate = float(argument(user, 1, "p", 0.5))
        elif not (keeps_values(user, node) or is_inactive_dropout(user)):
            break
        node = user
    return [], 0.0, False


def scores_of(first_node: fx.Node) -> Scores | None:
    """What scores are made of, from the last step to the product of queries and keys."""
    found = Scores(first_node)
    joined: fx.Node | None = None
    node: Any = first_node
    while isinstance(node, fx.Node) and tensor_value(node) is not None:
        if node is not first_node and len(node.users) != 1:
            return None
        name = operator_name(node)
        first: Any
        second: Any
        first, second = (*node.args, None, None)[:2]
        if name in PRODUCTS:
            found.product = node
            return found if (joined is None) == (found.split is None) else None
        if name in ("mul", "div") and isinstance(second, int | float):
            found.scale *= second if name == "mul" else 1 / second
            node = first
        elif name == "tanh" and found.cap is None and found.scale != 0:
            node, found.cap, found.scale = first, found.scale, 1.0
        elif found.cap is not None and name in ("add", "masked_fill"):
            return None  # of masks that are in bounds with the scores
        elif name == "add" and argument(node, 2, "alpha", 1) == 1 and found.scale == 1:
            # Only where the scores are scaled before: a mask is not scaled with them.
            side = _score_side(first, second, node)
            if side is None or found.kept is not None:
                return None
            if found.split is not None and not _is_repeated(side[1], node):
                return None
            node = side[0]
            found.masks.append(side[1])
        elif name == "masked_fill" and _is_nothing(argument(node, 2, "value")) and not found.masks:
            if found.kept is not None or found.scale != 1:
                return None
            node, found.kept = first, second
        elif name == "view" and joined is None and not found.masks and _splits(node, first):
            joined, node = node, first
        elif name == "view" and joined is not None and found.split is None and _splits(first, node):
            found.split, found.grouped, node = node, len(found.masks), first
        elif keeps_values(node, first):
            node = first
        else:
            return None
    return None


def _splits(whole: Any, parts: Any) -> bool:
    """Whether `parts` is a view of `whole` with two modes in place of the first one."""
    one, two = tensor_value(whole), tensor_value(parts)
    if one is None or two is None or two.dim() != one.dim() + 1:
        return False
    return list(map(str, one.shape[1:])) == list(map(str, two.shape[2:]))


def _is_repeated(mask: fx.Node, scores: fx.Node) -> bool:
    """Whether a mask is the same along the first mode of the scores."""
    added, value = tensor_value(mask), tensor_value(scores)
    assert added is not None and value is not None, "sums are of tensors"
    return added.dim() < value.dim() or str(added.shape[0]) == "1"


def _score_side(first: Any, second: Any, result: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The scores and the mask of a sum."""
    wanted = tensor_value(result)
    # A sum, a view or a conversion may be the mask's; what a product is behind at once is not.
    for names in ((*PRODUCTS, "mul", "div", "masked_fill"), ("add", "view"), CONVERSIONS):
        for scores, mask in ((first, second), (second, first)):
            value, added = tensor_value(scores), tensor_value(mask)
            if value is None or added is None or wanted is None:
                continue
            is_whole = tuple(map(str, value.shape)) == tuple(map(str, wanted.shape))
            is_scores = operator_name(scores) in names and len(scores.users) == 1
            if is_whole and is_scores and are_numbers(added.dtype, wanted.dtype):
                return scores, mask
    return None


def _is_nothing(value: Any) -> bool:
    """Whether a masked score counts nothing; finite ones count where all keys of a query are masked."""
    return isinstance(value, int | float) and value == -inf


def turned(keys: fx.Node) -> fx.Node:
    """`transpose(keys, -1, -2)`; the mode of a group of heads that share keys stays the last view."""
    value, base = keys.meta["val"], keys.args[0]
    if operator_name(keys) == "unsqueeze" and isinstance(base, fx.Node):
        mode = int(argument(keys, 1, "dim")) % value.dim()
        if mode < value.dim() - 2:
            return call(aten.unsqueeze.default, turned(base), mode)
    return call(aten.transpose.int, keys, -1, -2)


def turned_back(keys: Any, rank: int) -> fx.Node | None:
    """The keys of `transpose(keys, -1, -2)`, None for other nodes."""
    name = operator_name(keys)
    base = keys.args[0] if keys.args else None
    if name in ("mT", "adjoint"):  # of numbers that are not complex, as scores are
        return base
    if name in ("transpose", "swapaxes", "swapdims"):
        modes = sorted(mode % rank for mode in (argument(keys, 1, "dim0"), argument(keys, 2, "dim1")))
        return base if modes == [rank - 2, rank - 1] else None
    if name == "permute":
        modes = [mode % rank for mode in argument(keys, 1, "dims")]
        return base if modes == [*range(rank - 2), rank - 1, rank - 2] else None
    return None
