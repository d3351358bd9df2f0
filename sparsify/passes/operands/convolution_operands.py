"""The operands of a convolution's kernel: flat images, weight at image offsets, and the result's shape.

In: x, a packed weight [o, c, ...], a bias and the learned statistics of a normalisation in evaluation, summands.
Out: the result of `Y[n,o,p] = relu(s[o] * sum(k, W[o,k] * F[n,k+p]) + b[o] + Z[n,o,p])`, s and b computed once.

W has the values of the packed weight; the offsets of its entries depend on the extents of images and are listed
separately, for the latest extents. Where rows of results fill vectors, a program reads `F[n,k+34*y+x]`, without the
padding between rows. Kernels are specialized for the extents of images; images of other sizes have separate kernels,
the latest of which are kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Index, Program
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.node import Node, map_children
from sparsify.compiler.kernel.kernel import Kernel, plan
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.passes.operands.cached_operands import Structure
from sparsify.passes.operands.content_memo import Memo
from sparsify.passes.operands.sliding_window import Grid, Window
from sparsify.report import ConversionEntry
from sparsify.runtime.padded_memory import PADDED, Interior
from sparsify.storage.tensor import SparseTensor

K = TypeVar("K")
V = TypeVar("V")
# Maximum number of image sizes with cached kernels, and with cached offsets of a weight's entries.
SIZES: Final = 8
PLACED: Final = 2


# Index variables of results: all entries of an image as one mode, and by rows.
FLAT: Final = ("p",)
BY_ROWS: Final = ("z", "y", "x")


def pixels(grid: Grid, has_rows: bool) -> tuple[Index, ...]:
    """The index variables of an image of results.

    >>> pixels(Grid((Window(3), Window(3)), (8, 8)), True)
    (Index(name='y'), Index(name='x'))
    """
    return tuple([Index(name) for name in (BY_ROWS[-len(grid.windows) :] if has_rows else FLAT)])


def entry_read(grid: Grid, has_rows: bool) -> Expr:
    """The index of F of the entry that a result reads at an offset k.

    >>> print(entry_read(Grid((Window(3), Window(3)), (8, 8)), True))
    k + 8 * y + x
    """
    steps = grid.steps if has_rows else (1,)
    names = [index.name for index in pixels(grid, has_rows)]
    terms = [name if step == 1 else f"{step} * {name}" for step, name in zip(steps, names, strict=True)]
    return parse_expression(" + ".join(["k", *terms]), indices=["k", *names])


def extents_of_results(grid: Grid, channels: int, has_rows: bool) -> dict[str, int]:
    """The constant extents of a convolution's program."""
    results = grid.results if has_rows else (grid.count,)
    names = [index.name for index in pixels(grid, has_rows)]
    return {
        **dict(zip(names, results, strict=True)),
        "k": grid.columns(channels),
        "F_1": grid.length(channels),
    }


@dataclass(frozen=True, slots=True)
class Places:
    """Positions of a convolution's operands among the operands of its nodes.

    Attributes:
        rows: sources of its vectors over outputs.
        added: tensors of the shape of the result.
    """

    image: int
    weight: int
    rows: tuple[int, ...] = ()
    added: tuple[int, ...] = ()


class Placed:
    """Weights at image offsets, memoized for the latest weights and image sizes, or not at all."""

    def __init__(self, most: int = PLACED) -> None:
        self.memory: Memo[SparseTensor] = Memo(most, are_weights=True)

    @property
    def most(self) -> int:
        """The capacity of the memo."""
        return self.memory.most

    def __call__(self, weight: SparseTensor, grid: Grid) -> SparseTensor:
        """W[o,k] of a packed weight [o, c, ...]."""
        if not self.most:
            return self.compute(weight, grid)
        return self.memory.get((weight._vals, weight._pattern, grid), partial(self.compute, weight, grid))

    def compute(self, weight: SparseTensor, grid: Grid) -> SparseTensor:
        """W[o,k] of a packed weight, computed without the memo."""
        with torch.inference_mode(False), torch.no_grad():
            return grid.matrix(weight)

    def make_room(self, weight: SparseTensor, grids: Iterable[Grid], most: int) -> None:
        """Extends the memo to images of all sizes in `grids`, if within `most` bytes."""
        sizes = dict.fromkeys(grids)
        if self.most and sum(grid.extra_bytes(weight) for grid in sizes) <= most:
            self.memory.most = max(self.most, len(sizes))

    def stored_grids(self, grids: Iterable[Grid]) -> list[Grid]:
        """The image sizes with kept offsets."""
        return list(dict.fromkeys(grids))[: self.most]


class FlatImages:
    """Operands of a convolution's kernel, from the operands of its nodes.

    Args:
        windows: one for each mode of an image.
        places: positions of its operands.
        example: extents of the example's images.
        by_row: program of vectors over outputs, `s[o] = r1[o] / sqrt(r2[o] + 1e-05)`, of r0, r1, ...; None without.
        keeps_places: whether offsets are listed once, not in each call.
        is_single: whether images come without a batch, one at a time.
        has_rows: whether results are computed by rows, without the padding between rows.
        reader_windows: windows of the convolutions that read the result Y, or that read a summand Z next to this one:
            these tensors are inside padded images, which their readers do not copy.

    Attributes:
        refused: windows over images without a working kernel.
    """

    def __init__(
        self,
        windows: tuple[Window, ...],
        places: Places,
        example: tuple[int, ...],
        by_row: Program | None = None,
        keeps_places: bool = True,
        is_single: bool = False,
        has_rows: bool = False,
        reader_windows: Mapping[str, tuple[Window, ...]] | None = None,
    ) -> None:
        self.reader_windows, self.added = (
            dict(reader_windows or {}),
            [*map(summand, range(len(places.added)))],
        )
        self.windows, self.places, self.by_row, self.is_single = windows, places, by_row, is_single
        self.has_rows = has_rows
        self.example = Grid(windows, example)
        self.placed = Placed(PLACED if keeps_places else 0)
        vectors = () if by_row is None else by_row.outputs
        entry = ConversionEntry(", ".join(vectors), "", "dense")
        self.by_output = Structure(self.vectors, range(len(vectors)), entry)
        self.others: dict[tuple[int, ...], Kernel] = {}
        self.refused: set[Grid] = set()
        self.grids: dict[tuple[int, ...], Grid] = {example: self.example}
        self.known_interiors: dict[Grid, dict[str, Interior]] = {}

    def __str__(self) -> str:
        how = "" if self.placed.most else ", places listed in each call"
        inside = "".join(
            [f", {name} inside images of {windows}" for name, windows in self.reader_windows.items()]
        )
        return (
            f"{self.windows} over {self.example.extents}{how}{', by rows' if self.has_rows else ''}{inside}"
        )

    def grid(self, image: Tensor) -> Grid:
        """The windows over images of a given size."""
        extents = image.shape[-len(self.windows) :]
        try:
            grid = self.grids.get(extents)
        except TypeError:  # symbolic extents of a traced graph have no hash
            return Grid(self.windows, tuple(extents))
        if grid is None:
            grid = Grid(self.windows, tuple(extents))
            if all(type(extent) is int for extent in extents):
                self.grids = {**latest(self.grids), grid.extents: grid}
        return grid

    def run(self, kernel: Kernel, grid: Grid, images: Sequence[Tensor], parameters: Sequence[Any]) -> Tensor:
        """The result of the kernel for images of `grid`.

        Args:
            images: images x[n, c, ...], and summands of the shape of the result.
            parameters: W, s and b.
        """
        result = kernel(*self.in_program_order(images, parameters, grid))
        shown = result if self.has_rows else grid.shown(result)
        return shown.squeeze(0) if self.is_single else shown

    def interiors(self, grid: Grid, outputs: int) -> dict[str, Interior]:
        """The places of the result and of summands inside padded images, by name, for images of a given size."""
        found = self.known_interiors.get(grid)
        if found is None:
            grids = {name: Grid(windows, grid.results) for name, windows in self.reader_windows.items()}
            pairs = [(name, behind.interior(outputs)) for name, behind in grids.items()]
            found = {name: interior for name, interior in pairs if interior is not None}
            self.known_interiors = {**latest(self.known_interiors), grid: found}
        return found

    def with_interiors(self, program: Program, grid: Grid, outputs: int) -> Program:
        """The program with the result and summands inside padded images, for images of a given size."""
        found = self.interiors(grid, outputs)
        placed = tuple([replace(d, interior=found.get(d.name)) for d in program.declarations])
        return replace(program, declarations=placed)

    def kernel_for(self, grid: Grid, program: Program, options: Options, sizes: Sizes) -> Kernel:
        """The kernel for images of another size than the example's."""
        kernel = self.others.get(grid.extents)
        if kernel is None:
            kernel = plan(self.resized(program, grid, sizes), options=options, sizes=sizes)
            self.others = {**latest(self.others), grid.extents: kernel}
        return kernel

    def resized(self, program: Program, grid: Grid, sizes: Sizes) -> Program:
        """The program for images of another size."""
        read = entry_read(grid, self.has_rows)

        def visit(part: Node) -> Node:
            if isinstance(part, Access) and part.tensor == "F":
                return replace(part, indices=(part.indices[0], read))
            return map_children(part, visit)

        def resized(statement: Assign) -> Assign:
            value = visit(statement.value)
            assert isinstance(value, Expr), "values are expressions"
            return replace(statement, value=value)

        extents = tuple([(name, sizes.extents[name]) for name, _ in program.extents])
        found = replace(program, statements=tuple(map(resized, program.statements)), extents=extents)
        return self.with_interiors(found, grid, sizes.extents["o"])

    def operands(self, arguments: Sequence[Any], grid: Grid | None = None) -> list[Any]:
        """The operands F, W, s, b and Z of the program, as far as present."""
        places = self.places
        grid = grid or self.grid(arguments[places.image])
        images = [arguments[at] for at in (places.image, *places.added)]
        return self.in_program_order(images, self.parameter_operands(arguments, grid), grid)

    def parameter_operands(self, arguments: Sequence[Any], grid: Grid) -> list[Any]:
        """The operands W, s and b of the program, as far as present."""
        places = self.places
        vectors = () if self.by_row is None else self.by_output(tuple([arguments[at] for at in places.rows]))
        return [self.placed(arguments[places.weight], grid), *vectors]

    def in_program_order(self, images: Sequence[Tensor], parameters: Sequence[Any], grid: Grid) -> list[Any]:
        """The operands in the order of the program."""
        image, *added = map(self.batch, images) if self.is_single else images
        if added and not self.has_rows:
            added = [grid.flat(one) for one in added]
        elif added and self.reader_windows:
            interiors = self.known_interiors.get(grid) or self.interiors(grid, parameters[0].shape[0])
            for number, name in enumerate(self.added):
                if name in interiors:
                    added[number] = PADDED.placed_inside(added[number], interiors[name])
        return [grid.padded(image), *parameters, *added]

    def batch(self, images: Tensor) -> Tensor:
        """Images [n, ...], also for a single image without a batch."""
        return images.unsqueeze(0) if self.is_single else images

    def vectors(self, *rows: Tensor) -> list[Tensor]:
        """The results of the program of vectors, for operands of any shape."""
        from sparsify.compiler.reference import evaluate_program

        assert self.by_row is not None, "others have no vectors"
        operands = {}
        for number, row in enumerate(rows):
            name = f"r{number}"
            if name in self.by_row.inputs:
                rank = len(self.by_row.declaration(name).extents)
                operands[name] = row.detach().reshape([-1] * rank)
        return list(evaluate_program(self.by_row, operands))

    def without_weight(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments with the weight detached."""
        result = list(arguments)
        result[self.places.weight] = result[self.places.weight].detach()
        return result

    def shape(self, arguments: Sequence[Any]) -> list[Any]:
        """The shape of the result."""
        image, weight = arguments[self.places.image], arguments[self.places.weight]
        batch = [] if self.is_single else [image.shape[0]]
        return [*batch, weight.shape[0], *self.grid(image).results]

    def sizes(self, images: int, weight: Tensor, grid: Grid | None = None) -> Sizes:
        """The sizes of the operands for a number of images, with the example's extents or those of `grid`."""
        grid = grid or self.example
        batch = 1 if self.is_single else images
        extents = extents_of_results(grid, weight.shape[1], self.has_rows)
        stored = len(weight._vals) if isinstance(weight, SparseTensor) else int(torch.count_nonzero(weight))
        return Sizes({"n": batch, "o": weight.shape[0], **extents}, {"W": stored})


def summand(number: int) -> str:
    """The name of a tensor of the shape of the result in a convolution's program.

    >>> summand(0), summand(1)
    ('Z', 'Z1')
    """
    return f"Z{number or ''}"


def latest(table: dict[K, V]) -> dict[K, V]:
    """The last entries, as many as leave a place for one more."""
    return dict(list(table.items())[1 - SIZES :])


@dataclass(frozen=True, slots=True)
class Chosen:
    """The form of a chain left to torch, with the report entry that counts its weight conversions."""

    form: str
    entry: ConversionEntry
