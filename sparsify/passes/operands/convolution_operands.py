"""The operands of a convolution's kernel: flat images, its packed weight at places in them, the result as torch has it.

In: x, a weight [o, c, ...] that is packed, a bias, what a normalisation in evaluation has learned, what is added. Out:
the result of `Y[n,o,p] = relu(s[o] * sum(k, W[o,k] * F[n,k+p]) + b[o] + Z[n,o,p])`, with the normalisation in s and b.

W has the values of the packed weight; the places of its entries depend on the extents of images and are listed beside
it, for the latest of them. Kernels are for a number of results; calls with images of other sizes have kernels of their
own, the latest of which are kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel import Kernel, plan
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.passes.operands.cached_operands import Structure
from sparsify.passes.operands.content_memo import Memo
from sparsify.passes.operands.sliding_window import Grid, Window
from sparsify.report import ConversionEntry
from sparsify.storage.tensor import SparseTensor

K = TypeVar("K")
V = TypeVar("V")
# Sizes of images whose kernels are kept, and those for which the places of a weight's entries are.
SIZES: Final = 8
PLACED: Final = 2


@dataclass(frozen=True, slots=True)
class Places:
    """Where the operands of a convolution are among those of its nodes, `None` for those that it lacks.

    Attributes:
        norm: of the running mean and variance of a normalisation, its weight and its bias.
        added: of what is added to the result.
        scales: of what the whole numbers of each row of the weight are multiplied with.
    """

    image: int
    weight: int
    bias: int | None = None
    norm: tuple[int | None, ...] = ()
    added: int | None = None
    scales: int | None = None

    @property
    def by_output(self) -> tuple[int | None, ...]:
        """Those that s and b follow from."""
        return (self.bias, self.scales, *self.norm)


class Placed:
    """Weights at the places of their entries in images: of the latest weights and sizes of images, or of none."""

    def __init__(self, most: int = PLACED) -> None:
        self.memory: Memo[SparseTensor] = Memo(most, are_weights=True)

    @property
    def most(self) -> int:
        """How many are remembered."""
        return self.memory.most

    def __call__(self, weight: SparseTensor, grid: Grid) -> SparseTensor:
        """W[o,k] of a packed weight [o, c, ...]."""
        if not self.most:
            return self.made(weight, grid)
        return self.memory.get((weight._vals, weight._pattern, grid), partial(self.made, weight, grid))

    def made(self, weight: SparseTensor, grid: Grid) -> SparseTensor:
        """The same, made now."""
        with torch.inference_mode(False), torch.no_grad():
            return grid.matrix(weight)

    def make_room(self, weight: SparseTensor, grids: Iterable[Grid], most: int) -> None:
        """Room for the places in images of all these sizes, where they take no more than `most` bytes."""
        sizes = dict.fromkeys(grids)
        if self.most and sum(grid.bytes_beside(weight) for grid in sizes) <= most:
            self.memory.most = max(self.most, len(sizes))

    def kept(self, grids: Iterable[Grid]) -> list[Grid]:
        """Those of some sizes of images for which places are kept."""
        return list(dict.fromkeys(grids))[: self.most]


class FlatImages:
    """How the operands of a convolution's kernel follow from those of its nodes.

    Args:
        windows: one for each mode of an image.
        places: of its operands.
        example: the extents of the example's images.
        eps: of the normalisation.
        keeps_places: whether places are listed once, and not in each call.
        is_single: whether images come without a batch, one at a time.

    Attributes:
        refused: windows over images whose kernels could not be had.
    """

    def __init__(
        self,
        windows: tuple[Window, ...],
        places: Places,
        example: tuple[int, ...],
        eps: float = 0.0,
        keeps_places: bool = True,
        is_single: bool = False,
    ) -> None:
        self.windows, self.places, self.eps, self.is_single = windows, places, eps, is_single
        self.example = Grid(windows, example)
        self.placed = Placed(PLACED if keeps_places else 0)
        self.by_output = Structure(self.factors, (0, 1), ConversionEntry("s, b", "", "dense"))
        self.others: dict[int, Kernel] = {}
        self.refused: set[Grid] = set()
        self.grids: dict[tuple[int, ...], Grid] = {example: self.example}

    def __str__(self) -> str:
        how = "" if self.placed.most else ", places listed in each call"
        return f"{self.windows} over {self.example.extents}{how}"

    def grid(self, image: Tensor) -> Grid:
        """The windows over images like this one."""
        extents = tuple(image.shape[-len(self.windows) :])
        if any(type(extent) is not int for extent in extents):
            return Grid(self.windows, extents)  # of a traced graph
        found = self.grids.get(extents)
        if found is None:
            found = Grid(self.windows, extents)
            self.grids = {**latest(self.grids), extents: found}
        return found

    def run(self, kernel: Kernel, program: Program, options: Options, given: Sequence[Any]) -> Tensor:
        """The result for the operands of the nodes, by the kernel or by one for images of their size."""
        grid = self.grid(given[self.places.image])
        if grid.count != self.example.count:
            sizes = self.sizes(program, len(given[self.places.image]), given[self.places.weight], grid)
            kernel = self.kernel_for(grid, program, options, sizes)
        found = grid.shown(kernel(*self.operands(given, grid)))
        return found.squeeze(0) if self.is_single else found

    def kernel_for(self, grid: Grid, program: Program, options: Options, sizes: Sizes) -> Kernel:
        """The kernel for images of another size than the example's."""
        found = self.others.get(grid.count)
        if found is None:
            known = {**dict(program.extents), "p": grid.count}
            found = plan(replace(program, extents=tuple(known.items())), options=options, sizes=sizes)
            self.others = {**latest(self.others), grid.count: found}
        return found

    def operands(self, given: Sequence[Any], grid: Grid | None = None) -> list[Any]:
        """The operands F, W, s, b and Z of the program, as far as it has them."""
        places = self.places
        grid = grid or self.grid(given[places.image])
        factors, shifts = self.by_output(
            tuple([None if at is None else given[at] for at in places.by_output])
        )
        weight = self.placed(given[places.weight], grid)
        added = None if places.added is None else grid.flat(self.batch(given[places.added]))
        found = [grid.image(self.batch(given[places.image])), weight, factors, shifts, added]
        return [operand for operand in found if operand is not None]

    def batch(self, images: Tensor) -> Tensor:
        """Images [n, ...], of one that comes without a batch, too."""
        return images.unsqueeze(0) if self.is_single else images

    def factors(self, bias: Tensor | None, scales: Tensor | None, *norm: Tensor | None) -> list[Any]:
        """`s = w / sqrt(variance + eps)` and `b = (bias - mean) * s + shift`, the scales of the weight in s.

        Source: Ioffe and Szegedy, Batch Normalization, 2015, algorithm 1 for known means and variances.
        """
        if not norm:
            return [scales, bias]
        mean, variance, weight, shift = norm
        assert mean is not None and variance is not None, "others are not part of convolutions"
        factor = torch.rsqrt(variance + self.eps)
        factor = factor if weight is None else factor * weight
        moved = (-mean if bias is None else bias - mean) * factor
        return [factor if scales is None else factor * scales, moved if shift is None else moved + shift]

    def without_weight(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments with a weight that gets no gradient."""
        found = list(arguments)
        found[self.places.weight] = found[self.places.weight].detach()
        return found

    def shape(self, arguments: Sequence[Any]) -> list[Any]:
        """The shape of the result."""
        image, weight = arguments[self.places.image], arguments[self.places.weight]
        batch = [] if self.is_single else [image.shape[0]]
        return [*batch, weight.shape[0], *self.grid(image).results]

    def sizes(self, program: Program, images: int, weight: Tensor, grid: Grid | None = None) -> Sizes:
        """The sizes of the operands for so many images, of the example's extents or those of `grid`."""
        grid = grid or self.example
        columns = weight.shape[1] * grid.places
        batch = 1 if self.is_single else images
        extents = {"n": batch, "o": weight.shape[0], "k": columns, "p": grid.count}
        flat = program.declaration("F").extents[1]
        stored = len(weight._vals) if isinstance(weight, SparseTensor) else int(torch.count_nonzero(weight))
        return Sizes({**extents, flat: columns}, {"W": stored})


def latest(known: dict[K, V]) -> dict[K, V]:
    """The last entries, as many as leave a place for one more."""
    return dict(list(known.items())[1 - SIZES :])


def texts(places: Places, activation: str) -> tuple[str, Mapping[str, int]]:
    """The program in index notation, and the number of modes of its dense operands.

    >>> texts(Places(0, 1, 2), "relu")[0]
    'Y[n,o,p] = relu(sum(k, W[o,k] * F[n,k+p]) + b[o])'
    """
    text, ranks = "sum(k, W[o,k] * F[n,k+p])", {"F": 2}
    if places.norm or places.scales is not None:
        text, ranks = f"s[o] * {text}", {**ranks, "s": 1}
    if places.bias is not None or places.norm:
        text, ranks = f"{text} + b[o]", {**ranks, "b": 1}
    if places.added is not None:
        text, ranks = f"{text} + Z[n,o,p]", {**ranks, "Z": 3}
    return f"Y[n,o,p] = {f'{activation}({text})' if activation else text}", ranks


@dataclass(frozen=True, slots=True)
class Chosen:
    """The form of a chain that stays torch's, and where it is reported how often its weights were laid out in it."""

    form: str
    entry: ConversionEntry
