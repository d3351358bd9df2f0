"""The call of a convolution's kernel: images laid out for it, its weight packed once, the result as torch has it.

In: x, a pruned weight, a bias, what a normalisation in evaluation has learned, what is added. Out: the result of
`Y[n,o,p] = relu(sum(k, W[o,k] * F[n,k+p]) + b[o] + Z[n,o,p])`, with the normalisation in W and b.

Kernels are for a number of results; calls with images of other sizes have kernels of their own, the latest of which are
kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.fusion import fuse_conv_bn_weights

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel import Kernel, plan
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.passes.structure import Structure
from sparsify.passes.windows import Grid, Window
from sparsify.report import ConversionEntry

K = TypeVar("K")
V = TypeVar("V")
# Sizes of images whose kernels are kept, and those whose packed weights are: each is nearly as large as a dense one.
SIZES: Final = 8
PACKED: Final = 2


@dataclass(frozen=True, slots=True)
class Places:
    """Where the operands of a convolution are among the arguments of its call, `None` for those that it lacks.

    Attributes:
        norm: of the running mean and variance of a normalisation, its weight and its bias.
        added: of what is added to the result.
    """

    image: int
    weight: int
    bias: int | None = None
    norm: tuple[int | None, ...] = ()
    added: int | None = None

    @property
    def packed(self) -> tuple[int | None, ...]:
        """Those that W and b follow from."""
        return (self.weight, self.bias, *self.norm)


class Convolution:
    """How a region's kernel computes a convolution.

    Args:
        windows: one for each mode of an image.
        places: of its operands.
        example: the extents of the example's images.
        eps: of the normalisation.
        name: of the weight, for the report.
    """

    def __init__(
        self, windows: tuple[Window, ...], places: Places, example: tuple[int, ...], eps: float, name: str
    ) -> None:
        self.windows, self.places, self.eps = windows, places, eps
        self.example = Grid(windows, example)
        self.entry = ConversionEntry("W, b", name, "csr")
        self.structure = Structure(self.pack, (0, 1), self.entry, most=PACKED)
        self.others: dict[int, Kernel] = {}
        self.grids: dict[tuple[int, ...], Grid] = {}

    def grid(self, image: Tensor) -> Grid:
        """The windows over images like this one."""
        extents = tuple(image.shape[2:])
        if any(type(extent) is not int for extent in extents):
            return Grid(self.windows, extents)  # of a traced graph
        found = self.grids.get(extents)
        if found is None:
            found = Grid(self.windows, extents)
            self.grids = {**latest(self.grids), extents: found}
        return found

    def run(self, kernel: Kernel, program: Program, options: Options, arguments: Sequence[Any]) -> Tensor:
        """The result of a call, by the kernel or by one for images of their size."""
        grid = self.grid(arguments[self.places.image])
        if grid.count != self.example.count:
            kernel = self.kernel_for(grid, program, options)
        found: Tensor = kernel(*self.operands(arguments, grid))
        return grid.shown(found)

    def kernel_for(self, grid: Grid, program: Program, options: Options) -> Kernel:
        """The kernel for images of another size than the example's."""
        found = self.others.get(grid.count)
        if found is None:
            known = {**dict(program.extents), "p": grid.count}
            found = plan(replace(program, extents=tuple(known.items())), options=options)
            self.others = {**latest(self.others), grid.count: found}
        return found

    def operands(self, arguments: Sequence[Any], grid: Grid | None = None) -> list[Any]:
        """The operands F, W, b and Z of the program, as far as it has them."""
        image = arguments[self.places.image]
        grid = grid or self.grid(image)
        leaves = tuple([None if at is None else arguments[at] for at in self.places.packed])
        weight, bias = self.structure((*leaves, *grid.extents))
        found = [grid.image(image), weight]
        if bias is not None:
            found.append(bias)
        if self.places.added is not None:
            found.append(grid.flat(arguments[self.places.added]))
        return found

    def pack(self, weight: Tensor, bias: Tensor | None, *rest: Any) -> list[Any]:
        """W and b for images of the extents that come last, the normalisation in both."""
        norm, extents = rest[: len(self.places.norm)], rest[len(self.places.norm) :]
        if norm:
            mean, variance, scale, shift = norm
            weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, self.eps, scale, shift)
        packed = Grid(self.windows, extents).matrix(weight.detach())
        self.entry.bytes_before = weight.nbytes
        self.entry.bytes_after = sum(part.nbytes for part in (*packed._pattern.arrays(), packed._vals))
        return [packed, None if bias is None else bias.detach()]

    def without_weight(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments with a weight that gets no gradient."""
        found = list(arguments)
        found[self.places.weight] = found[self.places.weight].detach()
        return found

    def shape(self, arguments: Sequence[Any]) -> list[Any]:
        """The shape of the result."""
        image, weight = arguments[self.places.image], arguments[self.places.weight]
        return [image.shape[0], weight.shape[0], *self.grid(image).results]

    def sizes(self, program: Program, images: int, weight: Tensor) -> Sizes:
        """The sizes of the operands for so many of the example's images."""
        columns = weight.shape[1] * self.example.places
        extents = {"n": images, "o": weight.shape[0], "k": columns, "p": self.example.count}
        flat = program.declaration("F").extents[1]
        return Sizes({**extents, flat: columns}, {"W": int(torch.count_nonzero(weight))})


def latest(known: dict[K, V]) -> dict[K, V]:
    """The last entries, as many as leave a place for one more."""
    return dict(list(known.items())[1 - SIZES :])


def texts(places: Places, activation: str) -> tuple[str, Mapping[str, int]]:
    """The program in index notation, and the number of modes of its dense operands.

    >>> texts(Places(0, 1, 2), "relu")[0]
    'Y[n,o,p] = relu(sum(k, W[o,k] * F[n,k+p]) + b[o])'
    """
    text, ranks = "sum(k, W[o,k] * F[n,k+p])", {"F": 2}
    if places.bias is not None or places.norm:
        text, ranks = f"{text} + b[o]", {**ranks, "b": 1}
    if places.added is not None:
        text, ranks = f"{text} + Z[n,o,p]", {**ranks, "Z": 3}
    return f"Y[n,o,p] = {f'{activation}({text})' if activation else text}", ranks
