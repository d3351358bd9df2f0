"""Results whose pattern the kernel computes: tensors from the allocated arrays, and cached patterns.

In: `Assembled(step, Y, sizes, buffers)` and the arrays `Y2_pos`, `Y2_crd` and `Y_vals` of a call. Out: `Y`; another
call with operands of the same patterns reuses the cached pattern.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.kernel import fast_call
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.runtime.buffers import POOL, Slots, cut
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

Arrays = Sequence[torch.Tensor | None]
# A pattern, its arrays and the number of its entries.
Known = tuple[Pattern, tuple[torch.Tensor, ...], int]


class Assembled:
    """Assembly of the results of one statement.

    Args:
        step: cache key of the result patterns.
        output: declaration of the result.
        sizes: names of the kernel's sizes.
        dtypes: names and dtypes of the kernel's buffers.

    Attributes:
        first: slot of the first array of the result; the last slot holds the values.
        entries_place: index of the number of entries among the sizes; -1 makes the kernel compute the pattern.
    """

    def __init__(
        self,
        step: object,
        output: Declaration,
        sizes: Sequence[str],
        buffers: Sequence[tuple[str, torch.dtype]],
    ) -> None:
        self._step, self._format, self._fill = step, output.format, output.fill
        self._is_by_value = output.drops
        self._levels = [
            tuple(f"{output.name}{number}_{role}" for role in ("pos", "crd"))
            for number in range(1, len(output.format.levels) + 1)
        ]
        own = {f"{output.name}_vals"}.union(*self._levels)
        self.first = next(slot for slot, (name, _) in enumerate(buffers) if name in own)
        self.entries_place = sizes.index(f"{output.name}_nnz")
        self._names = [name for name, _ in buffers[self.first :]]
        self._dtypes = tuple(dtype for _, dtype in buffers[self.first :])

    def known(self, shape: tuple[int, ...], patterns: Sequence[Pattern]) -> Known | None:
        """The cached pattern of this shape for operands of these patterns, unless modified since.

        A pattern that depends on values is never cached.
        """
        if self._is_by_value:
            return None
        found: Known | None = KNOWN.find(self._step, patterns)
        if found is None or found[0].shape != shape or not found[0].is_unchanged():
            return None
        return found

    def slots(self) -> Slots:
        """The allocator of a call."""
        return Slots(dict(enumerate(self._dtypes, self.first)))

    def buffers(self, known: Known | None) -> list[torch.Tensor | None]:
        """The kernel's arguments for the arrays of the result: known arrays, null for the others."""
        given = () if known is None else known[1]
        return [*given, *[None] * (len(self._dtypes) - len(given))]

    def result(
        self,
        shape: tuple[int, ...],
        patterns: Sequence[Pattern],
        known: Known | None,
        made: Mapping[int, torch.Tensor],
    ) -> SparseTensor:
        """The result from the arrays that the kernel allocated, by slot."""
        if known is not None and len(made) == 1:
            (values,) = made.values()
            return wrap(known[0], values, self._fill)
        arrays = [made.get(self.first + n) for n in range(len(self._dtypes))]
        return self.finish(shape, patterns, arrays, known)

    def finish(
        self, shape: tuple[int, ...], patterns: Sequence[Pattern], arrays: Arrays, known: Known | None
    ) -> SparseTensor:
        """The result from arrays filled by the kernel, on the cached pattern of its operands, if any.

        Sums fill all arrays in any case; a cached pattern is not rebuilt.
        """
        if known is not None and arrays[-1] is not None:
            return wrap(known[0], cut((arrays[-1],), known[2])[0], self._fill)
        made = dict(zip(self._names, arrays, strict=True))
        pos = [made.get(name) for name, _ in self._levels]
        crd = [made.get(name) for _, name in self._levels]
        values, last, entries = arrays[-1], pos[-1], crd[-1]
        assert values is not None, "every kernel asks for the values"
        if last is not None and entries is not None:
            crd[-1], values = cut((entries, values), int(last[-1]))
        found = Pattern(self._format, shape, pos, crd, is_private=True).trusted()
        if self._is_by_value:
            return wrap(found, values, self._fill)
        KNOWN.remember(self._step, patterns, (found, tuple(found.arrays_in_place()), found.nnz), [found])
        return wrap(found, values, self._fill)

    def assembly(self, shape: tuple[int, ...]) -> fast_call.Assembly:
        """The assembly for calls by the fast path."""
        return fast_call.Assembly(
            self._dtypes,
            self.entries_place,
            partial(self.known, shape),
            partial(self.finish, shape),
            self._array,
        )

    def _array(self, slot: int, size: int) -> torch.Tensor:
        """A large array of `size` bytes."""
        dtype = self._dtypes[slot - self.first]
        return POOL.empty((size // dtype.itemsize,), dtype)
