"""Hash levels: the coordinates below each parent in a hash table with open addressing.

In: the coordinates 3, 5 below the only parent. Out: `pos` 0, 4; `crd` -1, 5, -1, 3: coordinate 3 hashes to slot 3.

A coordinate is in the first free slot from `home(coordinate, slots)` on, the first slot after the last one, so `locate`
stops at the coordinate or at an empty slot. Two slots for each coordinate make 1.5 reads of a stored coordinate and
2.5 of a missing one the mean.

Source: Knuth, The Art of Computer Programming, volume 3, section 6.4 (linear probing, multiplicative hashing);
hash levels of Chou, Kjolstad and Amarasinghe, Format Abstraction for Sparse Tensor Algebra Compilers, 2018.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from sparsify.errors import InvalidTensorError
from sparsify.storage.level.levels import Level, Number, Stored

if TYPE_CHECKING:  # formats are read without torch
    from torch import Tensor

    from sparsify.storage.level.entries import Built, Entries

EMPTY: Final = -1
SLOTS: Final = 2  # of each coordinate
RANGE: Final = 2**31
FACTOR: Final = 1327217885  # RANGE divided by the golden ratio, odd


def home(coordinate: Number, slots: Number) -> Number:
    """The slot from 0 to `slots - 1` where the search for a coordinate starts; no product exceeds 62 bits.

    >>> [home(coordinate, 4) for coordinate in (0, 1, 2, 3, 2**31)]
    [0, 2, 0, 3, 0]
    """
    return (coordinate % RANGE * FACTOR) % RANGE * slots // RANGE


@dataclass(frozen=True, slots=True)
class Hash(Level):
    """The coordinates of parent `p` are among `crd[pos[p]:pos[p + 1]]`, in the order of a hash; -1 in empty slots.

    A table with coordinates has at least one empty slot; a parent without coordinates may have no slots.

    Attributes:
        pos: fixed dtype of `pos`, or `None`.
        crd: fixed dtype of `crd`, or `None`.
    """

    name: ClassVar[str] = "hash"
    letter: ClassVar[str] = "h"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    can_locate: ClassVar[bool] = True
    is_padded: ClassVar[bool] = True
    has_empty_slots: ClassVar[bool] = True
    pos: str | None = None
    crd: str | None = None

    @property
    def is_ordered(self) -> bool:
        return False

    def locate(self, at: Stored, parent: Number, coordinate: Number) -> Number:
        """The positions [n] of coordinates [n] below parents [n], -1 for missing ones; of tensors alone."""
        begins, ends = at.pos(parent).long(), at.pos(parent + 1).long()
        found = begins.new_full(begins.shape, EMPTY)
        searched = (ends > begins).nonzero().squeeze(1)
        places = begins + home(coordinate.long(), ends - begins)
        while len(searched):
            here = places[searched]
            stored = at.crd(here)
            hits = stored == coordinate[searched]
            found[searched[hits]] = here[hits]
            searched = searched[~hits & (stored != EMPTY)]
            after = places[searched] + 1
            places[searched] = after.where(after < ends[searched], begins[searched])
        return found

    def store(self, entries: "Entries", at: Stored) -> "Built":
        """Tables of two slots a coordinate, filled by linear probing in the order of the homes.

        In this order, an entry is right behind the previous one or at its home. Entries past the last slot of a table
        take its first free slots.
        """
        from sparsify.storage.level.entries import Built

        above, coordinates = entries.above().long(), entries.coordinates().long()
        counts = above.bincount(minlength=entries.parents)
        pos = above.new_zeros(entries.parents + 1)
        pos[1:] = (counts * SLOTS).cumsum(0)
        begins, ends = pos[above], pos[above + 1]
        homes = begins + home(coordinates, ends - begins)
        sorting = homes.argsort(stable=True)
        places = homes.new_empty(homes.shape)
        places[sorting] = _probed(homes[sorting], above[sorting])
        crd = above.new_full((int(pos[-1]),), EMPTY)
        is_past = places >= ends
        crd[places[~is_past]] = coordinates[~is_past]
        if bool(is_past.any()):
            places[is_past] = _first_free(crd, above[is_past], pos)
            crd[places[is_past]] = coordinates[is_past]
        return Built(places[entries.numbers()], crd.shape[0], pos, crd)


def _probed(homes: "Tensor", parents: "Tensor") -> "Tensor":
    """The places of entries sorted by home: the home, or the place after the previous entry of the parent."""
    if not len(homes):
        return homes
    rank = _numbers(homes)
    # Parents are lifted apart by more than all places, so that the maximum restarts at each of them.
    apart = parents * (int(homes[-1]) + len(homes) + 1)
    return rank + (homes - rank + apart).cummax(0).values - apart


def _first_free(crd: "Tensor", parents: "Tensor", pos: "Tensor") -> "Tensor":
    """A free slot below each of some ascending parents, each the lowest one that is left."""
    free = crd == EMPTY
    before = pos.new_zeros(len(free) + 1)
    before[1:] = free.cumsum(0)
    counts = parents.bincount(minlength=len(pos) - 1)
    ranks = _numbers(parents) - (counts.cumsum(0) - counts)[parents]
    return free.nonzero().squeeze(1)[before[pos[parents]] + ranks]


def _numbers(like: "Tensor") -> "Tensor":
    """0, 1, 2 ..., as many as `like` has entries."""
    return like.new_ones(like.shape).cumsum(0) - 1


def check(name: str, at: Stored, pos: "Tensor", crd: "Tensor") -> None:
    """Checks that `locate` finds each stored coordinate at its slot, and stops at an empty one.

    Args:
        name: the level in words, for messages.
        at: the arrays `pos` [parents + 1] and `crd` [slots] of the level, in range.

    Raises:
        InvalidTensorError: a table without an empty slot, or a coordinate that is stored twice or not found.
    """
    used = (crd != EMPTY).nonzero().squeeze(1)
    # The parent of a slot is the last one with a begin up to the slot; parents without slots share their begin.
    last = crd.new_zeros(len(crd) + 1).long().index_add_(0, pos[1:], pos.new_ones(len(pos) - 1))
    parents = last.cumsum(0)[used]
    sizes, counts = pos.diff(), parents.bincount(minlength=len(pos) - 1)
    full = ((counts == sizes) & (sizes > 0)).nonzero()
    if len(full):
        raise InvalidTensorError(
            f"the table of {name} below position {int(full[0])} has no empty slot",
            "one slot more than coordinates, as sparsify.tensor stores them",
        )
    wrong = (Hash().locate(at, parents, crd[used]) != used).nonzero()
    if len(wrong):
        slot = int(used[wrong[0]])
        raise InvalidTensorError(
            f"slot {slot} of {name} has the coordinate {int(crd[slot])}, which a search finds elsewhere or not at all",
            "each coordinate once, in the first free slot from its home on",
        )
