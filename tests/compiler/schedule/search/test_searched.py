"""The memo of searches: one result for each set of sizes that changes the search."""

import pytest

from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.search.searched import searched
from sparsify.compiler.schedule.sizes import Sizes
from tests.compiler.schedule.search.programs import notation

EXTENTS = {"i": 100_000, "j": 1_000_000, "k": 64}


@pytest.mark.parametrize("reaches", [(300_000, 3), (3, 300_000)], ids=str)
def test_bands_and_spread_entries_have_searches_of_their_own(reaches):
    plain = notation("Y[i,k] = A[i,j] * X[j,k]", A="csr", X="dense, dense")
    for reach in reaches:
        sizes = Sizes(EXTENTS, {"A": 1_000_000}, reaches={"A": reach})
        found = searched(plain, 8, 4, sizes, (), [Schedule.parse("order i, k, j")])
        assert found is not None
        assert str(found.schedules[0]).endswith("prefetch X 64") == (reach > 3)
