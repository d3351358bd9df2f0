"""Operands determined by a graph's structure alone, computed once per graph.

In: `edge_index`, `edge_weight`, the number of nodes. Out: the normalised adjacency as a `SparseTensor`.

The cache key is the content of each input, after any kind of write; identity and version for inputs declared static by
a recipe. With an input that requires a gradient the values are computed anew, differentiably, and only the pattern is
memoized.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from sparsify.errors import UnsupportedProgramError
from sparsify.passes.operands.alignment import (
    Aligned,
    BagsOutput,
    align_coordinates,
    align_edges,
    align_entries,
    align_numbered,
    pattern_of_entries,
)
from sparsify.passes.operands.content_memo import REMEMBERED, Memo, needs_gradient
from sparsify.report import ConversionEntry
from sparsify.sparsification.masks.mask_spec import MaskSpec
from sparsify.sparsification.rules.rounding import narrowed, widened
from sparsify.storage import transformed
from sparsify.storage.format import Format
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.pattern import Pattern
from sparsify.storage.subclass import trained_masks
from sparsify.storage.tensor import SparseTensor, values_at

# Reduction of duplicate entries; `nothing` excludes duplicates.
Joins = Literal["sum", "logsumexp", "nothing"]


@dataclass(frozen=True)
class MatrixOutput:
    """A sparse operand among the outputs of a structure module.

    Attributes:
        rows, columns: positions of the coordinates among the outputs.
        between: positions of the coordinates in the modes between rows and columns.
        values: position of the values; None for ones, -1 if passed by the caller.
        extents: positions of the extents; with three extents and no `between`, entries are numbered in the middle mode.
        dense: position of a dense tensor, with any number of modes, stored without its zeros; the other positions are
            unused.
        places: position of a tensor that is 0 where the dense one has no entries, None for the dense tensor's own
            zeros.
        transposed: whether the operand is the transpose of `dense`.
        is_frozen: whether the values get no gradient.
        is_trained: whether the operand is a whole parameter with gradients, possibly sparse itself.
        rounds: dtype of a dense tensor with values stored rounded to `dtype`, None for unrounded values; integer values
            have scales, the only other result of the structure.
        joins: reduction of duplicate entries without values.
    """

    format: Format
    dtype: torch.dtype
    rows: int = 0
    columns: int = 0
    values: int | None = None
    extents: tuple[int, ...] = (0, 0)
    dense: int | None = None
    places: int | None = None
    transposed: bool = False
    is_frozen: bool = False
    is_trained: bool = False
    rounds: torch.dtype | None = None
    joins: Joins = "sum"
    between: tuple[int, ...] = ()

    @property
    def has_scales(self) -> bool:
        """Whether the values are integers with a scale for each row of the dense tensor."""
        return self.rounds is not None and self.dtype is torch.int8

    def stored(self, dense: torch.Tensor) -> torch.Tensor:
        """A dense tensor with its values in the stored dtype."""
        return dense if self.rounds is None else narrowed(dense, self.dtype)

    def packed(
        self,
        dense: torch.Tensor,
        operand: SparseTensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> SparseTensor:
        """A packed weight in the dense weight's shape; the operand is the packed weight or its free transpose.

        Args:
            dense: the weight.
            operand: existing operand of the weight, if any.
            mask: stored entries, if some may be 0.
        """
        result = self.operand(self.stored(dense), mask) if operand is None else plain(operand)
        return result.permute(1, 0) if self.transposed else result

    def operand(self, stored: torch.Tensor, mask: torch.Tensor | None = None) -> SparseTensor:
        """The operand of a dense weight with values in the stored dtype."""
        oriented = stored.t() if self.transposed else stored
        decides = oriented if mask is None else mask.t() if self.transposed else mask
        pattern = pattern_of_entries(decides, self.format)
        return plain(SparseTensor(pattern, values_at(oriented, pattern)))

    def holds(self, weight: SparseTensor) -> bool:
        """Whether a weight has the format of `packed`."""
        form = weight._pattern.format
        return form is self.format or form == (
            self.format.permuted((1, 0)) if self.transposed else self.format
        )


@dataclass(frozen=True)
class PatternOutput:
    """A mask among the outputs of a structure module, determined by lengths.

    Attributes:
        spec: the pattern.
        rows, columns: positions of the lengths among the outputs.
    """

    spec: MaskSpec
    rows: int
    columns: int

    def build(self, raw: Sequence[Any]) -> SparseTensor:
        """The mask for the lengths in `raw`."""
        return self.spec.mask(int(raw[self.rows]), int(raw[self.columns]))


# Computation of a result from the outputs of a structure module; a number is the position of a tensor.
Output = int | MatrixOutput | PatternOutput | BagsOutput


@dataclass
class Remembered:
    """The results for one set of inputs."""

    aligned: list[Aligned | None]
    results: list[Any]


class Structure:
    """The part of a graph that depends on structure alone, with its memo.

    Args:
        module: function from leaves to a list of tensors and numbers.
        outputs: per result the position of a tensor in the list, or the construction of a matrix.
        entry: report entry of conversions and their time.
        most: number of sets of leaves with memoized results; 0 for leaves computed anew in each call.
        static: positions of leaves declared static by a recipe.
        is_frozen: whether the leaves are weights without gradients.
    """

    def __init__(
        self,
        module: Callable[..., Sequence[Any]],
        outputs: Sequence[Output],
        entry: ConversionEntry,
        most: int = REMEMBERED,
        static: Collection[int] = (),
        is_frozen: bool = False,
    ) -> None:
        self.module, self.outputs, self.entry = module, tuple(outputs), entry
        self.has_masks = any(isinstance(spec, PatternOutput) for spec in self.outputs)
        self.has_matrices = any(isinstance(spec, MatrixOutput | BagsOutput) for spec in self.outputs)
        matrices = [spec for spec in self.outputs if isinstance(spec, MatrixOutput)]
        self.are_dense = len(matrices) == len(self.outputs) and all(m.dense is not None for m in matrices)
        self.weight, self.trained = weight_of(self.outputs), trained_of(self.outputs)
        self.memory: Memo[Remembered] = Memo(most, static, is_frozen or self.weight is not None)
        self.is_frozen = is_frozen
        self.second_formats: Memo[SparseTensor] = Memo(are_weights=True)
        # The last format that held a weight: comparing equal formats takes as long as a small kernel.
        self._weight_format: Format | None = None

    def __call__(self, leaves: tuple[Any, ...]) -> Sequence[Any]:
        """The results for `leaves`; a matrix with values from the caller is `Aligned`."""
        if self.trained is not None and type(leaves[0]) is SparseTensor:
            return (self.trained_operand(self.trained, leaves[0]),) * len(self.outputs)
        if self.weight is not None and type(leaves[0]) is SparseTensor:
            operand = self.packed_operand(self.weight, leaves[0])
            if not self.weight.has_scales:
                return (operand,) * len(self.outputs)
            return tuple([operand if isinstance(o, MatrixOutput) else leaves[1] for o in self.outputs])
        needs_gradient = (
            self.weight is None
            and not self.is_frozen
            and torch.is_grad_enabled()
            and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        )
        if not needs_gradient:
            return self.remembered(leaves).results
        if not self.has_matrices:
            return self.differentiable(leaves, [])
        if self.is_made_anew(leaves):
            return self.recomputed(leaves).results
        return self.differentiable(leaves, self.remembered(leaves).aligned)

    def packed_operand(self, spec: MatrixOutput, weight: SparseTensor) -> SparseTensor:
        """The operand of a packed weight, packed again if the model holds another format.

        Other formats are for calls with far more, or far fewer, rows. Structures with the same format share
        `second_formats`.
        """
        form = weight._pattern.format
        if form is self._weight_format or spec.holds(weight):
            self._weight_format = form
            return weight.permute(1, 0) if spec.transposed else weight

        def make() -> SparseTensor:
            with torch.inference_mode(False), torch.no_grad():
                return spec.operand(weight.detach().to_dense())

        return self.second_formats.get((weight._vals, weight._pattern), make)

    @property
    def holds_weight(self) -> bool:
        """Whether the leaf is a weight that a model may hold as a sparse tensor."""
        return self.weight is not None or self.trained is not None

    def trained_operand(self, spec: MatrixOutput, weight: SparseTensor) -> SparseTensor:
        """The operand of a sparse parameter, differentiable; as for a packed weight without gradients."""
        if not (torch.is_grad_enabled() and needs_gradient(weight)):
            return self.packed_operand(spec, weight)
        oriented = weight.permute(1, 0) if spec.transposed else weight
        return oriented if spec.holds(weight) else oriented.to(format=spec.format)

    def remembered(self, leaves: tuple[Any, ...]) -> Remembered:
        """The results for some leaves, computed if not memoized."""
        if self.is_made_anew(leaves):
            return self.recomputed(leaves)
        masks = trained_masks.masks_of(
            leaves
        )  # a zero grown by training changes the pattern and not the entries
        return self.memory.get((*leaves, *masks), partial(self.compute, leaves))

    def is_made_anew(self, leaves: tuple[Any, ...]) -> bool:
        """Whether the dense tensors are computed anew in each call, without a memo."""
        return not self.memory.most and self.are_dense and runs_natively(leaves)

    def recomputed(self, leaves: tuple[Any, ...]) -> Remembered:
        """The results for dense tensors computed anew in each call: a kernel writes the nonzeros.

        Differentiable in the nonzeros.
        """
        from sparsify.sparsification.rules.streaming import KeepAll

        raw = self.module(*leaves)
        stored = [
            KeepAll().store(raw[spec.dense], spec.format)
            for spec in self.outputs
            if isinstance(spec, MatrixOutput) and spec.dense is not None
        ]
        return Remembered([None] * len(stored), list(stored))

    def compute(self, leaves: tuple[Any, ...]) -> Remembered:
        """The results for some leaves."""
        with torch.inference_mode(False):  # memoized results may be read in any mode later
            if transformed.are_active() and not transformed.is_followed(leaves):
                with transformed.outside():  # otherwise wrapped by a transform that ends before the memo
                    return self.timed(leaves)
            return self.timed(leaves)

    def timed(self, leaves: tuple[Any, ...]) -> Remembered:
        """The results, with their time reported."""
        started = time.perf_counter()
        with torch.no_grad():
            raw = self.module(*leaves)
            aligned = [
                None if isinstance(spec, int | PatternOutput) else self.align(spec, raw)
                for spec in self.outputs
            ]
            results = [self.result(spec, raw, at) for spec, at in zip(self.outputs, aligned, strict=True)]
        if self.weight is not None or self.is_frozen:  # no gradients: the patterns suffice
            aligned = [None] * len(results)
            results = [plain(result) if isinstance(result, SparseTensor) else result for result in results]
        self.note_bytes(raw, results)
        self.entry.count += 1
        self.entry.total_us += (time.perf_counter() - started) * 1e6
        return Remembered(aligned, results)

    def operand_of(self, weight: torch.Tensor) -> SparseTensor | None:
        """The memoized operand of a frozen weight, `None` without one."""
        entry = self.memory.cached((weight,))
        return None if entry is None else entry.results[0]

    def dense_weight(self, leaves: tuple[Any, ...]) -> torch.Tensor:
        """The dense tensor of a packed weight, or of a sparse parameter."""
        spec = self.weight or self.trained
        assert spec is not None, "only weights are packed"
        scale = leaves[1] if spec.has_scales else None
        dense: torch.Tensor = leaves[0].to_dense()
        return widened(dense, scale, spec.rounds or dense.dtype)

    def note_bytes(self, raw: Sequence[Any], results: Sequence[Any]) -> None:
        """Reports the bytes of dense operands, before and after packing."""
        packed = [
            (raw[spec.dense], result)
            for spec, result in zip(self.outputs, results, strict=True)
            if isinstance(spec, MatrixOutput) and spec.dense is not None
        ]
        if not packed:
            return
        self.entry.bytes_before = sum(dense.nbytes for dense, _ in packed)
        self.entry.bytes_after = sum(
            array.nbytes
            for _, result in packed
            for array in (*result._pattern.arrays_in_place(), result._vals)
        )
        if self.weight is not None and self.weight.has_scales:
            scales = [spec for spec in self.outputs if isinstance(spec, int)]
            self.entry.bytes_after += sum(raw[spec].nbytes for spec in scales)

    def differentiable(self, leaves: tuple[Any, ...], aligned: Sequence[Aligned | None]) -> list[Any]:
        """The results with values computed anew under autograd, on known patterns."""
        raw = self.module(*leaves)
        alignments = aligned or [None] * len(self.outputs)
        return [self.result(spec, raw, at) for spec, at in zip(self.outputs, alignments, strict=True)]

    def align(self, spec: MatrixOutput | BagsOutput, raw: Sequence[Any]) -> Aligned:
        """The pattern of a matrix and the slots of its edges."""
        if isinstance(spec, BagsOutput):
            return spec.align(raw)
        if spec.dense is not None:
            decides = raw[spec.dense if spec.places is None else spec.places]
            stored = trained_masks.entries(decides)
            oriented = stored.t() if spec.transposed else stored
            if spec.values == -1:
                return align_entries(oriented, spec.format)
            return Aligned(pattern_of_entries(oriented, spec.format))
        shape = tuple([int(raw[extent]) for extent in spec.extents])
        if spec.between:
            return align_coordinates(
                [raw[at] for at in (spec.rows, *spec.between, spec.columns)], shape, spec.format
            )
        if len(shape) > 2:
            return align_numbered(raw[spec.rows], raw[spec.columns], shape, spec.format)
        has_values = spec.values is not None
        return align_edges(raw[spec.rows], raw[spec.columns], shape, spec.format, has_values)

    def result(self, spec: Output, raw: Sequence[Any], aligned: Aligned | None) -> Any:
        """One result: a tensor, a sparse tensor, or `Aligned` when the values come later."""
        if isinstance(spec, int):
            return raw[spec]
        if isinstance(spec, PatternOutput):
            return spec.build(raw)
        assert aligned is not None, "a matrix is aligned"
        if isinstance(spec, BagsOutput):
            return spec.build(aligned, raw)
        if spec.values == -1:
            return aligned
        if spec.dense is not None:
            stored = spec.stored(raw[spec.dense])
            dense: torch.Tensor = stored.t() if spec.transposed else stored
            values = values_at(dense, aligned.pattern)
            return SparseTensor(aligned.pattern, values.detach() if spec.is_frozen else values)
        count = len(raw[spec.rows])
        if spec.joins == "nothing" and count > aligned.pattern.nnz:
            raise UnsupportedProgramError(
                f"of {count} edges {count - aligned.pattern.nnz} join the same nodes as others, and dropout "
                "draws for each by itself",
                "edges that are there once, as torch_geometric.utils.coalesce makes them",
            )
        if spec.values is None:
            values = aligned.ones(count, spec.dtype, raw[spec.rows].device)
        else:
            values = aligned.values(raw[spec.values])
        return SparseTensor(aligned.pattern, values.log() if spec.joins == "logsumexp" else values)


def plain(operand: SparseTensor) -> SparseTensor:
    """An operand without the data derived from its pattern during construction."""
    pattern = operand._pattern
    return SparseTensor(
        Pattern(pattern.format, pattern.shape, pattern._pos, pattern._crd, is_private=True).trusted(),
        operand._vals,
    )


def weight_of(outputs: Sequence[Output]) -> MatrixOutput | None:
    """The single result of a structure for a frozen weight; None otherwise."""
    specs = [spec for spec in outputs if isinstance(spec, MatrixOutput)]
    if not specs or not specs[0].is_frozen or any(spec != specs[0] for spec in specs):
        return None
    return specs[0] if len(specs) == len(outputs) or specs[0].has_scales else None


def trained_of(outputs: Sequence[Output]) -> MatrixOutput | None:
    """The single result of a structure for a trained parameter; None otherwise."""
    specs = [spec for spec in outputs if isinstance(spec, MatrixOutput)]
    is_one = len(specs) == len(outputs) > 0 and all(spec == specs[0] for spec in specs)
    return specs[0] if is_one and specs[0].is_trained else None
