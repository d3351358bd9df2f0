"""Views and rearrangements: the same entries at other index variables, without copies."""

from collections.abc import Sequence
from typing import Any

from torch import fx

from sparsify.passes.graph.operators import operator_name
from sparsify.passes.program.model import Refusal, Size
from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.row import is_boolean, require, row


@row("permute(x[m,n,k], [2, 0, 1])")
def permute(view: OperatorView) -> str:
    """`self[j,i]`."""
    names = [""] * len(view.out)
    for position, mode in enumerate(view["dims"]):
        names[mode] = view.out[position]
    return view.at(view["self"], names)


@row("transpose(x[m,n,k], 0, -1)", names=("swapaxes", "swapdims"))
def transpose(view: OperatorView) -> str:
    """`self[j,i]`."""
    first, second = view.get("dim0", "axis0"), view.get("dim1", "axis1")
    names = list(view.out)
    if names:
        names[first], names[second] = names[second], names[first]
    return view.at(view["self"], names)


@row("t(x[m,n])", names=("numpy_T", "mT"))
def t(view: OperatorView) -> str:
    """`self[j,i]`."""
    return view.at(
        view["self"], view.out[::-1] if len(view.out) <= 2 else [*view.out[:-2], *view.out[:-3:-1]]
    )


@row("movedim(x[m,n,k], 0, 2)", names=("moveaxis",))
def movedim(view: OperatorView) -> str:
    """`self[j,i]`."""
    rank, tensor = len(view.out), view["self"]
    listed = [[v] if isinstance(v, int) else list(v) for v in (view["source"], view["destination"])]
    sources, targets = ([mode % rank for mode in modes] for modes in listed)
    order = dict(zip(targets, sources, strict=True))
    rest = iter(mode for mode in range(rank) if mode not in sources)
    names = [""] * rank
    for position in range(rank):
        names[order[position] if position in order else next(rest)] = view.out[position]
    return view.at(tensor, names)


@row("expand(x[1,n], [m, n])", names=("expand_as", "broadcast_to"))
def expand(view: OperatorView) -> str:
    """`self[k]`."""
    return view.at(view["self"])


@row(
    "view(x[m,2*n], [m, 2, n])",
    "view(x[1,m,n], [m, 1, n])",
    "unsqueeze(x[m,n], 1)",
    "squeeze(x[m,1,n], 1)",
    names=("reshape", "_unsafe_view", "unsqueeze", "squeeze", "view_as", "unflatten", "flatten", "ravel"),
)
def view_(view: OperatorView) -> str:
    """`self[b, n*h + d]`: a mode that is split; modes that are joined are read by an opaque view."""
    tensor = view["self"]
    left = [(size, name) for size, name in zip(view.sizes, view.out, strict=True) if size != 1]
    require(0 not in view.shape(tensor), "a tensor without entries")
    names = [part_of(view, size, left) if size != 1 else "0" for size in view.shape(tensor)]
    require(not left, "modes are joined")
    return view.at(tensor, names)


def part_of(view: OperatorView, size: Size, left: list[tuple[Size, str]]) -> str:
    """The index of a mode by the first remaining index variables, which are removed from `left`."""
    parts: list[tuple[Size, str]] = []
    total: Any = 1
    while total != size:
        require(bool(left), "modes are joined")
        parts.append(left.pop(0))
        total = total * parts[-1][0]
        require(not (isinstance(total, int) and isinstance(size, int) and total > size), "modes are joined")
    text, stride = [], 1
    for extent, name in reversed(parts):
        require(isinstance(stride, int), "the stride of a mode is known in a call alone")
        text.append(name if stride == 1 else f"{stride} * {name}")
        stride = stride * extent
    return " + ".join(reversed(text))


def shifted(view: OperatorView, tensor: fx.Node, mode: int, start: Any, step: int = 1) -> str:
    """`tensor[.., step*i + start, ..]`."""
    require(isinstance(start, int), "where a slice starts is known in a call alone")
    size, i = view.shape(tensor)[mode], view.out[mode]
    if start < 0:
        require(isinstance(size, int), "where a slice starts is known in a call alone")
        start = max(0, start + size)
    if view.sizes[mode] == 1:
        text = str(start)
    elif start == 0 and step == 1 and size == view.sizes[mode]:
        text = i
    else:
        text = f"{i if step == 1 else f'{step} * {i}'} + {start}"
    return view.at(tensor, [*view.out[:mode], text, *view.out[mode + 1 :]])


@row("slice(x[m,n+3], 1, 1, 3)", "slice(x[m+4,n], 0, 0, 4, 2)", "slice(x[m+3,n], 0, -2)")
def slice_(view: OperatorView) -> str:
    """`self[step*i + start, k]`."""
    tensor, mode = view["self"], view.mode(view["self"], default=0)
    return shifted(view, tensor, mode, view.number("start", 0), view.number("step", 1))


@row("narrow(x[m,n+3], 1, 1, 2)")
def narrow(view: OperatorView) -> str:
    """`self[i + start, k]`."""
    return shifted(view, view["self"], view.mode(view["self"]), view.number("start"))


@row("select(x[m,n+2,k], 1, 1)", "select(x[m,n+2], 1, -1)")
def select(view: OperatorView) -> str:
    """`self[i, index, k]`."""
    tensor, index = view["self"], view.number("index")
    return selected(view, tensor, view.mode(tensor), index)


def selected(view: OperatorView, tensor: fx.Node, mode: int, index: int) -> str:
    """`tensor[.., index, ..]`."""
    size = view.shape(tensor)[mode]
    require(index >= 0 or isinstance(size, int), "the last entry of a mode is known in a call alone")
    return view.at(tensor, [*view.out[:mode], str(index % size if index < 0 else index), *view.out[mode:]])


@row(
    "split_with_sizes(x[m,5], [2, 3], 1)[1]",
    "split(x[m,6], 2, 1)[2]",
    "chunk(x[m,6], 2, 1)[1]",
    "unbind(x[m,3,n], 1)[2]",
    names=("split_with_sizes", "split", "chunk", "unbind", "tensor_split"),
)
def getitem(view: OperatorView) -> str:
    """`self[i + start, k]`: a part of a tensor."""
    tensor, node = view["self"], view.node
    part_number = view.result.args[1]
    if not isinstance(part_number, int):
        raise Refusal("several parts at once")
    if operator_name(node) == "unbind":
        return selected(view, tensor, view.mode(tensor, default=0), part_number)
    mode = view.mode(tensor, default=0)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    before = [part.shape[mode] for part in node.target(*args, **kwargs)[:part_number]]  # type: ignore[operator]
    require(all(isinstance(extent, int) for extent in before), "where a part starts is known in a call alone")
    return shifted(view, tensor, mode, sum(before))


@row("flip(x[m,n], [1])")
def flip(view: OperatorView) -> str:
    """`self[i, extent(k) - 1 - k]`."""
    tensor = view["self"]
    dims = [mode % max(1, view.rank(tensor)) for mode in view["dims"]]
    sizes = [view.sizes[mode] for mode in dims]
    require(all(isinstance(size, int) for size in sizes), "an extent is known in a call alone")
    names = [f"{view.sizes[m] - 1} - {name}" if m in dims else name for m, name in enumerate(view.out)]
    return view.at(tensor, names)


@row("diagonal(x[n,n])", "diagonal(x[m,n,n], 0, 1, 2)")
def diagonal(view: OperatorView) -> str:
    """`self[.., i, i + offset]`."""
    tensor, offset = view["self"], view.number("offset", 0)
    first, second = view.mode(tensor, "dim1", 0), view.mode(tensor, "dim2", 1)
    shape, i = view.shape(tensor), view.out[-1]
    require(offset == 0 and shape[first] == shape[second], "an offset diagonal")
    rest = iter(view.out[:-1])
    return view.at(tensor, [i if mode in (first, second) else next(rest) for mode in range(len(shape))])


@row("diag(x[m])", "diag(x[n,n])", "diag_embed(x[p,m])", names=("diag_embed",))
def diag(view: OperatorView) -> str:
    """`where(i == j, self[i], 0)` of a vector, `self[i,i]` of a matrix."""
    tensor = view["self"]
    require(view.number("diagonal" if view.name == "diag" else "offset", 0) == 0, "an offset diagonal")
    if len(view.out) < view.rank(tensor):
        first, second = view.shape(tensor)
        require(first == second, "an offset diagonal")
        return view.at(tensor, [view.out[0]] * 2)
    last = view.rank(tensor), view.rank(tensor) - 1
    require(
        {view.number("dim1", -2) % len(view.out), view.number("dim2", -1) % len(view.out)} == {*last},
        "modes between others",
    )
    require(1 not in view.sizes[-2:] and not is_boolean(tensor), "a mode of extent 1")
    return f"where({view.out[-2]} == {view.out[-1]}, {view.at(tensor, view.out[:-1])}, 0)"


@row("trace(x[n,n])")
def trace(view: OperatorView) -> str:
    """`sum(i, self[i,i])`."""
    tensor = view["self"]
    rows, columns = view.shape(tensor)
    require(rows == columns and rows != 0, "an offset diagonal")
    i = view.index(rows)
    return view.reduce("sum", [i], view.at(tensor, [i, i]))


@row("tril(x[m,n], -1)", "tril(x[p,m,n])")
def tril(view: OperatorView) -> str:
    """`where(j - i <= diagonal, self[i,j], 0)`."""
    return triangle(view, "<=")


@row("triu(x[m,n], 1)")
def triu(view: OperatorView) -> str:
    """`where(j - i >= diagonal, self[i,j], 0)`."""
    return triangle(view, ">=")


def triangle(view: OperatorView, comparison: str) -> str:
    """`where(j - i <= diagonal, self[i,j], 0)`; a mode of extent 1 has the coordinate 0."""
    i, j = ("0" if view.program.extents[name] == 1 else name for name in view.out[-2:])
    zero = "False" if is_boolean(view["self"]) else "0"
    condition = f"{j} - {i} {comparison} {view.number('diagonal', 0)}"
    return f"where({condition}, {view.at(view['self'])}, {zero})"


def reading(view: OperatorView, tensor: fx.Node, mode: int, start: int) -> str:
    """`tensor[.., i - start, ..]`, 0 outside of the tensor."""
    i = view.out[mode]
    at = "0" if view.program.extents[i] == 1 else f"{i} - {start}" if start else f"{i} + 0"
    text = view.at(tensor, [*view.out[:mode], at, *view.out[mode + 1 :]])
    # A part of extent 1 has no mode to read outside of.
    return f"where({i} == {start}, {text}, 0)" if view.shape(tensor)[mode] == 1 else text


@row("cat([x[m,n], y[k,n]])", "cat([x[m,2], y[m,1], z[m,3]], 1)", names=("concat", "concatenate"))
def cat(view: OperatorView) -> str:
    """`x[i + 0, k] + y[i - m, k]`: what is read outside of a tensor is 0."""
    parts = view.get("tensors", "names")
    require(not any(map(is_boolean, parts)), "truth values are not added up")
    require(all(view.rank(part) == len(view.out) for part in parts), "a part without entries")
    mode, start, texts = view.mode(parts[0], default=0), 0, []
    require(view.sizes[mode] != 1, "a mode of extent 1")
    for part in parts:
        require(isinstance(start, int), "where a part starts is known in a call alone")
        size = view.shape(part)[mode]
        if size != 0:
            texts.append(reading(view, part, mode, start))
        start = start + size
    return " + ".join(texts) or "0"


@row("stack([x[m,n], y[m,n], z[m,n]], 1)")
def stack(view: OperatorView) -> str:
    """`where(s == 0, x[i,k], where(s == 1, y[i,k], ..))`."""
    parts: Sequence[fx.Node] = view["tensors"]
    mode = view.number("dim", 0) % len(view.out)
    s, names = view.out[mode], [*view.out[:mode], *view.out[mode + 1 :]]
    text = view.at(parts[-1], names)
    for part_number in reversed(range(len(parts) - 1)):
        text = f"where({s} == {part_number}, {view.at(parts[part_number], names)}, {text})"
    return text


@row("constant_pad_nd(x[m,n], [1, 2])", "constant_pad_nd(x[m,n], [1, 0, 0, 2])", names=("pad",))
def constant_pad_nd(view: OperatorView) -> str:
    """`self[i - before, k]`: what is read outside of a tensor is 0."""
    tensor, widths = view["self"], list(view["pad"])
    require(view.get("mode", default="constant") == "constant", "padding by copies is opaque")
    require(not view.number("value", 0), "padding is 0")
    require(1 not in view.shape(tensor) and not is_boolean(tensor), "a mode of extent 1")
    require(all(isinstance(width, int) and width >= 0 for width in widths), "padding that cuts off")
    names = list(view.out)
    for position, before in enumerate(widths[::2]):
        if before or widths[2 * position + 1]:
            require(view.sizes[-1 - position] != 1, "a mode of extent 1")
            names[-1 - position] = (
                f"{names[-1 - position]} - {before}" if before else f"{names[-1 - position]} + 0"
            )
    return view.at(tensor, names)


@row("roll(x[m,5], [2], [1])")
def roll(view: OperatorView) -> str:
    """`self[i - shift, k] + self[i - shift + extent(i), k]`: what is read outside of a tensor is 0."""
    tensor, shifts, dims = view["self"], view["shifts"], view["dims"]
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    require(len(dims) == len(shifts) == 1 and not is_boolean(tensor), "several modes at once")
    mode = dims[0] % view.rank(tensor)
    size, i = view.sizes[mode], view.out[mode]
    require(isinstance(size, int) and size > 1, "an extent is known in a call alone")
    shift = shifts[0] % size
    if shift == 0:
        return view.at(tensor)
    reads = (f"{i} - {shift}", f"{i} + {size - shift}")
    return " + ".join(view.at(tensor, [*view.out[:mode], at, *view.out[mode + 1 :]]) for at in reads)


@row("repeat(x[m,n], [3, 1, 1])", "repeat(x[m,1], [1, 4])", names=("tile",))
def repeat(view: OperatorView) -> str:
    """`self[k]`: modes of extent 1 are repeated; other ones are read by an opaque copy."""
    tensor = view["self"]
    shape = view.shape(tensor)
    last_sizes = view.sizes[len(view.sizes) - len(shape) :]
    require(all(a in (1, b) for a, b in zip(shape, last_sizes, strict=True)), "a longer mode is repeated")
    return view.at(tensor)


@row("slice_scatter(x[m+4,n], y[2,n], 0, 1, 3)")
def slice_scatter(view: OperatorView) -> str:
    """`where(start <= i < end, src[i - start, k], self[i, k])`."""
    mode = view.mode(view["self"], default=0)
    start, step = view.number("start", 0), view.number("step", 1)
    size, width = view.sizes[mode], view.shape(view["src"])[mode]
    require(step == 1 and all(isinstance(v, int) for v in (start, size, width)), "a slice in steps")
    require(1 not in (size, width), "a mode of extent 1")
    start = max(0, start + size) if start < 0 else start
    i = view.out[mode]
    read = view.at(view["src"], [*view.out[:mode], f"{i} - {start}", *view.out[mode + 1 :]])
    inside = f"logical_and({i} >= {literal(start)}, {i} < {literal(start + width)})"
    return f"where({inside}, {read}, {view.at(view['self'])})"


@row("select_scatter(x[m,n+2], y[m], 1, 1)")
def select_scatter(view: OperatorView) -> str:
    """`where(i == index, src[k], self[i,k])`."""
    mode, index = view.mode(view["self"], default=0), view.number("index")
    size = view.sizes[mode]
    require(isinstance(size, int) and size != 1, "an extent is known in a call alone")
    names = [*view.out[:mode], *view.out[mode + 1 :]]
    return (
        f"where({view.out[mode]} == {index % size}, {view.at(view['src'], names)}, {view.at(view['self'])})"
    )
