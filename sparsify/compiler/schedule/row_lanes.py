"""The number of stored entries of a row that a sum takes at a time, in vector lanes.

In: `y[i] = sum(j, A[i,j] * x[j])`, A in CSR with 8 entries a row, 16 lanes. Out: 4, within the length of short rows.

On an AMD Zen 5, 20,000 rows of float32, one thread, in us, with unpredictable row ends:

    entries a row         4 each   4 +- 2   8 each   8 +- 3   24 each   24 +- 5
    one at a time             38      153      122      229       383       332
    4 lanes                   30      134       53      174       141       248
    8 lanes                   86       92       67      155       162       232
    MKL                       39      196       60      237       148       339

In repeated calls with the same rows, a processor predicts the ends of 20,000 rows of 4 +- 2: two threads take 32 us
with 4 lanes, 47 with 8, 35 one at a time, MKL 30. So 8 lanes win a third in one case and lose it in the other; 4 lose
in none.
"""

from collections.abc import Sequence
from typing import Final

from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import StoredLevel

# Fewest entries of a row, in registers, for sums with whole registers over contiguous operands.
LONG_LANES: Final = 1.5
# Lanes of sums over products with gathered operands, and fewest entries a row: gathers and the final reduction of lanes
# limit the gain.
PICKED_LANES: Final = 4


def entries_at_a_time(driver: Declaration, sizes: Sizes, lanes: int, is_picked: bool) -> int:
    """The number of entries of a row taken at a time; 1 if lanes are not profitable, or row lengths are unknown.

    Args:
        driver: operand that stores the entries.
        sizes: sizes of the operands.
        lanes: lanes of a vector register.
        is_picked: whether another operand is gathered at their coordinates.
    """
    mean = sizes.mean_below(driver)
    if mean is None:
        return 1
    if not is_picked:
        return lanes if mean >= LONG_LANES * lanes else 1
    return min(lanes, PICKED_LANES) if mean >= PICKED_LANES else 1


def lists_entries(levels: Sequence[StoredLevel]) -> bool:
    """Whether the last level lists coordinates below each parent, in its own list or below a level with repeats."""
    last = levels[-1].level
    is_repeated = len(levels) > 1 and not levels[-2].level.is_unique
    return "crd" in last.arrays and (is_repeated or not last.is_branchless)
