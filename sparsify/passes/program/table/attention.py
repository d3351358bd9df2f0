"""Attention: a softmax between two products, with masks and dropout."""

from collections.abc import Sequence

from torch import fx

from sparsify.passes.graph.draws import drawn_factor
from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.reduce import exponentials
from sparsify.passes.program.table.row import is_boolean, require, row


@row(
    "scaled_dot_product_attention(q[p,m,k], q2[p,n,k], v[p,n,l])",
    "scaled_dot_product_attention(q[p,m,k], q2[p,n+1,k], v[p,n+1,l], is_causal=True)",
    "scaled_dot_product_attention(q[p,m,k], q2[p,n,k], v[p,n,l], a[m,n])",
)
def scaled_dot_product_attention(view: OperatorView) -> str:
    """`sum(j, softmax(j, scale * sum(d, query[..,i,d] * key[..,j,d]) + attn_mask[..,i,j]) * value[..,j,l])`."""
    q, k, v = (view.get(name) for name in ("query", "key", "value"))
    require(not view.number("dropout_p"), "draws random numbers")
    require(not view.number("enable_gqa"), "groups of heads share keys")
    *lead, i, column = view.out
    j, d = view.index(view.shape(k)[-2]), view.index(view.shape(q)[-1])
    view.require_equal((view.shape(k)[-2], view.shape(v)[-2]), (view.shape(q)[-1], view.shape(k)[-1]))
    entry = [*lead, i, j]
    s = view.let("scores", entry, scores(view, entry, d))
    _, weights, total = exponentials(view, s, entry, len(lead) + 1)
    # A row without keys has the weights 0; a plain softmax would be 0 / 0.
    return view.reduce(
        "sum", [j], f"{weights} * {view.at(v, [*lead, j, column])} / where({total} == 0, 1, {total})"
    )


def scores(view: OperatorView, entry: Sequence[str], d: str) -> str:
    """`where(attn_mask[..,i,j], scale * sum(d, query[..,i,d] * key[..,j,d]), -inf)`, or with the mask added."""
    *lead, i, j = entry
    q, k, mask, scale_argument = (view.get(name) for name in ("query", "key", "attn_mask", "scale"))
    width = view.shape(q)[-1]
    scale = view.number("scale") if scale_argument is not None else None
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
def scaled_by_width(view: OperatorView) -> str:
    """`1 / sqrt(extent(d)) * scores[..,i,j]`, d the index variable of the queries' width."""
    return f"(1 / sqrt(extent({view.index(view.shape(view['query'])[-1])}))) * {view.at(view['scores'])}"


@row()
def dropped_weights(view: OperatorView) -> str:
    """`weights[..,i,j] * where(uniform(seed[..], i, j) < rate, 0, 1 / (1 - rate))`."""
    *lead, i, j = view.out
    at = f"{coordinate_number(view, i)}, {coordinate_number(view, j)}"
    view.call(view["seed"], "seed")
    return (
        f"{view.at(view['weights'])} * {drawn_factor(view.at(view['seed'], lead), view.number('rate'), at)}"
    )


def require_fitting(view: OperatorView, mask: fx.Node, entry: Sequence[str]) -> None:
    """Records that each non-unit mode of a mask has the extent of the scores."""
    sizes = zip(reversed(view.shape(mask)), reversed(entry), strict=False)
    view.require_equal(*[(size, view.program.extents[index]) for size, index in sizes if size != 1])


def coordinate_number(view: OperatorView, index: str) -> str:
    """The number of a coordinate."""
    return index if view.program.extents[index] != 1 else "0"
