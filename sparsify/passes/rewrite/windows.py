"""Windows as products: each result of a convolution is a sparse matrix row times an image.

In:  `sum(c, r, s, w[o,c,r,s] * x[n, c, 2*y + r - 1, 2*x + s - 1])` with a sparse w.
Out: the windows `Window(3, stride=2, padding=1)` of both modes, for the equivalent `sum(k, W[o,k] * F[n,k+29*y+x])`: F
are the flat images, and W has the entries of w at their offsets in an image.

An index outside of an image reads 0. A mode of extent 1, omitted in programs, is read where its index is 0: `where(2*y
+ r - 1 == 0, x, 0)`.

Source: Park and others, Faster CNNs with Direct Sparse Convolutions and Guided Pruning, 2017, section 3.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Reduce
from sparsify.compiler.ir.node import find
from sparsify.passes.graph.operators import known_size
from sparsify.passes.operands.sliding_window import Window
from sparsify.passes.program.model import ModelProgram, Refusal, Size, sizes_of


@dataclass(frozen=True, slots=True)
class Windowed:
    """A sum over windows.

    Attributes:
        total: the sum.
        image: the node of the images.
        windows: one for each mode of an image.
    """

    total: Expr
    image: fx.Node
    windows: tuple[Window, ...]


def windowed(program: ModelProgram, node: fx.Node, weight: fx.Node) -> Windowed | None:
    """The sum over windows with a weight in the statement of a node; `None` without one.

    Raises:
        Refusal: the sum over windows is no product with flat images.
    """
    statement = program.statements[node.name]
    for total in find(statement.value, Reduce, Call):
        match total:
            case Reduce("sum", _, Call("mul", (Access() as filters, image))) if filters.tensor == weight.name:
                pass
            case Call("mul", (Access() as filters, image)) if filters.tensor == weight.name:
                pass
            case _:
                continue
        read, outside = without_conditions(image)
        source = program.nodes.get(read.tensor)
        if source is None:
            return None
        w = modes(sizes_of(weight.meta["val"]), filters.indices)
        x = modes(sizes_of(source.meta["val"]), read.indices)
        y = modes(sizes_of(node.meta["val"]), statement.target.indices)
        rank = len(w) - 2
        if rank < 1 or len(x) != len(y) or len(x) - rank not in (1, 2):
            return None
        if [*x[: -rank - 1], w[0], w[1]] != [*y[: -rank - 1], y[-rank - 1], x[-rank - 1]]:
            return None
        places = iter(outside)
        windows = []
        for mode in range(-rank, 0):
            extents = known_size(source.meta["val"].shape[mode]), known_size(node.meta["val"].shape[mode])
            size = int(weight.meta["val"].shape[mode])
            index = x[mode]
            if extents[0] == 1 and index is None:
                index = next(places, None) if size > 1 else Const(0)
            windows.append(window(index, y[mode], w[mode], size, extents))
        if next(places, None) is not None:
            raise Refusal("its windows of one entry run over the padding of images of one entry")
        return Windowed(total, source, tuple(windows))
    return None


def without_conditions(image: Expr) -> tuple[Access, list[Expr]]:
    """The access in `where(2*y + r - 1 == 0, x, 0)`, and the indices of modes of extent 1, in order."""
    places: list[Expr] = []
    while True:
        match image:
            case Call("where", (Call("eq", (index, Const())), inner, Const())):
                places.insert(0, index)
                image = inner
            case Access():
                return image, places
            case _:
                raise Refusal("it reads no images")


def modes(sizes: Sequence[Size], indices: Sequence[Expr]) -> list[Expr | None]:
    """The index of each mode of a tensor, None for modes of extent 1."""
    remaining: Iterator[Expr] = iter(indices)
    return [None if size == 1 else next(remaining) for size in sizes]


def window(
    index: Expr | None,
    result: Expr | None,
    entry: Expr | None,
    size: int,
    extents: tuple[int | None, int | None],
) -> Window:
    """The window of a mode with the access `stride * result + dilation * entry - padding`.

    Args:
        size: size of the window.
        extents: extents of the image and of the result, in the example.

    Raises:
        Refusal: the index is no window.
    """
    form = None if index is None else affine(index)
    if form is None or form.divisor != 1 or form.extents:
        raise Refusal("its windows have no stride")
    factors = dict(form.terms)
    dilation = factors.pop(str(entry), 1) if entry is not None else 1
    stride = factors.pop(str(result), 1) if result is not None else 0
    padding = -form.offset
    if not stride and extents[0] is not None:  # a single result: the next one would be outside of the image
        stride = max(1, extents[0] + 2 * padding - dilation * (size - 1))
    if factors or min(stride, dilation) < 1 or padding < 0 or None in extents:
        raise Refusal("its windows have no stride")
    result_window = Window(size, stride, padding, dilation)
    if result_window.results(extents[0] or 0) != extents[1]:
        raise Refusal(
            "padding='same' of an even kernel, more behind images than before, is not supported; pad them before"
        )
    return result_window
