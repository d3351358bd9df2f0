"""The arrays of a level as the functions of its format read them.

In: a compressed level with `pos` and `crd`. Out: `begin(at, parents)`, a tensor of positions.
"""

from dataclasses import dataclass

from torch import Tensor

from sparsify.storage.levels import Number


@dataclass(frozen=True, slots=True)
class Arrays:
    """A level in memory.

    Attributes:
        extent: how many coordinates it has.
        parents: how many positions the level above has.
        pos_array: its `pos`, `None` where it has none.
        crd_array: its `crd`, `None` where it has none.
    """

    extent: int
    parents: int
    pos_array: Tensor | None = None
    crd_array: Tensor | None = None

    @property
    def width(self) -> int:
        """The number of positions each parent has, where that is the same for all."""
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
