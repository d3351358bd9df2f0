"""The arrays of a level as arguments of the level functions.

In: a compressed level with `pos` and `crd`. Out: `begin(at, parents)`, a tensor of positions.
"""

from dataclasses import dataclass

from torch import Tensor

from sparsify.storage.level.levels import Number


@dataclass(frozen=True, slots=True)
class Arrays:
    """A level in memory.

    Attributes:
        extent: number of coordinates.
        parents: number of positions of the level above.
        pos_array: the `pos` array, or `None`.
        crd_array: the `crd` array, or `None`.
    """

    extent: int
    parents: int
    pos_array: Tensor | None = None
    crd_array: Tensor | None = None

    @property
    def width(self) -> int:
        """The number of positions of each parent, equal for all parents."""
        assert self.crd_array is not None, "the width is that of the coordinates"
        return self.crd_array.shape[0] // self.parents if self.parents else 0

    def pos(self, index: Number) -> Number:
        """Entries of the `pos` array."""
        assert self.pos_array is not None, "the level has positions"
        return self.pos_array[index]

    def crd(self, index: Number) -> Number:
        """Entries of the `crd` array."""
        assert self.crd_array is not None, "the level has coordinates"
        return self.crd_array[index]
