"""Losses: a function of each entry, with the reduction given by the call."""

from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.row import is_boolean, require, row

MEAN, SUM = 1, 2


def reduced(view: OperatorView, text: str) -> str:
    """A function of entries, its sum or its mean; `{x}` and `{y}` stand for the operands' entries."""
    x, y, how = view["self"], view["target"], view.number("reduction", MEAN)
    require(view.shape(x) == view.shape(y), "broadcast operands")
    require(not is_boolean(x) and not is_boolean(y), "truth values are not subtracted")
    names = [view.index(size) for size in view.shape(x)] if how else list(view.out)
    entry = text.format(x=view.at(x, names), y=view.at(y, names))
    if not how:
        return entry
    total = view.reduce("sum", names, entry)
    return f"{total} / ({view.count(names)})" if how == MEAN else total


@row("mse_loss(x[m,n], y[m,n])", "mse_loss(x[m,n], y[m,n], 0)", "mse_loss(x[m,n], y[m,n], 2)")
def mse_loss(view: OperatorView) -> str:
    """`sum(i, square(self[i] - target[i])) / extent(i)`."""
    return reduced(view, "square({x} - {y})")


@row("l1_loss(x[m,n], y[m,n])")
def l1_loss(view: OperatorView) -> str:
    """`sum(i, abs(self[i] - target[i])) / extent(i)`."""
    return reduced(view, "abs({x} - {y})")


@row("huber_loss(x[m,n], y[m,n], 2, 0.5)")
def huber_loss(view: OperatorView) -> str:
    """`sum(i, where(d < delta, d * d / 2, delta * (d - delta / 2))) / extent(i)`, d the distance."""
    delta = literal(view.number("delta", 1.0))
    d = "abs({x} - {y})"
    return reduced(view, f"where({d} < {delta}, square({d}) * 0.5, {delta} * ({d} - 0.5 * {delta}))")


@row("smooth_l1_loss(x[m,n], y[m,n], 1, 0.5)")
def smooth_l1_loss(view: OperatorView) -> str:
    """`sum(i, where(d < beta, d * d / (2 * beta), d - beta / 2)) / extent(i)`, d the distance."""
    beta = view.number("beta", 1.0)
    require(beta > 0, "beta is 0")
    d = "abs({x} - {y})"
    return reduced(view, f"where({d} < {beta!r}, square({d}) * {0.5 / beta!r}, {d} - {0.5 * beta!r})")


@row("binary_cross_entropy_with_logits(x[m,n], sigmoid(y[m,n]))")
def binary_cross_entropy_with_logits(view: OperatorView) -> str:
    """`sum(i, max(x[i], 0) - x[i] * target[i] + log(1 + exp(-abs(x[i])))) / extent(i)`."""
    require("weight" not in view and "pos_weight" not in view, "weighted losses have no row yet")
    return reduced(view, "max({x}, 0) - {x} * {y} + log(1 + exp(-abs({x})))")
