"""Tensors determined by coordinates alone."""

from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.row import require, row


@row("full([m, n], 2.0)", "zeros([m, n])", "ones([m])", names=("zeros", "ones", "scalar_tensor", "full_like"))
def full(view: OperatorView) -> str:
    """`fill_value`."""
    name = view.name
    value = 0 if name == "zeros" else 1 if name == "ones" else view.get("fill_value", "s")
    require(isinstance(value, int | float), "the number is computed")
    dtype = view.value.dtype
    is_float = dtype.is_floating_point
    return literal(float(value) if is_float else bool(value) if dtype.itemsize == 1 else int(value))


@row("arange(5)", "arange(2, 7, 2)")
def arange(view: OperatorView) -> str:
    """`start + i * step`."""
    start, step = view.number("start", 0), view.number("step", 1)
    i = "0" if view.sizes[0] == 1 else view.out[0]
    scaled = i if step == 1 and i != "0" else f"{i} * {literal(step)}"
    return scaled if start == 0 else f"{scaled} + {literal(start)}"


@row("eye(4)", "eye(3, 5)")
def eye(view: OperatorView) -> str:
    """`where(i == j, 1, 0)`."""
    require(1 not in view.sizes, "a mode of extent 1")
    return f"where({view.out[0]} == {view.out[1]}, 1.0, 0.0)"
