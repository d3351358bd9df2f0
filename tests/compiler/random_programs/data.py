"""Operands of random programs.

In: a `Case` without values. Out: for each input values and a pattern, as arrays and as a tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, nan, prod

import numpy as np
import torch
from numpy.typing import NDArray

import sparsify
from sparsify.compiler.einsum.infer.extents import declared_extents
from sparsify.compiler.einsum.infer.format import hangs_on_extents
from sparsify.compiler.einsum.infer.share import shared_pattern
from sparsify.compiler.einsum.infer.shared_pattern import over_modes
from sparsify.compiler.einsum.nodes import Assign, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices
from sparsify.compiler.ir.node import walk
from sparsify.storage.convert import level_columns
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

# Values that float32 adds and multiplies without error in the sums that occur here.
VALUES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
EXTENTS = (1, 2, 3, 3, 4, 5, 7, 9)


@dataclass(frozen=True, slots=True)
class Data:
    """Distribution of random operands.

    Attributes:
        values: values of stored entries.
        extents: extents of modes.
        densities: densities of operands.
        hollow: probability that most slices along one mode are empty.
        most: maximum coordinates of a statement; the interpreters of loops visit them one after the other.
    """

    values: tuple[float, ...] = VALUES
    extents: tuple[int, ...] = EXTENTS
    densities: tuple[float, ...] = (0.0, 0.2, 0.5, 0.5, 1.0)
    hollow: float = 0.0
    most: int = 500


SMALL = Data()
SPECIAL = Data((*VALUES, nan, inf, -inf), densities=(0.2, 0.5, 0.5, 0.8))
HOLLOW = Data(extents=(2, 3, 5, 9, 13), densities=(0.1, 0.3, 0.6), hollow=0.5, most=1000)
CUT = Data(extents=(2, 3, 5, 7, 9, 11))
WIDE = Data(extents=(5, 9, 13, 18, 26, 40), densities=(0.03, 0.1, 0.3), hollow=0.4, most=20_000)
LAYERS = Data(extents=(1, 3, 5, 16, 17, 33, 40, 70, 130), densities=(0.05, 0.3, 0.5, 1.0), most=8000)
# More operands for programs that are compiled anyway.
MORE = (
    WIDE,
    Data(extents=(0, 1, 3)),
    Data(extents=(1, 1, 17), hollow=0.3, most=4000),
    Data(densities=(0.0,)),
    Data(densities=(1.0,), most=2000),
)


@dataclass
class Case:
    """A program, its operands and how to run it.

    Attributes:
        data: distribution of the operands.
        values: dense array by input, with the fill in unstored entries.
        stored: mask of stored entries by input, including padding of blocks.
        tensors: tensor by sparse input.
        seed: argument of `draw`.
        undecided: results that may compare NaN; beside infinite fills the outcome is undefined.
        doubtful: by result, mask of NaN in IEEE arithmetic on dense arrays; a fill may decide otherwise.
        compared: by result, mask of entries that compare infinity or NaN, depending on the order of products.
    """

    seed: int
    program: Program
    vector_bytes: int
    threads: int
    data: Data = SMALL
    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    stored: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    tensors: dict[str, SparseTensor] = field(default_factory=dict)
    doubtful: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    compared: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        tensors = "; ".join(
            f"{d} {list(self.values[d.name].shape)}"
            for d in self.program.declarations
            if d.name in self.values
        )
        text = "; ".join(map(str, self.program.statements))
        return f"seed {self.seed}: {text} with {tensors}; {self.vector_bytes} bytes, {self.threads} threads"


def refilled(case: Case, number: int) -> Case:
    """Program of a case with other operands; runs of one number share the distribution.

    Extents of 0 are avoided for monoids other than the sum, because reductions over nothing would change the plan.
    """
    data = LAYERS if case.data is LAYERS and number % 2 else MORE[number % len(MORE)]
    if 0 in data.extents and (_reductions(case.program) - {"sum"} or hangs_on_extents(case.program)):
        data = replace(data, extents=tuple(extent for extent in data.extents if extent))
    if case.data.values != VALUES:
        data = replace(data, values=case.data.values)
    found = Case(case.seed, case.program, case.vector_bytes, 2 if data.hollow else 3 - case.threads, data)
    fill_operands(found, np.random.default_rng([case.seed, 3, number]))
    return found


def fill_operands(
    case: Case,
    rng: np.random.Generator,
    extents: dict[str, int] | None = None,
    alike: Mapping[str, str] | None = None,
) -> None:
    """Draws values and patterns of the inputs without values; `alike` maps extents to equal extents."""
    extents = dict(case.program.extents) if extents is None else extents
    draw_extents(case.program, rng, extents, case.data)
    extents |= {name: extents[first] for name, first in (alike or {}).items()}
    for name in case.program.inputs:
        if name in case.values:
            continue
        declared = case.program.declaration(name)
        shape = [extents[mode] for mode in declared.extents]
        drawn = rng.choice(case.data.values, size=shape)
        density = float(rng.choice(case.data.densities))
        mask = rng.random(shape) < density
        if shape and case.data.hollow and rng.random() < case.data.hollow:
            mode = int(rng.integers(len(shape)))
            kept = rng.random(shape[mode]) < 0.35
            mask = mask & kept.reshape([-1 if m == mode else 1 for m in range(len(shape))])
        if declared.pattern_of is not None:
            root = case.program.declaration(declared.pattern_of)
            mask = over_modes(declared, root, case.stored[root.name], shape)
        place(case, name, drawn, mask)


def draw_extents(program: Program, rng: np.random.Generator, extents: dict[str, int], data: Data) -> None:
    """Draws the unknown extents; the widest are halved while a statement has too many coordinates."""
    is_empty = rng.random() < 0.15 and (data in (SMALL, SPECIAL) or not _reductions(program) - {"sum"})
    sizes = (0, *data.extents) if is_empty else data.extents
    large = program.declarations[0].extents[-1:] if rng.random() < 0.3 and data.extents == EXTENTS else ()
    modes = [mode for name in program.inputs for mode in program.declaration(name).extents]
    fresh = [mode for mode in dict.fromkeys(modes) if mode not in extents]
    for mode in fresh:
        extents[mode] = int(rng.choice((11, 17) if mode in large else sizes))
    while fresh and _coordinates(program, extents) > data.most:
        widest = max(fresh, key=extents.__getitem__)
        if extents[widest] == 1:
            return
        extents[widest] = (extents[widest] + 1) // 2


def _reductions(program: Program) -> set[str | None]:
    """The monoids of a program."""
    return {n.monoid for n in walk(program) if isinstance(n, Assign | Reduce)} - {None}


def _coordinates(program: Program, extents: dict[str, int]) -> int:
    """Maximum number of coordinates over all statements."""
    shapes = {name: [extents[e] for e in program.declaration(name).extents] for name in program.inputs}
    known = declared_extents(program, shapes)
    return max(prod(known.get(name, 1) for name in all_indices((s,))) for s in program.statements)


def place(case: Case, name: str, drawn: NDArray[np.float64], mask: NDArray[np.bool_]) -> None:
    """Makes the tensor of an input from the entries in `mask`."""
    declared = case.program.declaration(name)
    drawn = array_of(torch.from_numpy(drawn).to(getattr(torch, declared.dtype)))
    if declared.format.is_dense and declared.format.ordering == tuple(range(drawn.ndim)):
        case.values[name], case.stored[name] = drawn, np.ones(drawn.shape, bool)
        return
    mask = mask if declared.pattern_of is not None else held(mask, declared.format)
    values = torch.from_numpy(drawn[mask]).to(getattr(torch, declared.dtype))
    coordinates = torch.from_numpy(np.argwhere(mask).T.copy())
    if not mask.ndim:
        coordinates = torch.zeros(0, int(mask))
    if declared.pattern_of is not None:
        pattern = shared_pattern(case.tensors[declared.pattern_of].pattern, declared.format, drawn.shape)
        at = pattern.coordinates().clamp(max=10**6)
        inside = pattern.inside()
        found = torch.full((pattern.nnz,), declared.fill, dtype=values.dtype)
        kept = torch.arange(pattern.nnz) if inside is None else inside.nonzero().squeeze(1)
        found[kept] = torch.from_numpy(drawn[tuple(at[:, kept].numpy())]).to(values.dtype)
        tensor = SparseTensor(pattern, found, declared.fill)
    else:
        tensor = sparsify.tensor((coordinates, values, drawn.shape), declared.format, fill=declared.fill)
    case.tensors[name] = tensor
    case.values[name], case.stored[name] = dense_of(tensor)


def held(mask: NDArray[np.bool_], form: Format) -> NDArray[np.bool_]:
    """Mask restricted to the entries that a format can hold: the first ones of each group."""
    kept = mask.copy()
    for number, stored in enumerate(form.levels):
        if stored.level.holds_all:
            continue
        places = np.argwhere(kept)
        columns = level_columns(form, list(torch.from_numpy(places.T.copy())), mask.shape)
        above = np.stack([np.zeros(len(places), int), *(c.numpy() for c in columns[:number])], 1)
        _, group = np.unique(above, axis=0, return_inverse=True)
        pairs = np.stack([group, columns[number].numpy()], 1)
        each, first, pair = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        order = np.lexsort([first, each[:, 0]])  # of each group what occurs first
        begin = np.searchsorted(each[:, 0], each[order, 0])
        rank = np.empty(len(each), int)
        rank[order] = np.arange(len(each)) - begin
        kept[tuple(places[rank[pair] >= stored.level.n].T)] = False
    return kept


def array_of(values: torch.Tensor) -> NDArray[np.float64]:
    """Values as float64, or complex128."""
    return values.to(torch.complex128 if values.dtype.is_complex else torch.float64).resolve_conj().numpy()


def dense_of(tensor: SparseTensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values of a sparse tensor as an array, and the mask of stored entries."""
    stored = np.zeros(tuple(tensor.shape), bool)
    at = tensor.pattern.coordinates()
    inside = tensor.pattern.inside()
    at = at if inside is None else at[:, inside]
    if at.shape[1]:
        stored[tuple(at.numpy())] = True
    values = np.full(stored.shape, tensor.fill, complex if tensor.dtype.is_complex else float)
    entries = tensor.values() if inside is None else tensor.values()[inside]
    if at.shape[1]:
        values[tuple(at.numpy())] = array_of(entries)
    return values, stored
