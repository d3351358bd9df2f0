"""Memos by content: results are reused while the entries of their leaves are unchanged.

In: `memo = Memo()` and `memo.get((edge_index, 2708), make)`. Out: the result of an earlier `make()` for leaves with the
same entries, else of a new `make()`.

torch counts only its own writes. Writes through numpy views, `.data`, DLPack or the memory of another process are not
counted, so the entries themselves are compared, by a digest at the speed of memory. Leaves declared static by a recipe
are compared by identity and version instead; weights without gradients by address, version and a sample of their
entries, as a full read takes longer than a product with few rows. Within one call of a model each tensor is read once.
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
# Maximum number of memoized results, for copies of a model and the last few inputs.
REMEMBERED: Final = 8
Key = tuple[Any, ...]


class Identity:
    """A tensor with entries changed only by writes counted by torch."""

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
    """Digest, dtype, shape, and strides if not contiguous: equal for equal entries in equal layouts."""

    __slots__ = ()


class Unread:
    """A tensor with unreadable entries: unequal to everything, so its results are never reused."""

    __slots__ = ()


Told = Fingerprint | Identity | Unread


def fingerprint(tensor: torch.Tensor) -> Told:
    """The fingerprint of a tensor's present entries; identity for a private tensor."""
    identity = _identity_without_read(tensor, fingerprint)
    if identity is not None:
        return identity
    if tensor.is_contiguous():
        return Fingerprint((digest(tensor), tensor.dtype, tensor.shape))
    return Fingerprint((digest(tensor), tensor.dtype, tensor.shape, tensor.stride()))


def sampled(tensor: torch.Tensor) -> Told:
    """The fingerprint of a frozen weight: a sample of its entries, its address and version."""
    identity = _identity_without_read(tensor, sampled)
    if identity is not None:
        return identity
    version = 0 if tensor.is_inference() else tensor._version
    return Fingerprint(
        (sample(tensor), version, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    )


def _identity_without_read(tensor: torch.Tensor, read: Callable[[torch.Tensor], Told]) -> Told | None:
    """The fingerprint of a private, sparse or device tensor; `None` where entries in memory decide."""
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
    """The fingerprint of a sparse tensor: of its values and its pattern."""
    parts = (tensor._vals, *tensor._pattern.arrays_in_place())
    return Fingerprint((*map(read, parts), tensor.shape, str(tensor.format)))


def keep_private(tensor: torch.Tensor) -> torch.Tensor:
    """Marks a tensor reachable and unwritten by this package alone: compared by identity, never read."""
    tensor._identity = Identity(tensor)  # type: ignore[attr-defined]
    return tensor


class _Read(threading.local):
    """The fingerprints of tensors in this thread's present model call, `None` outside of calls."""

    fingerprints: dict[int, tuple[torch.Tensor, int, Told]] | None = None


_read: Final = _Read()


def reading_once(run: Callable[..., T], tensors: Sequence[torch.Tensor]) -> T:
    """The result of `run` for tensors; each tensor is read once, unless torch counts a write in between."""
    before, _read.fingerprints = _read.fingerprints, {}
    try:
        return run(*tensors)
    finally:
        _read.fingerprints = before


def _fingerprint_once(tensor: torch.Tensor) -> Told:
    """`fingerprint`, known within a call from the first time."""
    table = _read.fingerprints
    if table is not None:
        cached = table.get(id(tensor))
        if cached is not None and cached[0] is tensor and cached[1] == tensor._version:
            return cached[2]
    result = fingerprint(tensor)
    if table is not None and not tensor.is_inference():  # inference tensors have no version counter
        table[id(tensor)] = tensor, tensor._version, result
    return result


def key_of(
    leaves: Sequence[Any],
    static: Collection[int] = (),
    read: Callable[[torch.Tensor], Told] = _fingerprint_once,
) -> Key:
    """The key of leaves: tensors by their entries, by identity at `static` positions; others unchanged."""
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
    """Whether a part of a key is the key of a tensor."""
    return isinstance(part, Told)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A result, the key of its leaves, and weak references to their tensors."""

    key: Key
    tensors: tuple["weakref.ref[torch.Tensor]", ...]
    result: T

    def is_alive(self) -> bool:
        """Whether all referenced tensors are alive."""
        return all(reference() is not None for reference in self.tensors)

    def replaces(self, other: "Entry[T]") -> bool:
        """Whether the other result is for the same tensors with other entries."""
        # Equal references to a live tensor are one object.
        if not self.tensors or self.tensors[0] is not other.tensors[0]:
            return False
        if self.key == other.key or len(self.key) != len(other.key):
            return False
        are_same = all(mine is theirs for mine, theirs in zip(self.tensors, other.tensors, strict=False))
        pairs = zip(self.key, other.key, strict=True)
        return are_same and all(mine == theirs for mine, theirs in pairs if not is_of_tensor(mine))


class Memo(Generic[T]):
    """Results by the content of their leaves, latest first.

    Results of dead tensors, or of tensors with changed entries, make room for new ones.

    Args:
        most: maximum number of results.
        static: positions of leaves changed only by writes counted by torch.
        are_weights: whether tensors are weights without gradients, compared by samples.
    """

    def __init__(
        self, most: int = REMEMBERED, static: Collection[int] = (), are_weights: bool = False
    ) -> None:
        self.most, self.static = most, frozenset(static)
        self.read, self.read_confirming = (
            (sampled, sampled) if are_weights else (_fingerprint_once, fingerprint)
        )
        self.entries: list[Entry[T]] = []

    def get(
        self,
        leaves: Sequence[Any],
        make: Callable[[], T],
        accepts: Callable[[T], bool] | None = None,
        owner: torch.Tensor | None = None,
    ) -> T:
        """The result for leaves with some entries, made now if missing.

        Args:
            leaves: tensors and hashable values.
            make: function that computes the result from the leaves.
            accepts: predicate of reusable results, where more than the leaves decides.
            owner: tensor with the leaves as its parts; the result is kept while the owner is alive.
        """
        if transformed.are_active() and transformed.is_followed(leaves):
            return make()
        key = key_of(leaves, self.static, self.read)
        for entry in self.entries:
            if entry.key == key and (accepts is None or accepts(entry.result)):
                return entry.result
        result = make()
        # Another thread or process may have written while `make` read.
        if self.most and key_of(leaves, self.static, self.read_confirming) == key:
            tensors = (
                [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] if owner is None else [owner]
            )
            entry = Entry(key, tuple([weakref.ref(tensor) for tensor in tensors]), result)
            others = [other for other in self.entries if other.is_alive() and not entry.replaces(other)]
            self.entries = [entry, *others[: self.most - 1]]
        return result

    def cached(self, leaves: Sequence[Any]) -> T | None:
        """The memoized result for leaves with some entries, None if missing."""
        key = key_of(leaves, self.static, self.read)
        return next((entry.result for entry in self.entries if entry.key == key), None)

    def clear(self) -> None:
        """Forgets everything."""
        self.entries = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[T]:
        return iter([entry.result for entry in self.entries])


class SparseInputs:
    """The parts of the last few sparse inputs: stable tensors, so that dependent results stay memoized.

    Args:
        parts: function that splits a sparse matrix.
    """

    def __init__(self, parts: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self.parts = parts
        self.memo: Memo[Sequence[torch.Tensor]] = Memo()

    def __call__(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`; split anew for values with gradients or after a change."""
        if torch.is_grad_enabled() and needs_gradient(matrix):
            return self.parts(matrix)
        return self.memo.get(arrays_of(matrix), partial(self.compute, matrix), owner=matrix)

    def compute(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`, without the memo."""
        with torch.inference_mode(False), torch.no_grad():  # memoized parts may be read in any mode later
            return [keep_private(part.detach()) for part in self.parts(matrix)]


def arrays_of(matrix: torch.Tensor) -> tuple[Any, ...]:
    """The layout and shape of a sparse matrix, and its storage arrays."""
    if isinstance(matrix, SparseTensor):
        return matrix._pattern, matrix._fill, matrix._vals
    with torch.no_grad():
        if matrix.layout is torch.sparse_coo:
            return matrix.layout, matrix.shape, matrix.is_coalesced(), matrix._indices(), matrix._values()
        if matrix.layout in (torch.sparse_csr, torch.sparse_bsr):
            return matrix.layout, matrix.shape, matrix.crow_indices(), matrix.col_indices(), matrix.values()
        return matrix.layout, matrix.shape, matrix.ccol_indices(), matrix.row_indices(), matrix.values()


def needs_gradient(matrix: torch.Tensor) -> bool:
    """Whether a sparse tensor requires gradients, read without `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return matrix.requires_grad
