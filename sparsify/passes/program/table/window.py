"""Windows: convolutions and pooling, with indices that are sums of index variables."""

from collections.abc import Sequence
from typing import Any, Final

from sparsify.passes.program.operator_view import OperatorView
from sparsify.passes.program.table.row import require, row

GROUPS: Final = (
    "its channels are in groups: a result reads too few entries for zeros among them to be worth a list"
)


def each(value: Any, count: int) -> list[int]:
    """A setting for each of `count` modes."""
    settings = [value] * count if isinstance(value, int) else list(value)
    return settings * count if len(settings) == 1 else settings


def windows(
    out: Sequence[str],
    inside: Sequence[str],
    view: OperatorView,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
) -> list[str]:
    """`stride * y + dilation * r - padding` for each mode of an image."""
    require(all(view.program.extents[y] != 0 for y in out), "images without entries")
    texts, count = [], len(out)
    settings = (each(value, count) for value in (stride, padding, dilation))
    for y, r, s, before, wide in zip(out, inside, *settings, strict=True):
        parts = [] if view.program.extents[y] == 1 else [y if s == 1 else f"{s} * {y}"]
        parts += [] if view.program.extents[r] == 1 else [r if wide == 1 else f"{wide} * {r}"]
        # With or without padding, an image is larger than the range of one variable.
        texts.append(
            f"{' + '.join(parts) or '0'} - {before}" if before else f"{' + '.join(parts) or '0'} + 0"
        )
    return texts


@row(
    "convolution(x[2,n,7], w[k,n,3], b[k], [1], [1], [1], False, [0], 1)",
    "conv1d(x[2,n,9], w[k,n,3], None, [2], [1])",
    "conv2d(x[2,n,6,5], w[k,n,3,2], b[k], [1, 2], [1, 0], [1, 1])",
    names=("conv1d", "conv2d", "conv3d"),
)
def convolution(view: OperatorView) -> str:
    """`sum(c, r, weight[k,c,r] * input[n, c, stride*y + dilation*r - padding]) + bias[k]`, 0 outside of images."""
    x, w = view["input"], view["weight"]
    require(not view.number("transposed", False), "transposed convolutions have no row yet")
    require(view.number("groups", 1) == 1, GROUPS)
    *lead, k = view.out[: 2 - view.rank(w)]
    c, inside = view.index(view.shape(w)[1]), [view.index(size) for size in view.shape(w)[2:]]
    padding = padding_of(view)
    at = windows(view.out[len(lead) + 1 :], inside, view, view["stride"], padding, view["dilation"])
    weight, image = view.at(w, [k, c, *inside]), view.at(x, [*lead, c, *at])
    for coordinate, size in zip(at, view.shape(x)[len(lead) + 1 :], strict=True):
        if size == 1 and coordinate != "0 + 0":  # programs omit the mode: its only coordinate is 0
            image = f"where({coordinate} == 0, {image}, 0)"
    text = view.reduce("sum", [c, *inside], f"{weight} * {image}")
    return f"{text} + {view.at(view['bias'], [k])}" if "bias" in view else text


def padding_of(view: OperatorView) -> Any:
    """The padding before an image: a number or one for each mode; more padding may follow the image."""
    if not isinstance(view["padding"], str):
        return view["padding"]
    sizes, rank = view.shape(view["weight"])[2:], view.rank(view["weight"]) - 2
    reach = [wide * (size - 1) for wide, size in zip(each(view["dilation"], rank), sizes, strict=True)]
    return [count // 2 for count in reach] if view["padding"] == "same" else 0


@row(
    "avg_pool2d(x[2,n,6,6], [2, 3], [2, 1], [0, 1])",
    "avg_pool1d(x[2,n,6], [2])",
    names=("avg_pool1d", "avg_pool3d"),
)
def avg_pool2d(view: OperatorView) -> str:
    """`sum(r, self[n, c, stride*y + r - padding]) / extent(r)`, 0 outside of images."""
    x, kernel = view["self"], view["kernel_size"]
    rank = int(view.name[-2])
    sizes = each(kernel, rank)
    padded = any(each(view.number("padding", 0), rank))
    require(
        not view.number("ceil_mode", False) and view.get("divisor_override") is None, "windows of other sizes"
    )
    require(bool(view.number("count_include_pad", True)) or not padded, "padding is not counted")
    require(all(size != 1 for size in view.shape(x)[-rank:]), "an image of extent 1")
    inside = [view.index(size) for size in sizes]
    at = windows(view.out[-rank:], inside, view, view.get("stride") or kernel, view.number("padding", 0))
    total = view.reduce("sum", inside, view.at(x, [*view.out[:-rank], *at]))
    return f"{total} / ({view.count(inside)})"


@row("unfold(x[m,7], 1, 3, 2)")
def unfold(view: OperatorView) -> str:
    """`self[step*i + r]`: windows as a mode of their own."""
    x, mode = view["self"], view.mode(view["self"], "dimension")
    require(1 not in (view.sizes[mode], view.sizes[-1]), "a mode of extent 1")
    step = view.number("step")
    at = f"{view.out[mode]} + {view.out[-1]}" if step == 1 else f"{step} * {view.out[mode]} + {view.out[-1]}"
    return view.at(x, [*view.out[:mode], at, *view.out[mode + 1 : -1]])
