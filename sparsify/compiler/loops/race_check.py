"""Memory that the chunks of a parallel loop touch while the interpreter runs them.

In: each access of a chunk, `sharing.read("A_vals", 7, access)`. Out: an `AssertionError` where a chunk reads or writes
what another one has written, or writes what another one has read.
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
    """Who has touched what inside a parallel loop: chunks that meet at an element depend on the threads.

    Attributes:
        chunk: the chunk that runs now.
        threads: how many share the chunks.
        writers: of each element of the buffers from outside, the chunk that wrote it, -1 for none.
        readers: the chunk that read it, -1 for none, -2 for several.
    """

    def __init__(self, sizes: Mapping[str, int], threads: int) -> None:
        self.chunk = -1
        self.threads = threads
        self.writers = {name: np.full(size, -1) for name, size in sizes.items()}
        self.readers = {name: np.full(size, -1) for name, size in sizes.items()}

    def forget(self, buffer: str) -> None:
        """`buffer` is a thread's own from now on."""
        self.writers.pop(buffer, None)
        self.readers.pop(buffer, None)

    def read(self, buffer: str, indices: Places, access: Node) -> None:
        """The chunk reads these elements."""
        if buffer not in self.writers:
            return
        # A thread may remember what it has written itself; the chunks go round.
        before = self.writers[buffer][indices]
        self._check(np.where(before % self.threads == self.chunk % self.threads, -1, before), access)
        readers = self.readers[buffer]
        others = (readers[indices] != -1) & (readers[indices] != self.chunk)
        readers[indices] = np.where(others, -2, self.chunk)

    def write(self, buffer: str, indices: Places, access: Node) -> None:
        """The chunk writes these elements."""
        if buffer not in self.writers:
            return
        self._check(self.writers[buffer][indices], access)
        self._check(self.readers[buffer][indices], access)
        self.writers[buffer][indices] = self.chunk

    def _check(self, before: Any, access: Node) -> None:
        met = (before != -1) & (before != self.chunk)
        assert not met.any(), f"two chunks of a parallel loop meet at an element of {access}"
