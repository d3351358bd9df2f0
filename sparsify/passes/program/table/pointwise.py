"""Operators on entries: one notation each, over the arguments of the operator's schema."""

from sparsify.compiler.einsum.nodes import Expr
from sparsify.passes.program.operator_view import OperatorView
from sparsify.passes.program.table.row import is_boolean, pointwise, require, row, substituted

for _name in (
    *("relu", "sigmoid", "tanh", "exp", "abs", "sqrt", "square", "reciprocal", "sign", "log", "log10"),
    *("floor", "ceil", "trunc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "silu"),
):
    pointwise(_name, f"{_name}(self)")

pointwise("neg", "-self")
pointwise("rsqrt", "1 / sqrt(self)")
pointwise("log1p", "log(1 + self)")
pointwise("log2", "log(self) * 1.4426950408889634")
pointwise("exp2", "exp(self * 0.6931471805599453)")
pointwise("expm1", "exp(self) - 1")
pointwise("erfc", "1 - erf(self)")
pointwise("isnan", "self != self")
pointwise("isinf", "abs(self) == inf")
pointwise("isfinite", "abs(self) < inf")
pointwise("logical_not", "logical_not(self)")
pointwise("frac", "self - trunc(self)")
pointwise("relu6", "min(max(self, 0), 6)")
pointwise("hardsigmoid", "min(max(self + 3, 0), 6) / 6")
pointwise("hardswish", "self * min(max(self + 3, 0), 6) / 6")
pointwise("log_sigmoid", "min(self, 0) - log(1 + exp(-abs(self)))")
pointwise("mish", "self * tanh(max(self, 0) + log(1 + exp(-abs(self))))")
pointwise("selu", "1.0507009873554805 * where(self > 0, self, 1.6732632423543772 * (exp(min(self, 0)) - 1))")
pointwise(
    "softplus", "where(beta * self > threshold, self, log(1 + exp(min(beta * self, threshold))) / beta)"
)
pointwise("leaky_relu", "where(self > 0, self, negative_slope * self)", "leaky_relu(x[m,n], 0.1)")
pointwise("threshold", "where(self > threshold, self, value)", "threshold(x[m,n], 0.5, -1.0)")
pointwise("hardshrink", "where(abs(self) > lambd, self, 0)")
pointwise("softshrink", "sign(self) * max(abs(self) - lambd, 0)")
pointwise("hardtanh", "min(max(self, min_val), max_val)")
pointwise("elu", "where(self > 0, scale * self, scale * alpha * (exp(min(self, 0) * input_scale) - 1))")
pointwise("celu", "max(self, 0) + min(alpha * (exp(min(self, 0) / alpha) - 1), 0)")
pointwise("logit", "log(self / (1 - self))", "logit(x[m,n])")

pointwise("add", "self + alpha * other", "add(x[m,n], y[n])", "add(x[m,n], y[m,1], alpha=2)", "add(x[m], 3)")
pointwise("sub", "self - alpha * other", "sub(x[m,n], y[n])", "sub(x[m,n], y[m,1], alpha=2)")
pointwise("rsub", "other - alpha * self")
pointwise("mul", "self * other", "mul(x[m,n], y[n])", "mul(x[m,n], 2.5)")
pointwise("maximum", "max(self, other)")
pointwise("minimum", "min(self, other)")
pointwise("fmod", "sign(self) * mod(abs(self), abs(other))")
pointwise("remainder", "mod(self, other)")
pointwise("atan2", "atan2(self, other)")
pointwise("hypot", "sqrt(square(self) + square(other))")
pointwise("copysign", "where((other < 0) == (self < 0), self, -self)")
pointwise("heaviside", "heaviside(self, values)", "heaviside(x[m,n], y[n])")
pointwise("xlogy", "where(self == 0, 0, self * log(other))")
pointwise("logical_and", "logical_and(self, other)")
pointwise("logical_or", "logical_or(self, other)")
pointwise("logical_xor", "logical_xor(self, other)")
for _name, _symbol in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    pointwise(_name, f"self {_symbol} other", f"{_name}(x[m,n], y[n])", f"{_name}(x[m,n], 0.5)")

pointwise("lerp", "self + weight * (end - self)", "lerp(x[m,n], y[m,n], 0.3)", "lerp(x[m,n], y[m,n], w[n])")
pointwise("addcmul", "self + value * tensor1 * tensor2", "addcmul(x[m,n], y[n], z[m,n], value=0.5)")
pointwise("addcdiv", "self + value * tensor1 / tensor2", "addcdiv(x[m,n], y[n], z[m,n], value=0.5)")
pointwise("where", "where(condition, self, other)", "where(c[m,n]:bool, x[n], y[m,n])")
pointwise("masked_fill", "where(mask, value, self)", "masked_fill(x[m,n], c[m,1]:bool, -inf)")
pointwise("detach", "detach(self)")
for _name in ("clone", "alias", "contiguous", "positive", "lift_fresh_copy"):
    pointwise(
        _name, "self", f"{_name}(x[m,n])" if _name not in ("contiguous", "positive") else "clone(x[m,n])"
    )


@row("gelu(x[m,n])", 'gelu(x[m,n], approximate="tanh")')
def gelu(view: OperatorView) -> Expr:
    """`gelu(self)`, or `gelu_tanh(self)` where it is approximated."""
    is_tanh = view.get("approximate") == "tanh"
    return substituted(view, "gelu_tanh(self)" if is_tanh else "gelu(self)")


@row(
    "div(x[m,n], y[n])", 'div(x[m,n], y[n], rounding_mode="floor")', 'div(x[m,n], 0.3, rounding_mode="trunc")'
)
def div(view: OperatorView) -> Expr:
    """`self / other`, less what rounding leaves out."""
    mode = view.get("rounding_mode")
    if mode is None:
        return substituted(view, "self / other")
    if mode == "floor":
        return substituted(view, "(self - mod(self, other)) / other")
    return substituted(view, "trunc(self / other)")


@row("round(x[m,n])", "round(x[m,n], decimals=2)", "round(x[m,n], decimals=-1)")
def round_(view: OperatorView) -> Expr:
    """`round(self * 10 ** decimals) / 10 ** decimals`."""
    decimals = view.number("decimals", 0)
    if not decimals:
        return substituted(view, "round(self)")
    scale = 10.0 ** abs(decimals)
    text = f"round(self * {scale}) / {scale}" if decimals > 0 else f"round(self / {scale}) * {scale}"
    return substituted(view, text)


@row("pow(x[m,n], 2)", "pow(x[m,n], 3.0)", "pow(abs(x[m,n]), y[n])", "pow(x[m,n], -0.5)")
def pow_(view: OperatorView) -> Expr:
    """`self ** exponent`."""
    exponent = view["exponent"]
    special_cases = {
        2: "square(self)",
        0.5: "sqrt(self)",
        -0.5: "1 / sqrt(self)",
        -1: "reciprocal(self)",
        1: "self",
    }
    is_number = isinstance(exponent, int | float) and not isinstance(exponent, bool)
    return substituted(
        view, special_cases.get(exponent, "self ** exponent") if is_number else "self ** exponent"
    )


@row("clamp(x[m,n], -0.5, 0.5)", "clamp(x[m,n], max=0.2)", "clamp(x[m,n], y[n])", names=("clip",))
def clamp(view: OperatorView) -> Expr:
    """`min(max(self, min), max)`."""
    text = "max(self, min)" if "min" in view else "self"
    return substituted(view, f"min({text}, max)" if "max" in view else text)


@row("clamp_min(x[m,n], 0.5)")
def clamp_min(view: OperatorView) -> Expr:
    """`max(self, min)`."""
    return substituted(view, "max(self, min)")


@row("clamp_max(x[m,n], 0.5)")
def clamp_max(view: OperatorView) -> Expr:
    """`min(self, max)`."""
    return substituted(view, "min(self, max)")


@row("bitwise_and(a[m,n]:bool, b[n]:bool)", names=("__and__",))
def bitwise_and(view: OperatorView) -> Expr:
    """`logical_and(self, other)` of truth values."""
    return _of_booleans(view, "logical_and(self, other)")


@row("bitwise_or(a[m,n]:bool, b[n]:bool)", names=("__or__",))
def bitwise_or(view: OperatorView) -> Expr:
    """`logical_or(self, other)` of truth values."""
    return _of_booleans(view, "logical_or(self, other)")


@row("bitwise_xor(a[m,n]:bool, b[n]:bool)", names=("__xor__",))
def bitwise_xor(view: OperatorView) -> Expr:
    """`logical_xor(self, other)` of truth values."""
    return _of_booleans(view, "logical_xor(self, other)")


@row("bitwise_not(a[m,n]:bool)")
def bitwise_not(view: OperatorView) -> Expr:
    """`logical_not(self)` of truth values."""
    return _of_booleans(view, "logical_not(self)")


def _of_booleans(view: OperatorView, notation: str) -> Expr:
    operands = [view[name] for name in ("self", "other") if name in view]
    require(all(map(is_boolean, operands)), "bits of integers have no index notation")
    return substituted(view, notation)


@row(
    "to(x[m,n], torch.float32)",
    "to(x[m,n], torch.int64)",
    "to(x[m,n], torch.bool)",
    "_to_copy(x[m,n])",
    names=("_to_copy", "type_as"),
)
def to(view: OperatorView) -> str:
    """`dtype(self)`."""
    return view.at(view.get("self"))


@row("copy(x[m,n], y[n])")
def copy(view: OperatorView) -> Expr:
    """`src`."""
    return substituted(view, "src")


@row("fill(x[m,n], 2.0)")
def fill(view: OperatorView) -> Expr:
    """`value`."""
    return substituted(view, "value")


@row("dropout(x[m,n], 0.5, False)", names=("feature_dropout", "alpha_dropout"))
def dropout(view: OperatorView) -> str:
    """`input` out of training."""
    require(view.number("train") is False or view.number("p") == 0, "draws random numbers")
    return view.at(view["input"])
