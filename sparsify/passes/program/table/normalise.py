"""Normalisations: over the last modes, over groups of channels, by running statistics."""

from collections.abc import Sequence

from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.row import require, row


def moments(view: OperatorView, x: str, free: Sequence[str], over: Sequence[str]) -> tuple[str, str]:
    """Statements for the mean and the variance of `x` over some index variables."""
    count = view.count(over)
    mean = view.let("mean", free, f"{view.reduce('sum', over, x)} / ({count})")
    return mean, view.let("var", free, f"{view.reduce('sum', over, f'square({x} - {mean})')} / ({count})")


def affine(view: OperatorView, text: str, names: Sequence[str]) -> str:
    """`text * weight[names] + bias[names]`, without a missing factor or summand."""
    text = f"{text} * {view.at(view['weight'], names)}" if "weight" in view else text
    return f"{text} + {view.at(view['bias'], names)}" if "bias" in view else text


@row("layer_norm(x[m,n], [n], w[n], b[n])", "layer_norm(x[m,n,k], [n, k])", names=())
def layer_norm(view: OperatorView) -> str:
    """`(input[i,k] - mean[i]) / sqrt(var[i] + eps) * weight[k] + bias[k]`."""
    return _layer_norm(view)


@row("native_layer_norm(x[m,n], [n], w[n], b[n], 1e-5)[0]")
def native_layer_norm(view: OperatorView) -> str:
    """`(input[i,k] - mean[i]) / sqrt(var[i] + eps) * weight[k] + bias[k]`, the first of three results."""
    return _layer_norm(view)


def _layer_norm(view: OperatorView) -> str:
    x = view.get("input")
    count = len(view["normalized_shape"])
    free, last = view.out[: len(view.out) - count], view.out[len(view.out) - count :]
    over = [view.index(view.program.extents[name]) for name in last]
    mean, var = moments(view, view.at(x, [*free, *over]), free, over)
    text = f"({view.at(x)} - {mean}) / sqrt({var} + {literal(view.number('eps'))})"
    return affine(view, text, last)


@row("rms_norm(x[m,n], [n], w[n], 1e-6)")
def rms_norm(view: OperatorView) -> str:
    """`input[i,k] / sqrt(sum(k, square(input[i,k])) / extent(k) + eps) * weight[k]`."""
    x, count, eps = view["input"], len(view["normalized_shape"]), view.number("eps")
    require(eps is not None, "eps follows from the dtype")
    free, last = view.out[: len(view.out) - count], view.out[len(view.out) - count :]
    over = [view.index(view.program.extents[name]) for name in last]
    squares = view.reduce("sum", over, f"square({view.at(x, [*free, *over])})")
    mean = view.let("mean", free, f"{squares} / ({view.count(over)})")
    return affine(view, f"{view.at(x)} / sqrt({mean} + {literal(eps)})", last)


@row("batch_norm(x[m,n,k], w[n], b[n], r[n], abs(v[n]), False, 0.1, 1e-5, False)")
def batch_norm(view: OperatorView) -> str:
    """`(input[n,c,..] - running_mean[c]) / sqrt(running_var[c] + eps) * weight[c] + bias[c]` out of training."""
    require(not view.number("training", False), "statistics of a batch are opaque")
    return _batch_norm(view)


@row("_native_batch_norm_legit_no_training(x[m,n,k], w[n], b[n], r[n], abs(v[n]), 0.1, 1e-5)[0]")
def _native_batch_norm_legit_no_training(view: OperatorView) -> str:
    """`(input[n,c,..] - running_mean[c]) / sqrt(running_var[c] + eps) * weight[c] + bias[c]`."""
    return _batch_norm(view)


def _batch_norm(view: OperatorView) -> str:
    require("running_mean" in view and "running_var" in view, "statistics of a batch are opaque")
    c = view.out[1:2]
    mean, var = view.at(view["running_mean"], c), view.at(view["running_var"], c)
    return affine(
        view, f"({view.at(view['input'])} - {mean}) / sqrt({var} + {literal(view.number('eps'))})", c
    )


@row("instance_norm(x[m,n,k+2], w[n], b[n], None, None, True, 0.1, 1e-5, False)")
def instance_norm(view: OperatorView) -> str:
    """`(input[n,c,..] - mean[n,c]) / sqrt(var[n,c] + eps) * weight[c] + bias[c]`."""
    require(bool(view.number("use_input_stats")) and "running_mean" not in view, "running statistics change")
    free, last = view.out[:2], view.out[2:]
    over = [view.index(view.program.extents[name]) for name in last]
    mean, var = moments(view, view.at(view["input"], [*free, *over]), free, over)
    text = f"({view.at(view['input'])} - {mean}) / sqrt({var} + {literal(view.number('eps'))})"
    return affine(view, text, free[1:])
