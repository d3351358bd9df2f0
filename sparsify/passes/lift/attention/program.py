"""Attention under a pattern as one einsum program: scores where the pattern is, their softmax, the weighted sum.

In: `%y = scaled_dot_product_attention(%q, %k, %v, attn_mask=%m)`, `%m` of a pattern.
Out: a region of five statements over `Q`, `K`, `V`, the pattern `M` and the model's own mask `B`.

Queries without any key give 0, as torch's attention does. Scores in bounds, `c * tanh(s / c)`, are a statement more;
a sink is a term more in the sum of each row, which has no value.
"""

from math import inf
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer_format import dense_format
from sparsify.compiler.einsum.nodes import Const
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.passes.graph.draws import drawn_factor
from sparsify.passes.graph.operators import argument, tensor_value
from sparsify.passes.lift.attention.dropout import dropped_attention
from sparsify.passes.lift.attention.grouped_query import own_keys
from sparsify.passes.lift.attention.mask import MaskedAttention, mask_of
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import PatternOperand
from sparsify.sparsification.mask_spec import MaskSpec
from sparsify.storage.format import Format

DTYPES: Final = {
    torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16",
}  # fmt: skip
# How the note of a region begins.
UNDER: Final = "attention under "
BIASED: Final = "its bias is read by distance; wanted gradients of that are those of dense attention"
# A vector over distances begins with that of the first key from the last query.
DISTANCE: Final = "j - i + extent(i) - 1"
# Index variables of batch and heads, the innermost last.
OUTER: Final = ("a", "b", "h")


def attention_region(node: fx.Node) -> Region | str:
    """The region of an attention node that has a pattern, or why there is none."""
    match = mask_of(node)
    query, key, value = (argument(node, place, name) for place, name in enumerate(("query", "key", "value")))
    why = reason_against(node, query, key, value)
    if why:
        return why
    result = tensor_value(node)
    assert result is not None, "attention is of tensors"
    outer = OUTER[-(result.dim() - 2) :] if result.dim() > 2 else ()
    (key, has_one_key), (value, has_one_value) = own_keys(key), own_keys(value)
    keys, values = (outer[:-1] if has_one else outer for has_one in (has_one_key, has_one_value))
    mask = PatternOperand(f"M_{node.name}", match.spec, match.extents, match.spec.example().format)
    names = {query.name: "Q", key.name: "K", value.name: "V", mask.name: "M"}
    operands: dict[str, Any] = {query.name: query, key.name: key, value.name: value, mask.name: mask}
    dtype = DTYPES[result.dtype]
    read = {"Q": (*outer, "i", "k"), "K": (*keys, "j", "k"), "V": (*values, "j", "l")}
    declared = {name: Operand(Format("dense", rank=len(indices)), dtype) for name, indices in read.items()}
    stored, fill = ("float32", -inf) if match.spec.is_weighted else ("bool", False)
    declared["M"] = Operand(mask.format, stored, fill, result_index_dtypes(mask.format))
    if node.target is dropped_attention:
        seed = argument(node, 3, "seed")
        names[seed.name], operands[seed.name] = "seed", seed
        declared["seed"] = Operand(dense_format(len(outer)), "int32")
    sinks, cap = node.kwargs.get("sinks"), node.kwargs.get("softcap")
    if isinstance(sinks, fx.Node):
        names[sinks.name], operands[sinks.name] = "Z", sinks
        declared["Z"] = Operand(dense_format(len(outer) + 1), dtype)
    text_added, kept = own_terms(match, outer, names, operands, declared)
    text = program_text(
        read,
        scale_of(node),
        match.spec,
        text_added,
        kept,
        factor=dropped(node, outer),
        cap=None if cap is None else float(cap),  # type: ignore[arg-type]
        has_sinks="Z" in declared,
    )
    widths = {"k": query.meta["val"].shape[-1], "l": value.meta["val"].shape[-1]}
    sizes = {index: int(str(width)) for index, width in widths.items() if str(width).isdigit()}
    program = declare(parse(text), declared, ("Y",), sizes=sizes)
    statement = (node, (*outer, "i", "l"), Const(0))
    covered = [*match.made, node]
    names[node.name] = "Y"
    notes = [f"{UNDER}{match.spec}"]
    densely = ("R",) if "R" in declared else ()
    if densely:
        notes.append(BIASED)
    return Region([statement], operands, covered, notes, program, names, densely=densely)


def reason_against(node: fx.Node, query: fx.Node, key: fx.Node, value: fx.Node) -> str:
    """Why an attention node has no program, "" when it has one."""
    tensors = [tensor_value(operand) for operand in (query, key, value)]
    result = tensor_value(node)
    if result is None or any(tensor is None for tensor in tensors):
        return "its operands are not all tensors"
    if result.dtype not in DTYPES or any(tensor.dtype != result.dtype for tensor in tensors):  # type: ignore[union-attr]
        return f"attention in {result.dtype} is not supported"
    outer = list(map(str, query.meta["val"].shape[:-2]))
    shapes = {tuple(outer)}
    for operand in (key, value):
        _, has_one = own_keys(operand)
        shape = list(map(str, operand.meta["val"].shape[:-2]))
        shapes.add(tuple([*shape[:-1], outer[-1]] if has_one else shape))
    if len(shapes) > 1 and node.kwargs.get("enable_gqa") and not all(shape[-1].isdigit() for shape in shapes):
        few = key.meta["val"].shape[-3]
        return (
            f"queries have {outer[-1]} heads and keys {few}, extents of inputs that may vary: groups of heads need "
            "numbers; dynamic=() fixes all extents, dynamic={name: modes} all but those that it names"
        )
    if len(shapes) > 1:
        return f"batch or heads of queries, keys and values differ: {sorted(shapes)}"
    if result.dim() - 2 > len(OUTER):
        return f"attention with {result.dim()} modes is not supported"
    return ""


def scale_of(node: fx.Node) -> float:
    """What scores are multiplied with."""
    given: Any = node.kwargs.get("scale")
    if given is not None:
        return float(given)
    query = tensor_value(argument(node, 0, "query"))
    assert query is not None, "attention is of tensors"
    return float(int(query.shape[-1]) ** -0.5)


def dropped(node: fx.Node, outer: tuple[str, ...]) -> str:
    """The factor of weights that may be dropped, in index notation; "" without dropout."""
    if node.target is not dropped_attention:
        return ""
    rate = float(node.kwargs["dropout_p"])  # type: ignore[arg-type]
    return drawn_factor(f"seed[{','.join(outer)}]" if outer else "seed", rate)


def own_terms(
    match: MaskedAttention,
    outer: tuple[str, ...],
    names: dict[str, str],
    operands: dict[str, Any],
    declared: dict[str, Operand],
) -> tuple[str, str]:
    """What a model adds to scores and the access to truth values that keep them, in index notation; "" for nothing.

    Args:
        match: the mask.
        outer: the index variables of batch and heads.
        names, operands, declared: of a region, to which those of the mask are added.
    """
    own, bias = "", ""
    if isinstance(match.bias, fx.Node):
        names[match.bias.name], operands[match.bias.name] = "R", match.bias
        along = tensor_value(match.bias)
        assert along is not None, "a bias is a tensor"
        declared["R"] = Operand(dense_format(along.dim()), DTYPES[along.dtype])
        heads = outer[len(outer) + 1 - along.dim() :]
        bias = f"R[{','.join((*heads, DISTANCE))}]"
    elif match.bias is not None and (match.bias or match.own is not None):
        bias = repr(match.bias)
    if match.own is None:
        return bias, ""
    indices = [(*outer, "i", "j")[mode] for mode in match.modes]
    names[match.own.name], operands[match.own.name] = "B", match.own
    kind = tensor_value(match.own)
    assert kind is not None, "a mask is a tensor"
    declared["B"] = Operand(
        dense_format(len(indices)), "bool" if kind.dtype == torch.bool else DTYPES[kind.dtype]
    )
    own = f"B[{','.join(indices)}]"
    if kind.dtype != torch.bool:
        return " + ".join(part for part in (own, bias) if part), ""
    return (f"where({own}, {bias}, {match.elsewhere!r})", "") if bias else ("", own)


def program_text(
    read: dict[str, tuple[str, ...]],
    scale: float,
    spec: MaskSpec,
    added: str = "",
    kept: str = "",
    *,
    factor: str = "",
    cap: float | None = None,
    has_sinks: bool = False,
) -> str:
    """The statements of attention in index notation.

    Args:
        read: index variables of queries, keys and values; the last two have no `h` where a group of heads shares them.
        scale: of the scores.
        spec: the pattern.
        added: to the scores by the model, "" without.
        kept: the access to truth values of the model that keep scores, "" without.
        factor: of the weights, "" without dropout.
        cap: what scores stay below before they are masked, None for all.
        has_sinks: whether each query has a logit Z beside its scores.
    """
    q, k, v = (f"{name}[{','.join(indices)}]" for name, indices in read.items())
    at = "".join(f"{name}," for name in read["Q"][:-2])
    score, bounded = f"{scale!r} * sum(k, {q} * {k})", ""
    head = "h," if spec.heads is not None else ""
    mask = f"M[{head}i,j]"
    if cap is not None:
        # A statement by itself: gradients read the tangents that it gives.
        bounded = f"C[{at}i,j] = where(stored({mask}), tanh({scale / cap!r} * sum(k, {q} * {k})), 0)"
        score = f"{cap!r} * C[{at}i,j]"
    score = f"{score} + {added}" if added else score
    score = f"where({kept}, {score}, -inf)" if kept else score
    if spec.is_weighted:
        score = f"{score} + {mask}"
    if not spec.is_whole:
        score = f"where({mask}, {score}, -inf)"
    # A statement by itself: what is drawn for an entry is drawn once, whatever the width of the values.
    weights, drop = ("D", f"D[{at}i,j] = P[{at}i,j] * {factor}") if factor else ("P", "")
    sums = f"""
        {bounded}
        S[{at}i,j] = where(stored({mask}), {score}, -inf)
        m[{at}i] max= S[{at}i,j]
        P[{at}i,j] = exp(S[{at}i,j] - where(m[{at}i] == -inf, 0, m[{at}i]))
        d[{at}i] += P[{at}i,j]
        {drop}"""
    if not has_sinks:
        return f"{sums}\n Y[{at}i,l] += {weights}[{at}i,j] * {v} / where(d[{at}i] == 0, 1, d[{at}i])"
    # Sums are relative to the maximum of the scores, m, until they meet the sink: `n` is the maximum with it.
    return f"""{sums}
        W[{at}i,l] += {weights}[{at}i,j] * {v}
        n[{at}i] = max(m[{at}i], Z[{at}i])
        c[{at}i] = exp(m[{at}i] - n[{at}i])
        t[{at}i] = d[{at}i] * c[{at}i] + exp(Z[{at}i] - n[{at}i])
        Y[{at}i,l] = W[{at}i,l] * c[{at}i] / t[{at}i]"""
