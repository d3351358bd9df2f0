"""Reductions: sums, extrema and norms over modes."""

from collections.abc import Sequence

from torch import fx

from sparsify.passes.program.operator_view import OperatorView
from sparsify.passes.program.table.row import require, row


def modes_of(view: OperatorView, tensor: fx.Node) -> list[int]:
    """The modes of a reduction; all by default."""
    rank, dims = view.rank(tensor), view.get("dim", "dims")
    if dims is None or dims == []:
        return list(range(rank))
    return sorted(
        {dim % max(1, rank) for dim in ([dims] if isinstance(dims, int) else dims)} & set(range(rank))
    )


def split(
    view: OperatorView, tensor: fx.Node, modes: Sequence[int]
) -> tuple[list[str], list[str], list[str]]:
    """The index variables of a tensor, the reduced ones among them, and the remaining ones."""
    rank, out = view.rank(tensor), list(view.out)
    keeps = len(out) == rank
    names, reduced = [], []
    for mode in range(rank):
        if mode in modes:
            names.append(view.index(view.shape(tensor)[mode]))
            reduced.append(names[-1])
            if keeps:
                out.pop(0)
        else:
            names.append(out.pop(0))
    return names, reduced, [name for name in names if name not in reduced]


def reduced(view: OperatorView, monoid: str, text: str = "{x}") -> str:
    """A reduction of a function of each entry."""
    tensor = view.get("self", "input")
    names, over, _ = split(view, tensor, modes_of(view, tensor))
    return view.reduce(monoid, over, text.format(x=view.at(tensor, names)))


@row("sum(x[m,n])", "sum(x[m,n], [1])", "sum(x[m,n,k], [0, 2], True)")
def sum_(view: OperatorView) -> str:
    """`sum(j, self[.., j])`."""
    return reduced(view, "sum")


@row("amax(x[m,n+1], [1])", "amax(x[m,n+1], [-1], True)")
def amax(view: OperatorView) -> str:
    """`max(j, self[.., j])`."""
    return reduced(view, "max")


@row("amin(x[m,n+1], [1])")
def amin(view: OperatorView) -> str:
    """`min(j, self[.., j])`."""
    return reduced(view, "min")


@row("max(x[m+1,n+1])", "max(x[m,n+1], 1)[0]", "max(x[m,n+1], -1, True)[1]", "max(x[m+1,n], 0)[0]")
def max_(view: OperatorView) -> str:
    """`max(j, self[.., j])`; over one mode the entry at `argmax(j, self[.., j])`, and the place."""
    return _extremum(view, "max")


@row("min(x[m+1,n+1])", "min(x[m,n+1], 1)[0]", "min(x[m,n+1], -1, True)[1]")
def min_(view: OperatorView) -> str:
    """`min(j, self[.., j])`; over one mode the entry at `argmin(j, self[.., j])`, and the place."""
    return _extremum(view, "min")


def _extremum(view: OperatorView, monoid: str) -> str:
    if "other" in view:
        return f"{monoid}({view.at(view['self'])}, {view.at(view['other'])})"
    if "dim" not in view:
        return reduced(view, monoid)
    coordinate, over, entry = _extreme_coordinate(view, f"arg{monoid}")
    if view.result.args[1] == 1 or not over:
        return coordinate if view.result.args[1] == 1 else entry
    # The gradient goes to one entry alone, also among equal ones: the gradient of `max(j, ..)` goes to all maxima.
    at = view.let("place", [name for name in view.out if name not in over], coordinate)
    return view.reduce("sum", over, f"where({over[0]} == {at}, {entry}, 0)")


@row("argmax(x[m,n+1], 1)", "argmax(x[m+1,n], 0, True)", "argmax(x[m+1])", "argmax(x[m,1], 1)")
def argmax(view: OperatorView) -> str:
    """`argmax(j, self[.., j])`."""
    return _extreme_coordinate(view, "argmax")[0]


@row("argmin(x[m,n+1], 1)", "argmin(x[m+1])")
def argmin(view: OperatorView) -> str:
    """`argmin(j, self[.., j])`."""
    return _extreme_coordinate(view, "argmin")[0]


def _extreme_coordinate(view: OperatorView, name: str) -> tuple[str, list[str], str]:
    """The first position of an extremum, its index variable (none for a single entry), and the entry."""
    tensor = view["self"]
    names, over, _ = split(view, tensor, modes_of(view, tensor))
    over = [index for index in over if view.program.extents[index] != 1]
    require(len(over) < 2, "a place among all entries of several modes has no index notation")
    require(all(view.program.extents[index] != 0 for index in over), "nothing has no place")
    entry = view.at(tensor, names)
    return (f"{name}({over[0]}, {entry})" if over else "0"), over, entry


@row("prod(x[m,n])", "prod(x[m,n], 1)")
def prod(view: OperatorView) -> str:
    """`prod(j, self[.., j])`."""
    return reduced(view, "prod")


@row("any(c[m,n]:bool)", "any(c[m,n]:bool, 1)", "any(x[m,n], 0, True)")
def any_(view: OperatorView) -> str:
    """`or(j, self[.., j] != 0)`."""
    return reduced(view, "or", "({x} != 0)")


@row("all(c[m,n]:bool)", "all(c[m,n]:bool, 1)")
def all_(view: OperatorView) -> str:
    """`and(j, self[.., j] != 0)`."""
    return reduced(view, "and", "({x} != 0)")


@row("count_nonzero(x[m,n])", "count_nonzero(x[m,n], [1])")
def count_nonzero(view: OperatorView) -> str:
    """`sum(j, where(self[.., j] != 0, 1, 0))`."""
    return reduced(view, "sum", "where({x} != 0, 1, 0)")


@row("mean(x[m,n])", "mean(x[m,n], [1], True)")
def mean(view: OperatorView) -> str:
    """`sum(j, self[.., j]) / extent(j)`."""
    tensor = view.get("self", "input")
    names, over, _ = split(view, tensor, modes_of(view, tensor))
    return f"{view.reduce('sum', over, view.at(tensor, names))} / ({view.count(over)})"


def variance(view: OperatorView) -> str:
    """`v[..] = sum(j, square(self[.., j] - m[..])) / (extent(j) - correction)`."""
    tensor = view["self"]
    names, over, free = split(view, tensor, modes_of(view, tensor))
    x, count = view.at(tensor, names), view.count(over)
    correction = view.number("correction", 1)
    if "unbiased" in view.arguments and "correction" not in view:
        correction = int(view.number("unbiased", True))
    mean = view.let("mean", free, f"{view.reduce('sum', over, x)} / ({count})")
    total = view.reduce("sum", over, f"square({x} - {mean})")
    return f"{total} / max({count} - {correction}, 0)"


@row("var(x[m,n], [1])", "var(x[m,n], [0, 1], correction=0, keepdim=True)")
def var(view: OperatorView) -> str:
    """`sum(j, square(self[.., j] - mean[..])) / (extent(j) - correction)`."""
    return variance(view)


@row("std(x[m,n], [1])")
def std(view: OperatorView) -> str:
    """`sqrt(sum(j, square(self[.., j] - mean[..])) / (extent(j) - correction))`."""
    return f"sqrt({variance(view)})"


@row("norm(x[m,n])", "norm(x[m,n], 1, [1])", names=())
def norm(view: OperatorView) -> str:
    """`sum(j, abs(self[.., j]) ** p) ** (1 / p)`."""
    return _norm(view, view.number("p", 2))


@row(
    "linalg_vector_norm(x[m,n])",
    "linalg_vector_norm(x[m,n], 1, [1])",
    "linalg_vector_norm(x[m,n], 3.0, [0], True)",
)
def linalg_vector_norm(view: OperatorView) -> str:
    """`sum(j, abs(self[.., j]) ** ord) ** (1 / ord)`."""
    return _norm(view, view.number("ord", 2))


@row("linalg_norm(x[m])", names=("frobenius_norm",))
def linalg_norm(view: OperatorView) -> str:
    """`root(sum(j, square(self[.., j])))`."""
    tensor = view["self"]
    is_plain = view.get("ord") is None and (view.get("dim") is not None or view.rank(tensor) == 1)
    require(is_plain or view.name == "frobenius_norm", "norms of matrices are opaque")
    return _norm(view, 2)


def _norm(view: OperatorView, p: float) -> str:
    if p == float("inf"):
        return reduced(view, "max", "abs({x})")
    if p == 1:
        return reduced(view, "sum", "abs({x})")
    if p == 2:
        return f"root({reduced(view, 'sum', 'square({x})')})"
    require(p > 0, f"the norm of order {p} has no index notation")
    return f"({reduced(view, 'sum', f'abs({{x}}) ** {p!r}')}) ** {1 / p!r}"


@row("logsumexp(x[m,n+1], [1])", "logsumexp(x[m,n+1], [0], True)")
def logsumexp(view: OperatorView) -> str:
    """`log(sum(j, exp(self[.., j] - m[..]))) + m[..]`, m the maximum over j."""
    tensor = view["self"]
    names, over, free = split(view, tensor, modes_of(view, tensor))
    x = view.at(tensor, names)
    m = view.let("max", free, view.reduce("max", over, x))
    m = view.let("shift", free, f"where(abs({m}) == inf, 0, {m})")
    return f"log({view.reduce('sum', over, f'exp({x} - {m})')}) + {m}"


@row("softmax(x[m,n], -1)", "softmax(x[m,n,k], 1)", "_softmax(x[m,n], 1, False)", names=("_softmax",))
def softmax(view: OperatorView) -> str:
    """`e[i,j] / sum(j, e[i,j])`, `e[i,j] = exp(self[i,j] - max(j, self[i,j]))`."""
    tensor = view["self"]
    _, e, d = exponentials(view, view.at(tensor), view.out, view.mode(tensor))
    return f"{e} / {d}"


@row("_safe_softmax(x[m,n], 1)", names=("_safe_softmax",))
def safe_softmax(view: OperatorView) -> str:
    """`softmax(self)`, 0 where a row has no entry above `-inf`."""
    tensor = view.get("self", "scores")
    _, e, d = exponentials(view, view.at(tensor), view.out, view.mode(tensor))
    return f"{e} / where({d} == 0, 1, {d})"


def exponentials(view: OperatorView, x: str, names: Sequence[str], mode: int) -> tuple[str, str, str]:
    """`m[i] = max(j, x[i,j])`, `e[i,j] = exp(x[i,j] - m[i])` and `sum(j, e[i,j])`.

    Args:
        x: access at `names`, with j as its mode `mode`.
    """
    free, over = [*names[:mode], *names[mode + 1 :]], names[mode : mode + 1]
    m = view.let("max", free, view.reduce("max", over, x))
    e = view.let("exp", names, f"exp({x} - where({m} == -inf, 0, {m}))")
    return m, e, view.let("sum", free, view.reduce("sum", over, e))


@row("log_softmax(x[m,n], -1)", "_log_softmax(x[m,n], 1, False)", names=("_log_softmax",))
def log_softmax(view: OperatorView) -> str:
    """`self[i,j] - m[i] - log(sum(j, exp(self[i,j] - m[i])))`, m the maximum over j."""
    tensor, mode, names = view["self"], view.mode(view["self"]), list(view.out)
    free, over = [*names[:mode], *names[mode + 1 :]], names[mode : mode + 1]
    x = view.at(tensor, names)
    m = view.let("max", free, view.reduce("max", over, x))
    d = view.let("sum", free, view.reduce("sum", over, f"exp({x} - {m})"))
    return f"{x} - {m} - log({d})"
