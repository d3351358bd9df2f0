"""Gathers and scatters at indices held by a tensor, written as conditions `index[e] == j`.

The index is an ordinary condition of index notation, so that all spellings of a gather or a scatter have one form:
`rewrite/relation` turns the condition into an adjacency, and torch computes the unlifted rest.
"""

from collections.abc import Sequence
from typing import Any

from torch import fx

from sparsify.compiler.einsum.nodes import Expr
from sparsify.passes.graph.draws import drawn_factor
from sparsify.passes.graph.operators import known_size
from sparsify.passes.program.model import Refusal, size_of
from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.row import is_boolean, require, row

# Monoid and initial value of each torch reduction, by name.
MONOIDS = {"sum": ("sum", "0"), "mean": ("sum", "0"), "amax": ("max", "-inf"), "amin": ("min", "inf")}


def read(view: OperatorView, tensor: fx.Node, mode: int, places: str, names: Sequence[str]) -> str:
    """`sum(j, where(places == j, tensor[.., j, ..], 0))`, the other modes of the tensor at `names`."""
    size = view.shape(tensor)[mode]
    require(size not in (0, 1), "a mode of extent 0 or 1")
    require(not is_boolean(tensor), "truth values are not added up")
    j = view.index(size)
    entry = view.at(tensor, [*names[:mode], j, *names[mode:]])
    return f"sum({j}, where({places} == {j}, {entry}, 0))"


def require_places(view: OperatorView, index: Any) -> fx.Node:
    """The integer tensor of indices.

    Raises:
        Refusal: the argument is no integer tensor.
    """
    if not isinstance(index, fx.Node) or is_boolean(index) or index.meta["val"].is_floating_point():
        raise Refusal("places are whole numbers")
    return index


@row("index_select(x[m,n+1], 1, i[k]:n)", "index_select(x[m+1,n], 0, i[k]:m)")
def index_select(view: OperatorView) -> str:
    """`sum(j, where(index[e] == j, self[j,k], 0))`."""
    tensor, mode = view["self"], view.mode(view["self"])
    index = require_places(view, view["index"])
    return read(
        view, tensor, mode, view.at(index, [view.out[mode]]), [*view.out[:mode], *view.out[mode + 1 :]]
    )


@row("embedding(w[n+1,k], i[m]:n)", "embedding(w[n+1,k], i[m,p]:n)")
def embedding(view: OperatorView) -> str:
    """`sum(j, where(indices[e] == j, weight[j,k], 0))`."""
    index = require_places(view, view["indices"])
    return read(view, view["weight"], 0, view.at(index, view.out[:-1]), [view.out[-1]])


@row("index(x[m+1,n], [i[k]:m])", "index(x[m,n+1], [None, i[k]:n])", "index(x[m+1,n], [i[k,p]:m])")
def index(view: OperatorView) -> str:
    """`sum(j, where(indices[e] == j, self[j,k], 0))`."""
    indexed = [(mode, tensor) for mode, tensor in enumerate(view["indices"]) if tensor is not None]
    require(len(indexed) == 1, "places of several modes")
    require(not is_boolean(indexed[0][1]), "the data decides the shape")
    mode, places = indexed[0][0], require_places(view, indexed[0][1])
    last = mode + view.rank(places)
    names = [*view.out[:mode], *view.out[last:]]
    return read(view, view["self"], mode, view.at(places, view.out[mode:last]), names)


@row("gather(x[m,n+1], 1, i[m,k]:n)")
def gather(view: OperatorView) -> str:
    """`sum(j, where(index[e,k] == j, self[j,k], 0))`."""
    tensor, mode = view["self"], view.mode(view["self"])
    places = require_places(view, view["index"])
    others = [*view.out[:mode], *view.out[mode + 1 :]]
    require_same(view, without(extents(tensor), mode), without(extents(places), mode))
    return read(view, tensor, mode, view.at(places, view.out), others)


BAG_MODES = ("sum", "mean", "max")  # by torch's number


@row(
    "embedding_bag(w[n+1,k], i[m+p+1]:n, torch.arange(m + 1))[0]",
    "embedding_bag(w[n+1,k], i[m+p+1]:n, torch.arange(m + 1), False, 1)[0]",
    "embedding_bag(w[n+1,k], i[m+p+1]:n, torch.arange(m + 1), False, 2)[0]",
    "embedding_bag(w[n+1,k], i[m+p+1]:n, torch.arange(m + 1), False, 0, False, v[m+p+1])[0]",
    "embedding_bag(w[n+1,k], i[m]:n, torch.arange(m + 1), False, 1, False, None, True)[0]",
    "embedding_bag(w[n+1,k], i[m+p+1]:n, torch.arange(m + 1), False, 1, False, None, False, 0)[0]",
    "embedding_bag(w[n+1,k], i[m+p+1]:n, torch.arange(m + 1), False, 2, False, None, False, n)[0]",
)
def embedding_bag(view: OperatorView) -> str:
    """`sum(p, where(bag[p] == b, sum(j, where(indices[p] == j, weight[j,k], 0)), 0))`, or the mean or max.

    Index p is in bag b where b + 1 offsets are no larger than p: `bag[p] = sum(a, where(offsets[a] <= p, 1, 0)) - 1`.
    """
    table, indices, offsets = (view[name] for name in ("weight", "indices", "offsets"))
    is_alone = view.result.args[1:] == (0,) and len(view.node.users) == 1
    require(is_alone, "bags and places of extrema are read, too")
    require(not view["sparse"], "sparse=True asks for gradients as torch's sparse tensors")
    require(
        not view["scale_grad_by_freq"],
        "scale_grad_by_freq=True asks for gradients that no derivative of the result is",
    )
    rows = view.shape(table)[0]
    require(isinstance(rows, int), "how many rows the table has is known in a call alone")
    require(
        not {0, 1} & {*view.sizes[:1], *view.shape(indices), *view.shape(offsets)}, "a mode of extent 0 or 1"
    )
    p, a, (b, k) = view.index(view.shape(indices)[0]), view.index(view.shape(offsets)[0]), view.out
    bag = view.let("bag", [p], f"sum({a}, where({view.at(offsets, [a])} <= {p}, 1, 0)) - 1")
    view.program.bounds[bag.partition("[")[0]] = offsets.name
    row_number, entry = view.at(indices, [p]), read(view, table, 0, view.at(indices, [p]), [k])
    if "per_sample_weights" in view:
        entry = f"{view.at(view['per_sample_weights'], [p])} * {entry}"
    how, padding, counted = BAG_MODES[view.number("mode")], view.number("padding_idx"), "1.0"
    if padding is not None:
        counted = f"where({row_number} == {padding % rows}, 0.0, 1.0)"
        entry = f"where({row_number} == {padding % rows}, {'-inf' if how == 'max' else '0'}, {entry})"
    if how == "sum":
        return f"sum({p}, where({bag} == {b}, {entry}, 0))"
    count = view.let("count", [b], f"sum({p}, where({bag} == {b}, {counted}, 0.0))")
    if how == "max":
        reduced_bag = view.let("reduced", [b, k], f"max({p}, where({bag} == {b}, {entry}, -inf))")
        return f"where({count} == 0, 0, {reduced_bag})"
    return f"sum({p}, where({bag} == {b}, {entry}, 0)) / where({count} == 0, 1, {count})"


@row("one_hot(i[m]:n, n+1)")
def one_hot(view: OperatorView) -> str:
    """`where(self[e] == k, 1, 0)`."""
    require(view.sizes[-1] != 1, "a mode of extent 1")
    return f"where({view.at(require_places(view, view['self']), view.out[:-1])} == {view.out[-1]}, 1, 0)"


@row()
def dropped_edges(view: OperatorView) -> Expr:
    """`self[e,h] * where(uniform(seed[h], rows[e], columns[e]) < rate, 0, 1 / (1 - rate))`."""
    values, seed, *ends = view.node.args
    edge = "0" if view.sizes[0] == 1 else view.out[0]
    places = ", ".join(view.at(end, view.out[:1]) for end in ends) or f"{edge}, 0"
    factor = drawn_factor(view.at(seed, view.out[1:]), float(view["rate"]), places)
    return view.expression(f"{view.at(values)} * {factor}")


@row("index_add(x[m+1,n], 0, i[k]:m, y[k,n])", "index_add(x[m,n+1], 1, i[k]:n, y[m,k], alpha=2)")
def index_add(view: OperatorView) -> str:
    """`self[i,k] + sum(e, where(index[e] == i, source[e,k], 0))`."""
    mode = view.mode(view["self"])
    places, e = require_places(view, view["index"]), view.index(view.shape(view["index"])[0])
    require_same(view, without(extents(view["source"]), mode), without(view.value.shape, mode))
    factor = view.number("alpha", 1)
    entry = view.at(view["source"], replaced(view.out, mode, e))
    entry = entry if factor == 1 else f"{literal(factor)} * {entry}"
    return written(view, mode, view.at(places, [e]), [e], entry, "sum", is_included=True)


@row(
    "index_put(x[m+1,n], [i[k]:m], y[k,n], True)",
    "index_put(x[m+1,n], [i[k]:m], y[n], True)",
    "index_put(x[m,n], [c[m]:bool], y[n])",
    "index_put(x[m,n], [c[m,n]:bool], y[], True)",
)
def index_put(view: OperatorView) -> str:
    """`self[i,k] + sum(e, where(indices[e] == i, values[e,k], 0))`; `where(mask[i], values[k], self[i,k])`."""
    indices = list(view["indices"])
    if len(indices) == 1 and is_boolean(indices[0]):
        return put_where(view, indices[0])
    require(bool(view["accumulate"]), "the last one of several writes to a place counts")
    require(len(indices) == 1 and indices[0] is not None, "places of several modes")
    places = require_places(view, indices[0])
    require(view.rank(places) == 1, "places of several modes")
    e = view.index(view.shape(places)[0])
    entry = view.at(view["values"], replaced(view.out, 0, e))
    return written(view, 0, view.at(places, [e]), [e], entry, "sum", is_included=True)


def put_where(view: OperatorView, mask: fx.Node) -> str:
    """`where(mask[i], values[k], self[i,k])`, with values independent of the position.

    Raises:
        Refusal: each position has a separate value, in the order of positions.
    """
    chosen, rest = view.out[: view.rank(mask)], view.out[view.rank(mask) :]
    require(view.rank(view["values"]) <= len(rest), "values in the order of the places that a mask names")
    base, value = view.at(view["self"]), view.at(view["values"], rest) if rest else view.at(view["values"])
    value = f"{base} + {value}" if view["accumulate"] else value
    return f"where({view.at(mask, chosen)}, {value}, {base})"


@row(
    "scatter_add(x[m+1,n], 0, i[k,n]:m, y[k,n])",
    "scatter_reduce(x[m+1,n], 0, i[k,n]:m, y[k,n], 'sum')",
    "scatter_reduce(x[m+1,n], 0, i[k,n]:m, y[k,n], 'mean', include_self=False)",
    "scatter_reduce(x[m+1,n], 0, i[k,n]:m, y[k,n], 'mean')",
    "scatter_reduce(x[m+1,n], 0, i[k,n]:m, y[k,n], 'amax', include_self=False)",
    "scatter_reduce(x[m,n+1], 1, i[m,k]:n, y[m,k], 'amin')",
    names=("scatter_reduce",),
)
def scatter_add(view: OperatorView) -> str:
    """`self[i,k] + sum(e, where(index[e,k] == i, src[e,k], 0))`, or another monoid."""
    how = view.get("reduce", default="sum")
    require(how in MONOIDS, f"reduce={how!r}")
    mode = view.mode(view["self"])
    places, source = require_places(view, view["index"]), view["src"]
    shape = extents(places)
    require_same(view, shape, extents(source))
    require_same(view, without(shape, mode), without(view.value.shape, mode))
    e = view.index(shape[mode])
    names = replaced(view.out, mode, e)
    included = bool(view.get("include_self", default=True)) if "include_self" in view.arguments else True
    return written(view, mode, view.at(places, names), [e], view.at(source, names), how, is_included=included)


def written(
    view: OperatorView,
    mode: int,
    places: str,
    edges: Sequence[str],
    entry: str,
    how: str,
    *,
    is_included: bool,
) -> str:
    """The tensor `self` with entries reduced into it; entries with equal indices are combined.

    Args:
        mode: mode of the indices.
        places: index of an entry.
        edges: index variables of entries.
        entry: written value.
        how: `sum`, `mean`, `amax` or `amin`.
        is_included: whether the old value takes part in the reduction.
    """
    i, base = view.out[mode], view.at(view["self"])
    require(view.sizes[mode] not in (0, 1) and not is_boolean(view["self"]), "a mode of extent 0 or 1")
    monoid, fill = MONOIDS[how]
    reduced_entries = view.reduce(monoid, edges, f"where({places} == {i}, {entry}, {fill})")
    if how == "sum" and is_included:
        return f"{base} + {reduced_entries}"
    if how in ("amax", "amin") and is_included:
        return f"{monoid}({base}, {reduced_entries})"
    count = view.let("count", view.out, view.reduce("sum", edges, f"where({places} == {i}, 1.0, 0.0)"))
    reduced_entries = view.let("reduced", view.out, reduced_entries)
    if how == "mean":
        require(view.value.is_floating_point(), "a mean of whole numbers")
        total = f"({base} + {reduced_entries})" if is_included else reduced_entries
        number = f"({count} + 1.0)" if is_included else f"{count}"
        return f"where({count} == 0, {base}, {total} / {number})"
    return f"where({count} == 0, {base}, {reduced_entries})"


def replaced(names: Sequence[str], mode: int, name: str) -> list[str]:
    """Index variables with another one for a mode."""
    return [*names[:mode], name, *names[mode + 1 :]]


def without(sizes: Sequence[Any], mode: int) -> list[Any]:
    """The extents of all modes but one."""
    return [*sizes[:mode], *sizes[mode + 1 :]]


def extents(tensor: fx.Node) -> list[Any]:
    """The extents of a tensor as numbers and symbols of the capture, with hints from the example."""
    return list(tensor.meta["val"].shape)


def require_same(view: OperatorView, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Requires equal extents, refusing indices into a part of a tensor; records symbolic equalities.

    Raises:
        Refusal: the extents differ in the example.
    """
    require(len(first) == len(second), "the places of a part alone")
    for one, other in zip(first, second, strict=True):
        examples = {known_size(one), known_size(other)} - {None}
        require(len(examples) < 2, "the places of a part alone")
        view.require_equal((size_of(one), size_of(other)))
