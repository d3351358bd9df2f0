"""Race detection: memory touched by the chunks of a parallel loop in the interpreter.

In: each access of a chunk, `sharing.read("A_vals", 7, access)`. Out: an `AssertionError` if a chunk reads or writes
an element written by another one, or writes an element read by another one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsify.compiler.ir.node import Node

Array = NDArray[Any]
# One element of a buffer, or several.
Places = int | Array


class Sharing:
    """The accesses of each chunk inside a parallel loop; chunks that share a written element race.

    Attributes:
        chunk: the current chunk.
        threads: number of threads sharing the chunks.
        writers: writing chunk of each element of the outer buffers, -1 for none.
        readers: reading chunk of each element, -1 for none, -2 for several.
    """

    def __init__(self, sizes: Mapping[str, int], threads: int) -> None:
        self.chunk = -1
        self.threads = threads
        self.writers = {name: np.full(size, -1) for name, size in sizes.items()}
        self.readers = {name: np.full(size, -1) for name, size in sizes.items()}

    def forget(self, buffer: str) -> None:
        """Marks `buffer` as private to a thread from now on."""
        self.writers.pop(buffer, None)
        self.readers.pop(buffer, None)

    def read(self, buffer: str, indices: Places, access: Node) -> None:
        """Records a read of elements by the chunk."""
        if buffer not in self.writers:
            return
        # A thread may read its own writes; chunks are assigned round robin.
        before = self.writers[buffer][indices]
        self._check(np.where(before % self.threads == self.chunk % self.threads, -1, before), access)
        readers = self.readers[buffer]
        others = (readers[indices] != -1) & (readers[indices] != self.chunk)
        readers[indices] = np.where(others, -2, self.chunk)

    def write(self, buffer: str, indices: Places, access: Node) -> None:
        """Records a write of elements by the chunk."""
        if buffer not in self.writers:
            return
        self._check(self.writers[buffer][indices], access)
        self._check(self.readers[buffer][indices], access)
        self.writers[buffer][indices] = self.chunk

    def _check(self, before: Any, access: Node) -> None:
        met = (before != -1) & (before != self.chunk)
        assert not met.any(), f"two chunks of a parallel loop meet at an element of {access}"
