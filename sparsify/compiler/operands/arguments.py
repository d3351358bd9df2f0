"""Operands of a generated kernel: sizes and buffers from tensors.

In: `SparseInput(declaration of A, classes, sizes).read(A, sizes, buffers)`. Out: the level arrays and values of A in
`buffers`, the number of stored entries in `sizes`.
"""

from collections.abc import Sequence

import torch

from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.schedule.size_class import PatternClass, PatternClasses
from sparsify.errors import DtypeError, FormatError, ShapeError
from sparsify.runtime.padded_memory import PADDED
from sparsify.storage.convert import Conversion, conversion, permuted
from sparsify.storage.format import Format
from sparsify.storage.own_memory import PLAIN, has_memory, without_memory
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

# Arrays, places and numbers of widths, and the conversion that permutes the values.
Read = tuple[tuple[torch.Tensor, ...], tuple[tuple[int, int], ...], Conversion | None]


def match_extents(declared: Declaration, shape: Sequence[int], extents: dict[str, int]) -> None:
    """Checks an operand's shape, and binds the extents of its index variables."""
    if len(shape) != len(declared.extents):
        raise ShapeError(f"{declared.name} has {len(shape)} modes, the kernel takes {len(declared.extents)}")
    for mode, (name, size) in enumerate(zip(declared.extents, shape, strict=True)):
        if extents.setdefault(name, size) != size:
            raise ShapeError(
                f"{declared.name} has extent {size} in mode {mode}, and {name} is {extents[name]} elsewhere"
            )


def check_operand(declared: Declaration, operand: torch.Tensor) -> None:
    """Raises for an operand that does not match its declaration.

    Raises:
        DtypeError, FormatError: operand of another dtype or format than declared.
    """
    dtype = operand._vals.dtype if isinstance(operand, SparseTensor) else operand.dtype
    if dtype is not getattr(torch, declared.dtype):
        raise DtypeError(f"{declared.name} has dtype {dtype}, the kernel takes {declared.dtype}")
    if not declared.format.is_dense and not isinstance(operand, SparseTensor):
        raise FormatError(
            f"{declared.name} is dense and was {declared.format} when compiled", "sparsify.tensor"
        )


class DenseInput:
    """A dense operand, whose memory the kernel reads in place."""

    def __init__(self, declared: Declaration, is_twin: bool = False) -> None:
        self.declared, self.name, self.is_twin = declared, declared.name, is_twin
        self.dtype = getattr(torch, declared.dtype)
        # The format if it differs from torch's layout of a tensor.
        plain = declared.format.is_short and declared.format.ordering == tuple(range(declared.format.rank))
        self.format = None if plain else declared.format

    def read(self, operand: torch.Tensor, sizes: list[int], buffers: list[torch.Tensor | None]) -> None:
        """Appends the operand to the buffers.

        Raises:
            DtypeError, FormatError: operand of another dtype or format than the kernel was compiled for.
        """
        if self.format is not None or isinstance(operand, SparseTensor):
            operand = self._laid_out(operand)
        if operand.dtype is not self.dtype:
            raise DtypeError(f"{self.name} has dtype {operand.dtype}, the kernel takes {self.dtype}")
        if operand.is_conj() or operand.is_neg():
            operand = operand.resolve_conj().resolve_neg()
        if not operand.is_cpu:
            raise FormatError(f"{self.name} is on {operand.device}, kernels run on the CPU", "value.cpu()")
        require_entries(self.name, operand)
        if (interior := self.declared.interior) is not None:
            buffers.append(PADDED.placed_inside(operand, interior))
            return
        buffers.append(operand if operand.is_contiguous() else operand.detach().contiguous())

    def _laid_out(self, operand: torch.Tensor) -> torch.Tensor:
        """The values of the operand in the order of the kernel's levels.

        Raises:
            FormatError: operand stored in another format.
        """
        if not isinstance(operand, SparseTensor):
            if self.format is None or not self.format.is_short:
                raise FormatError(
                    f"{self.name} is dense and was {self.format} when compiled", "sparsify.tensor"
                )
            return operand.permute(self.format.ordering)
        if self.is_twin:
            operand = operand.to(format=self.format or Format("dense", rank=operand._pattern.rank))
        own = operand._pattern.format
        if own != (self.format or Format("dense", rank=own.rank)):
            raise FormatError(f"{self.name} is stored {own} and was dense when compiled", "value.to_dense()")
        return operand._vals


class Alike:
    """The class of patterns for which an input has one kernel; the cache key of the arrays in patterns of the class.

    Args:
        read: input.
        shared: class of the patterns.
    """

    def __init__(self, read: "SparseInput", shared: PatternClass) -> None:
        self.read, self.shared = read, shared

    def keep(self, pattern: Pattern) -> bool:
        """Whether an unread pattern belongs to the class and is stored as the kernel reads it; caches the arrays if so.

        A pattern of another class may have another kernel.

        Raises:
            InvalidTensorError: malformed arrays, or arrays written to since the pattern was made.
        """
        if not self.read.is_exact(pattern) or self.read.classes.of(pattern.validated()) is not self.shared:
            return False
        pattern.keep(self, (tuple(pattern.arrays_in_place()), self.read.widths_of(pattern), None))
        return True


class SparseInput:
    """A sparse operand: the kernel reads the level arrays and the values.

    Args:
        declared: declaration of the operand.
        classes: classes of the operand's patterns.
        sizes: names of the kernel's sizes.

    Attributes:
        place: index of the number of stored entries among the kernel's sizes; -1 if not requested.
        widths: level, and index among the sizes, of each number of positions common to all parents.
    """

    def __init__(self, declared: Declaration, classes: PatternClasses, sizes: tuple[str, ...]) -> None:
        self.name, self.dtype = declared.name, getattr(torch, declared.dtype)
        self.declared, self.classes, self.is_twin = declared, classes, classes.is_turned
        self.place = sizes.index(f"{self.name}_nnz") if f"{self.name}_nnz" in sizes else -1
        names = [f"{self.name}{number}_width" for number in range(1, len(declared.format.levels) + 1)]
        self.widths = [(level, sizes.index(name)) for level, name in enumerate(names) if name in sizes]
        roles = [
            [getattr(torch, name) if name else None for name in names] for names in declared.index_dtypes
        ]
        self._pos_dtypes, self._crd_dtypes = [pos for pos, _ in roles], [crd for _, crd in roles]
        self._alike: dict[PatternClass, Alike] = {}

    def read(self, operand: torch.Tensor, sizes: list[int], buffers: list[torch.Tensor | None]) -> None:
        """Appends the arrays and the values to the buffers, and sets the number of entries.

        Raises:
            DtypeError, FormatError: operand of another dtype or format than the kernel was compiled for.
        """
        if not isinstance(operand, SparseTensor):
            raise FormatError(
                f"{self.name} is dense and was {self.declared.format} when compiled", "sparsify.tensor"
            )
        pattern, values = operand._pattern.validated(), operand._vals
        if values.dtype is not self.dtype:
            raise DtypeError(f"{self.name} has dtype {values.dtype}, the kernel takes {self.dtype}")
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        if not values.is_cpu:
            raise FormatError(f"{self.name} is on {values.device}, kernels run on the CPU", "value.cpu()")
        require_entries(self.name, values)
        arrays, widths, converted = pattern.recall(self) or self.remember(pattern)
        if converted is not None:
            values = permuted(values, converted, operand._fill)
        if self.place >= 0:
            sizes[self.place] = values.shape[0]
        for place, width in widths:
            sizes[place] = width
        buffers += arrays
        buffers.append(values if values.is_contiguous() else values.contiguous())

    def is_exact(self, pattern: Pattern) -> bool:
        """Whether a pattern is stored exactly as the kernel reads it."""
        return (
            not self.is_twin
            and pattern.format == self.declared.format
            and [None if array is None else array.dtype for array in pattern._pos] == self._pos_dtypes
            and [None if array is None else array.dtype for array in pattern._crd] == self._crd_dtypes
        )

    def alike(self, pattern: Pattern) -> Alike:
        """The cache key common to all patterns in the class of `pattern`."""
        shared = self.classes.of(pattern)
        return self._alike.get(shared) or self._alike.setdefault(shared, Alike(self, shared))

    def remember(self, pattern: Pattern) -> Read:
        """Reads a pattern, and caches the arrays, widths and conversion in the pattern."""
        found = pattern.cached(self, lambda: self.arrays(pattern))
        return pattern.keep(self.alike(pattern), found)

    def arrays(self, pattern: Pattern) -> Read:
        """The arrays of a pattern as the kernel reads them, the widths, and the permutation of the values."""
        found: Conversion | None = None
        wanted = self.declared.format
        if pattern.format != wanted:
            if not self.is_twin and not _same_levels(pattern.format, wanted):
                raise FormatError(
                    f"{self.name} is stored {pattern.format}, the kernel takes {wanted}",
                    f"value.to(format={str(wanted)!r})",
                )
            found = conversion(pattern, wanted)
            pattern = found.pattern
        indices = []
        dtypes = zip(self._pos_dtypes, self._crd_dtypes, strict=True)
        for arrays, read in zip(zip(pattern._pos, pattern._crd, strict=True), dtypes, strict=True):
            for array, dtype in zip(arrays, read, strict=True):
                if array is not None:
                    assert dtype is not None, "declarations have the arrays that operands have"
                    indices.append(array if array.dtype is dtype else self._as(array, dtype))
        return tuple(indices), self.widths_of(pattern), found

    def widths_of(self, pattern: Pattern) -> tuple[tuple[int, int], ...]:
        """The widths of a pattern, with their indices among the sizes."""
        return tuple(
            [
                (place, pattern.level_arrays(level, pattern.positions(level)).width)
                for level, place in self.widths
            ]
        )

    def _as(self, array: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """An array of positions or coordinates in the dtype that the kernel reads.

        Raises:
            FormatError: positions or coordinates out of range.
        """
        narrower = dtype.itemsize < array.dtype.itemsize and array.numel() > 0
        if narrower and int(array.max()) > torch.iinfo(dtype).max:
            raise FormatError(
                f"{self.name} has positions or coordinates up to {int(array.max())}, the kernel reads {dtype}",
                "operands with int64 positions and coordinates",
            )
        return array.to(dtype)


def require_entries(name: str, operand: torch.Tensor) -> None:
    """Raises for an operand without memory, or with a storage smaller than the operand, after `resize_` of a storage.

    Raises:
        FormatError: operand without memory; the error names its class.
        ShapeError: storage too small; the error names the operand and its bytes.
    """
    if type(operand) not in PLAIN:
        if not has_memory(operand):
            raise FormatError(f"{name} {without_memory(operand)}")
        return
    sizes = zip(operand.shape, operand.stride(), strict=True)
    last = operand.storage_offset() + sum((size - 1) * stride for size, stride in sizes)
    wanted, found = (last + 1) * operand.itemsize, operand.untyped_storage().nbytes()
    if operand.numel() and wanted > found:
        raise ShapeError(
            f"{name} has {operand.numel()} entries that need a storage of {wanted} bytes, and its storage has {found}; "
            "its owner resized the storage: keep it, or make the operand of a copy"
        )


def index_dtypes(pattern: Pattern) -> tuple[tuple[str, str], ...]:
    """For each level the dtypes of (pos, crd), "" for a missing array, as in a declaration."""

    def name(array: torch.Tensor | None) -> str:
        return "" if array is None else str(array.dtype).removeprefix("torch.")

    return tuple((name(pos), name(crd)) for pos, crd in zip(pattern._pos, pattern._crd, strict=True))


def _same_levels(first: Format, second: Format) -> bool:
    """Whether two formats differ at most in dtypes of their arrays."""
    return [(type(s.level), s.expression) for s in first.levels] == [
        (type(s.level), s.expression) for s in second.levels
    ]


def patterns_of(operands: Sequence[torch.Tensor]) -> list[Pattern]:
    """The patterns of the sparse operands."""
    return [operand._pattern for operand in operands if isinstance(operand, SparseTensor)]


def laid_out(stored: torch.Tensor, format: Format) -> torch.Tensor:
    """Memory of a dense format with its modes in order; not a view, which autograd protects from in-place writes."""
    return stored.permute([format.ordering.index(mode) for mode in range(format.rank)]).data
