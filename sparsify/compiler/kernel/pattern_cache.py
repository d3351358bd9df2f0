"""Cache of result patterns: equal operand patterns give the same result pattern.

In: a step and the patterns of its operands. Out: the pattern of the result, if computed before.

Entries hold operand patterns by weak references and disappear with them; results are kept up to a bound.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import ref

from sparsify.storage.pattern import Pattern

MOST_BYTES: Final = 256 * 1024 * 1024
Key = tuple[int, ...]


class KnownPatterns:
    """A least-recently-used cache of patterns.

    Attributes:
        most_bytes: most bytes of cached arrays.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._known: OrderedDict[Key, tuple[Any, tuple[ref[Pattern], ...], Any, int]] = OrderedDict()
        self._bytes = 0

    def find(self, step: object, operands: Sequence[Pattern]) -> Any:
        """The cached facts of `step` for operands of these patterns, `None` if unknown."""
        key = _key(step, operands)
        found = self._known.get(key)
        if found is None:
            return None
        for was, now in zip(found[1], operands, strict=True):
            if was() is not now:
                return None
        with suppress(KeyError):  # another thread may have evicted the entry
            self._known.move_to_end(key)
        return found[2]

    def remember(
        self, step: object, operands: Sequence[Pattern], result: Any, made: Sequence[Pattern]
    ) -> None:
        """Caches the result for operands of these patterns, unless the result exceeds the whole cache.

        Args:
            result: value to cache.
            made: patterns kept alive by the value.
        """
        size = sum(array.nbytes for pattern in made for array in pattern.arrays_in_place())
        if size > self.most_bytes:
            return
        key = _key(step, operands)
        self._forget(key)
        while self._known and self._bytes + size > self.most_bytes:
            self._forget(next(iter(self._known)))

        def forget(gone: object) -> None:
            self._forget(key)

        self._known[key] = step, tuple(ref(operand, forget) for operand in operands), result, size
        self._bytes += size

    def clear(self) -> None:
        """Empties the cache."""
        self._known.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def _forget(self, key: Key) -> None:
        found = self._known.pop(key, None)
        if found is not None:
            self._bytes -= found[3]


def _key(step: object, operands: Sequence[Pattern]) -> Key:
    return id(step), *map(id, operands)


KNOWN: Final = KnownPatterns()
