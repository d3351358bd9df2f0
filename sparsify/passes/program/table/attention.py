"""Attention: a softmax under two products, its masks and dropout."""

from collections.abc import Sequence
from typing import Final

from torch import fx

from sparsify.passes.graph.draws import drawn_factor
from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.reduce import exponentials
from sparsify.passes.program.table.row import is_boolean, require, row

# Index variables of batch and heads, the innermost last.
OUTER: Final = ("a", "b", "h")
# Statements of a softmax, as textbooks call them.
LETTERS: Final = {"scores": "S", "max": "m", "exp": "P", "sum": "d", "kept": "D"}


@row(
    "scaled_dot_product_attention(q[p,m,k], q2[p,n,k], v[p,n,l])",
    "scaled_dot_product_attention(q[p,m,k], q2[p,n+1,k], v[p,n+1,l], is_causal=True)",
    "scaled_dot_product_attention(q[p,m,k], q2[p,n,k], v[p,n,l], a[m,n])",
    names=("dropped_attention",),
)
def scaled_dot_product_attention(view: OperatorView) -> str:
    """`sum(j, softmax(j, scale * sum(d, query[..,i,d] * key[..,j,d]) + attn_mask[..,i,j]) * value[..,j,l])`."""
    q, k, v, seed = (view.get(name) for name in ("query", "key", "value", "seed"))
    require(seed is not None or not view.number("dropout_p"), "draws random numbers")
    require(not view.number("enable_gqa"), reason_of_groups(view, q, k))
    *lead, i, column = view.out
    j, d = view.index(view.shape(k)[-2]), view.index(view.shape(q)[-1])
    view.require_equal((view.shape(k)[-2], view.shape(v)[-2]), (view.shape(q)[-1], view.shape(k)[-1]))
    entry = [*lead, i, j]
    s = view.let("scores", entry, scores(view, entry, d))
    _, weights, total = exponentials(view, s, entry, len(lead) + 1)
    if seed is not None and view.number("dropout_p"):
        # A statement by itself: a weight is drawn once, whatever the width of the values.
        factor = drawn_factor(
            view.at(seed, lead), view.number("dropout_p"), f"{place(view, i)}, {place(view, j)}"
        )
        weights = view.let("kept", entry, f"{weights} * {factor}")
    name_as_textbooks(view, dict(zip(("i", "j", "k", "l"), (i, j, d, column), strict=True)), lead)
    values = f"{weights} * {view.at(v, [*lead, j, column])}"
    # A row without keys has the weights 0, where a softmax by itself has 0 / 0.
    return view.reduce("sum", [j], f"{values} / where({total} == 0, 1, {total})")


def scores(view: OperatorView, entry: Sequence[str], d: str) -> str:
    """`where(attn_mask[..,i,j], scale * sum(d, query[..,i,d] * key[..,j,d]), -inf)`, or with the mask added."""
    *lead, i, j = entry
    q, k, mask, given = (view.get(name) for name in ("query", "key", "attn_mask", "scale"))
    width = view.shape(q)[-1]
    scale = view.number("scale") if given is not None else None
    if scale is None and not isinstance(width, int):
        factor = f"(1 / sqrt(extent({d})))"
    else:
        scale = max(1, width) ** -0.5 if scale is None else scale
        factor = literal(float(scale))
    products = view.reduce("sum", [d], f"{view.at(q, [*lead, i, d])} * {view.at(k, [*lead, j, d])}")
    score = f"{factor} * {products}"
    if view.number("is_causal"):
        first = "0" if view.program.extents[i] == 1 else i
        score = f"where({j} <= {first}, {score}, -inf)" if view.program.extents[j] != 1 else score
    if mask is None:
        return score
    require_fitting(view, mask, entry)
    m = view.at(mask, entry)
    return f"where({m}, {score}, -inf)" if is_boolean(mask) else f"{score} + {m}"


@row()
def dropped_weights(view: OperatorView) -> str:
    """`weights[..,i,j] * where(uniform(seed[..], i, j) < rate, 0, 1 / (1 - rate))`."""
    *lead, i, j = view.out
    at = f"{place(view, i)}, {place(view, j)}"
    view.call(view["seed"], "seed")
    return (
        f"{view.at(view['weights'])} * {drawn_factor(view.at(view['seed'], lead), view.number('rate'), at)}"
    )


@row()
def combined_mask(view: OperatorView) -> str:
    """`where(pattern[i,j], where(own[..,i,j], bias[.., j - i + extent(i) - 1], elsewhere), -inf)`, or their sums."""
    pattern, own, bias = (view.get(name) for name in ("pattern", "own", "bias"))
    *lead, i, j = view.out
    number = view.get("elsewhere")
    added = "" if bias is None else view.at(bias)
    if isinstance(bias, fx.Node):
        heads = lead[len(lead) + 1 - view.rank(bias) :]
        first = f"extent({i})" if view.program.extents[i] != 1 else "1"
        added = view.at(bias, [*heads, f"{place(view, j)} - {place(view, i)} + {first} - 1"])
        view.call(bias, "R")
    require_fitting(view, pattern, view.out)
    if own is not None:
        require_fitting(view, own, view.out)
        view.call(own, "B")
    if is_boolean(own) and added:
        added = f"where({view.at(own)}, {added}, {literal(float('-inf') if number is None else number)})"
    elif own is not None and not is_boolean(own):
        added = f"{view.at(own)} + {added}" if added else view.at(own)
    m = view.at(pattern)
    if is_boolean(pattern):
        kept = f"logical_and({view.at(own)}, {m})" if is_boolean(own) and not added else m
        return f"where({m}, {added}, -inf)" if added else kept
    whole = f"{added} + {m}" if added else m
    return f"where({view.at(own)}, {m}, -inf)" if is_boolean(own) and not added else whole


def require_fitting(view: OperatorView, mask: fx.Node, entry: Sequence[str]) -> None:
    """Notes that a mask has as many rows, columns, heads as scores, where it has more than one."""
    sizes = zip(reversed(view.shape(mask)), reversed(entry), strict=False)
    view.require_equal(*[(size, view.program.extents[index]) for size, index in sizes if size != 1])


def place(view: OperatorView, index: str) -> str:
    """The number of a coordinate."""
    return index if view.program.extents[index] != 1 else "0"


def reason_of_groups(view: OperatorView, query: fx.Node, key: fx.Node) -> str:
    """Why heads that share keys have no program."""
    heads, few = (view.shape(operand)[-3] if view.rank(operand) > 2 else 1 for operand in (query, key))
    if isinstance(heads, int) and isinstance(few, int):
        return "groups of heads share keys"
    return (
        f"queries have {heads} heads and keys {few}, extents of inputs that may vary: groups of heads need "
        "numbers; dynamic=() fixes all extents, dynamic={name: modes} all but those that it names"
    )


def name_as_textbooks(view: OperatorView, indices: dict[str, str], lead: Sequence[str]) -> None:
    """Says how textbooks call the operands and index variables of attention."""
    for name, letter in (("query", "Q"), ("key", "K"), ("value", "V"), ("seed", "seed")):
        if name in view:
            view.call(view[name], letter)
    for suffix, letter in LETTERS.items():
        if f"{view.result.name}_{suffix}" in view.program.statements:
            view.program.letters[f"{view.result.name}_{suffix}"] = letter
    view.program.letters |= {index: letter for letter, index in indices.items()}
    outer = [index for index in lead if view.program.extents[index] != 1]
    view.program.letters |= dict(
        zip(outer[-len(OUTER) :], OUTER[-len(outer) :] if outer else (), strict=False)
    )
