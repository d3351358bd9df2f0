"""Memos by content: results that are found again while the entries that they were made of are the same.

In: `memo = Memo()` and `memo.get((edge_index, 2708), make)`. Out: the result of an earlier `make()` for leaves of the
same entries, else of `make()` now.

torch counts writes that it makes itself. Writes through numpy views, `.data`, DLPack or the memory of another process
count nothing, so the entries themselves decide, by a digest at the speed of memory. Leaves that a recipe calls static
are told apart by identity and version instead; weights that get no gradients by place, version and a sample of their
entries, as reading all of them takes longer than a product with few rows. Within one call of a model each tensor is
read once.
"""

import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import torch

from sparsify.compiler.arrays.digest import digest, sample
from sparsify.storage import transformed
from sparsify.storage.own_memory import PLAIN, has_memory, is_on_device
from sparsify.storage.tensor import SparseTensor

T = TypeVar("T")
# How many results a memo keeps: those of copies of a model, and of the last few inputs.
REMEMBERED: Final = 8
Key = tuple[Any, ...]


class Identity:
    """A tensor whose entries change by writes that torch counts, and by no others."""

    __slots__ = ("reference", "state")

    def __init__(self, tensor: torch.Tensor) -> None:
        version = 0 if tensor.is_inference() else tensor._version
        self.reference = weakref.ref(tensor)
        self.state = (version, tensor.data_ptr(), tensor.shape, tensor.stride())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or self.state != other.state:
            return False
        return self.reference() is not None and self.reference() is other.reference()

    def __hash__(self) -> int:
        return hash(self.state)


class Fingerprint(tuple[Any, ...]):
    """Digest, dtype, shape, and strides that leave gaps: equal for tensors of equal entries that lie alike."""

    __slots__ = ()


class Unread:
    """A tensor whose entries cannot be read: it equals nothing else, so nothing is found again for it."""

    __slots__ = ()


Told = Fingerprint | Identity | Unread


def fingerprint(tensor: torch.Tensor) -> Told:
    """The fingerprint of the entries that a tensor has now; a private tensor's is its identity."""
    told = _told_unread(tensor, fingerprint)
    if told is not None:
        return told
    if tensor.is_contiguous():
        return Fingerprint((digest(tensor), tensor.dtype, tensor.shape))
    return Fingerprint((digest(tensor), tensor.dtype, tensor.shape, tensor.stride()))


def sampled(tensor: torch.Tensor) -> Told:
    """The fingerprint of a weight that gets no gradients: of a sample of its entries, its place and version."""
    told = _told_unread(tensor, sampled)
    if told is not None:
        return told
    version = 0 if tensor.is_inference() else tensor._version
    return Fingerprint(
        (sample(tensor), version, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    )


def _told_unread(tensor: torch.Tensor, read: Callable[[torch.Tensor], Told]) -> Told | None:
    """The fingerprint of a tensor that is private, sparse or without memory; `None` where its entries decide."""
    private: Identity | None = getattr(tensor, "_identity", None)
    if private is not None:
        return private
    if type(tensor) in PLAIN and tensor.is_cpu:
        return None
    if type(tensor) is SparseTensor:
        return _of_parts(tensor, read)
    if is_on_device(tensor):
        return Fingerprint((digest(tensor.cpu()), tensor.dtype, tensor.shape, tensor.device))
    return None if has_memory(tensor) else Unread()


def _of_parts(tensor: SparseTensor, read: Callable[[torch.Tensor], Told]) -> Fingerprint:
    """The fingerprint of a sparse tensor, which has no memory of its own: of its values and its pattern."""
    parts = (tensor._vals, *tensor._pattern.arrays_in_place())
    return Fingerprint((*map(read, parts), tensor.shape, str(tensor.format)))


def keep_private(tensor: torch.Tensor) -> torch.Tensor:
    """Marks a tensor that only this package reaches and never writes to: identity tells it apart, it is not read."""
    tensor._identity = Identity(tensor)  # type: ignore[attr-defined]
    return tensor


class _Read(threading.local):
    """The fingerprints of tensors in the call of a model that runs in this thread, `None` outside of calls."""

    known: dict[int, tuple[torch.Tensor, int, Told]] | None = None


_read: Final = _Read()


def reading_once(run: Callable[..., T], tensors: Sequence[torch.Tensor]) -> T:
    """The result of `run` for tensors; each tensor is read once, unless torch counts a write in between."""
    before, _read.known = _read.known, {}
    try:
        return run(*tensors)
    finally:
        _read.known = before


def _fingerprint_once(tensor: torch.Tensor) -> Told:
    """`fingerprint`, known within a call from the first time."""
    known = _read.known
    if known is not None:
        found = known.get(id(tensor))
        if found is not None and found[0] is tensor and found[1] == tensor._version:
            return found[2]
    made = fingerprint(tensor)
    if known is not None and not tensor.is_inference():  # inference tensors do not count their versions
        known[id(tensor)] = tensor, tensor._version, made
    return made


def key_of(
    leaves: Sequence[Any],
    static: Collection[int] = (),
    read: Callable[[torch.Tensor], Told] = _fingerprint_once,
) -> Key:
    """The key of leaves: tensors by their entries, at `static` positions by identity; others as they are."""
    if not static:
        return tuple([read(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
    return tuple(
        [
            leaf
            if not isinstance(leaf, torch.Tensor)
            else Identity(leaf)
            if position in static
            else read(leaf)
            for position, leaf in enumerate(leaves)
        ]
    )


def is_of_tensor(part: Any) -> bool:
    """Whether a part of a key stands for a tensor."""
    return isinstance(part, Told)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A result, the key of its leaves, and the tensors among them."""

    key: Key
    tensors: tuple["weakref.ref[torch.Tensor]", ...]
    made: T

    def is_alive(self) -> bool:
        """Whether all of its tensors are there."""
        return all(reference() is not None for reference in self.tensors)

    def replaces(self, other: "Entry[T]") -> bool:
        """Whether the other result is for other entries of the same tensors."""
        # Equal references are one object: those of a tensor that is there.
        if not self.tensors or self.tensors[0] is not other.tensors[0]:
            return False
        if self.key == other.key or len(self.key) != len(other.key):
            return False
        are_same = all(mine is theirs for mine, theirs in zip(self.tensors, other.tensors, strict=False))
        pairs = zip(self.key, other.key, strict=True)
        return are_same and all(mine == theirs for mine, theirs in pairs if not is_of_tensor(mine))


class Memo(Generic[T]):
    """Results by the content of their leaves, the latest first.

    Results of tensors that are gone, or that have other entries by now, make room for new ones.

    Args:
        most: how many are kept.
        static: positions of leaves that change only by writes that torch counts.
        are_weights: whether tensors are weights that get no gradients, of which a sample is read.
    """

    def __init__(
        self, most: int = REMEMBERED, static: Collection[int] = (), are_weights: bool = False
    ) -> None:
        self.most, self.static = most, frozenset(static)
        self.read, self.read_again = (sampled, sampled) if are_weights else (_fingerprint_once, fingerprint)
        self.entries: list[Entry[T]] = []

    def get(
        self,
        leaves: Sequence[Any],
        make: Callable[[], T],
        accepts: Callable[[T], bool] | None = None,
        owner: torch.Tensor | None = None,
    ) -> T:
        """The result for leaves of these entries, made now where none is kept.

        Args:
            leaves: tensors and hashable values.
            make: computes the result from the leaves.
            accepts: says whether a kept result will do, where more than the leaves decides.
            owner: has the leaves as its parts; the result is kept while it lives.
        """
        if transformed.are_active() and transformed.is_followed(leaves):
            return make()
        key = key_of(leaves, self.static, self.read)
        for entry in self.entries:
            if entry.key == key and (accepts is None or accepts(entry.made)):
                return entry.made
        made = make()
        # Another thread or process may have written while `make` read.
        if self.most and key_of(leaves, self.static, self.read_again) == key:
            tensors = (
                [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] if owner is None else [owner]
            )
            entry = Entry(key, tuple([weakref.ref(tensor) for tensor in tensors]), made)
            kept = [known for known in self.entries if known.is_alive() and not entry.replaces(known)]
            self.entries = [entry, *kept[: self.most - 1]]
        return made

    def known(self, leaves: Sequence[Any]) -> T | None:
        """The result for leaves of these entries where it is kept."""
        key = key_of(leaves, self.static, self.read)
        return next((entry.made for entry in self.entries if entry.key == key), None)

    def clear(self) -> None:
        """Forgets everything."""
        self.entries = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[T]:
        return iter([entry.made for entry in self.entries])


class SparseInputs:
    """The parts of the last few sparse inputs: the same tensors each time, so that what follows from them is kept.

    Args:
        parts: what takes a sparse matrix apart.
    """

    def __init__(self, parts: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self.parts = parts
        self.memo: Memo[Sequence[torch.Tensor]] = Memo()

    def __call__(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`; taken apart anew when its values need a gradient or it has changed."""
        if torch.is_grad_enabled() and needs_gradient(matrix):
            return self.parts(matrix)
        return self.memo.get(arrays_of(matrix), partial(self.made, matrix), owner=matrix)

    def made(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`, taken apart now."""
        with torch.inference_mode(False), torch.no_grad():  # what is kept may be asked for in any mode later
            return [keep_private(part.detach()) for part in self.parts(matrix)]


def arrays_of(matrix: torch.Tensor) -> tuple[Any, ...]:
    """Its layout and shape, and all that it is stored as."""
    if isinstance(matrix, SparseTensor):
        return matrix._pattern, matrix._fill, matrix._vals
    with torch.no_grad():
        if matrix.layout is torch.sparse_coo:
            return matrix.layout, matrix.shape, matrix.is_coalesced(), matrix._indices(), matrix._values()
        if matrix.layout in (torch.sparse_csr, torch.sparse_bsr):
            return matrix.layout, matrix.shape, matrix.crow_indices(), matrix.col_indices(), matrix.values()
        return matrix.layout, matrix.shape, matrix.ccol_indices(), matrix.row_indices(), matrix.values()


def needs_gradient(matrix: torch.Tensor) -> bool:
    """Whether a sparse tensor requires gradients, asked without going through `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return matrix.requires_grad
