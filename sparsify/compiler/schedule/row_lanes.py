"""How many stored entries of a row a sum takes at a time, in the lanes of vectors.

In: `y[i] = sum(j, A[i,j] * x[j])`, A in CSR with 8 entries a row, 16 lanes. Out: 4, the entries that short rows have
anyway; 8 where rows end where no branch predictor expects it: what is left of a row is read under a mask.

On an AMD Zen 5, 20,000 rows of float32, one thread, in us:

    entries a row         4 each   4 +- 2   8 each   8 +- 3   24 each   24 +- 5
    one at a time             38      153      122      229       383       332
    4 lanes                   30      134       53      174       141       248
    8 lanes                   86       92       67      155       162       232
    16 lanes                 152      155      166      167       234       237
    MKL                       39      196       60      237       148       339
"""

from dataclasses import dataclass
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.schedule.sizes import Sizes

# Entries of a row, in registers, that are worth whole registers where all operands are read as they lie.
LONG_LANES: Final = 1.5
# Lanes of sums over products with what stored coordinates pick, and as many entries a row at least: to pick them and to
# add up the lanes takes its time.
PICKED_LANES: Final = 4
# The lanes that uneven rows take, with as many entries at least.
MASKED_LANES: Final = 8
MASKED_ROW: Final = 3
# Vectors of so many bytes have gathers under masks, of int32 coordinates.
MASKED_BYTES: Final = 64
# Predictors remember the ends of so many rows; rows are uneven where such a share is not as long as the one before.
REMEMBERED_ROWS: Final = 10_000
UNEVEN: Final = 0.25


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows whose stored entries a sum runs over.

    Attributes:
        driver: the operand that stores them.
        sizes: of the operands.
        lanes: of a vector register.
        item_bytes: of a lane.
        is_picked: whether another operand is read at their coordinates.
    """

    driver: Declaration
    sizes: Sizes
    lanes: int
    item_bytes: int
    is_picked: bool

    def at_a_time(self) -> int:
        """How many entries are taken at a time; 1 where lanes do not pay, or nothing is known of the rows."""
        mean = self.sizes.mean_below(self.driver)
        if mean is None:
            return 1
        if not self.is_picked:
            return self.lanes if mean >= LONG_LANES * self.lanes else 1
        if self._are_uneven():
            return min(self.lanes, MASKED_LANES if mean >= MASKED_ROW else PICKED_LANES)
        return min(self.lanes, PICKED_LANES) if mean >= PICKED_LANES else 1

    def _are_uneven(self) -> bool:
        """Whether nothing foretells where rows end, and gathers under masks need not know."""
        rows = prod(self.sizes.extents[name] for name in self.driver.extents[:-1])
        has_masks = self.lanes * self.item_bytes == MASKED_BYTES and self._coordinates == "int32"
        return has_masks and rows > REMEMBERED_ROWS and self.sizes.unevenness(self.driver.name) >= UNEVEN

    @property
    def _coordinates(self) -> str:
        """The dtype of the stored coordinates; "" where it is not known."""
        return self.driver.index_dtypes[-1][1] if self.driver.index_dtypes else ""
