"""Actions: the schedule before and after, and schedules that an action leaves alone."""

import pytest

from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.search.beam import ACTIONS, estimate
from sparsify.compiler.schedule.search.loops import entries, merge, reorder, sum_lanes, tile_lanes, vector
from sparsify.compiler.schedule.search.temporaries import accumulate, place, place_all, workspace
from sparsify.compiler.schedule.search.threads import parallel, prefetch
from sparsify.compiler.schedule.sizes import Sizes
from tests.compiler.schedule.search.programs import facts, texts

SPMM = facts("Y[i,k] = A[i,j] * X[j,k]", A="csr", X="dense, dense")
SPMV = facts("y[i] = A[i,j] * x[j]", A="csr", x="dense")
TOTAL = facts("s[i] = X[i,k]", X="dense, dense")
LAYER = facts("Y[i,k] = relu(A[i,j] * X[j,k])", A="csr", X="dense, dense")
NUMBERS = facts("u[i] += A[i,j] * x[j]; v[i] max= A[i,j]; y[i] = u[i] * v[i]", A="csr", x="dense")
SPGEMM = facts("Y[i,k] = A[i,j] * B[j,k]", A="csr", B="csr")
FAR = facts(
    "Y[i,k] = A[i,j] * X[j,k]", Sizes({"i": 10, "j": 10**6, "k": 64}, {"A": 10**6}), A="csr", X="dense, dense"
)

ROWS = [
    (reorder, SPMM, "order i, k, j", ["order k, i, j", "order i, j, k"]),
    (reorder, SPMM, "order i, j, k", ["order i, k, j"]),  # j is stored below i
    (
        tile_lanes,
        SPMM,
        "order i, k, j",
        [
            "split k ko ki 64; order i, ko, j, ki; vector ki",
            "split k ko ki 16; order i, ko, j, ki; vector ki",
        ],
    ),
    (tile_lanes, SPMV, "order i, j", []),  # the only dense loop is that over the rows of A
    (vector, SPMM, "order i, k, j", ["order i, j, k; vector k"]),
    (
        sum_lanes,
        TOTAL,
        "order i, k",
        [
            "split k ko ki 8; order i, ko, ki; precompute sum_s = s at i in register; "
            "precompute lanes_s = sum_s over ki in register; vector ki"
        ],
    ),
    (sum_lanes, SPMM, "order i, k, j", []),  # the sum is over stored entries
    (
        entries,
        SPMV,
        "order i, j",
        [
            "pos j pj A; split pj pjo pji 4; order i, pjo, pji; precompute sum_y = y at i in register; "
            "precompute sums_y = sum_y over pji in register; vector pji"
        ],
    ),
    (
        entries,
        SPMM,
        "split k ko ki 16; order i, ko, j, ki; precompute sum_Y = Y at ko in register; vector ki",
        [
            "split k ko ki 16; pos j pj A; split pj pjo pji 2; order i, ko, pjo, pji, ki; "
            "precompute sum_Y = Y at ko in register; precompute sums_Y = sum_Y over pji in register; "
            "unroll pji; vector ki",
            "split k ko ki 16; pos j pj A; split pj pjo pji 4; order i, ko, pjo, pji, ki; "
            "precompute sum_Y = Y at ko in register; precompute sums_Y = sum_Y over pji in register; "
            "unroll pji; vector ki",
        ],
    ),
    (
        merge,
        NUMBERS,
        "order u: i, j; order v: i, j; order y: i",
        ["order u: i, j; order v: i, j; order y: i; merge j"],
    ),
    (accumulate, SPMM, "order i, k, j", ["order i, k, j; precompute sum_Y = Y at k in register"]),
    (accumulate, SPMM, "order i, j, k", []),  # a row does not fit in registers
    (
        place,
        LAYER,
        "order w: i, k, j; order Y: i, k",
        [
            "order w: i, k, j; order Y: i, k; precompute w at k in register",
            "order w: i, k, j; order Y: i, k; precompute w at i in thread",
        ],
    ),
    (place, LAYER, "order w: i, k, j; order Y: k, i", []),  # no loops in common
    (
        workspace,
        SPGEMM,
        "order i, k, j",
        [
            "order i, j, k; precompute row_Y = Y at i in thread listed",
            "order i, j, k; precompute row_Y = Y at i in thread marked",
        ],
    ),
    (workspace, SPMM, "order i, k, j", []),  # Y is dense
    (prefetch, FAR, "order i, j, k", ["order i, j, k; prefetch X 64"]),
    (prefetch, SPMM, "order i, j, k", []),  # X stays in the caches
]


@pytest.mark.parametrize(("action", "given", "before", "after"), ROWS)
def test_action(action, given, before, after):
    assert texts(action, given, before) == after


def test_all_temporaries_move_at_once():
    names = facts(
        "u[i] += A[i,j] * x[j]; v[i] += B[i,j] * x[j]; y[i] = u[i] * v[i]", A="csr", B="csr", x="dense"
    )
    before = "order u: i, j; order v: i, j1; order y: i"
    (found,) = texts(place_all, names, before)
    assert found == f"{before}; precompute v at i in register; precompute u at i in register"


def test_the_operand_with_most_entries_balances_threads():
    made = [str(directive) for _, directive in parallel(Schedule.parse("order i, k, j"), SPMM)]
    assert made == ["parallel i dynamic A", "parallel i static"]
    made = [str(directive) for _, directive in parallel(Schedule.parse("order k, i, j"), SPMM)]
    assert made == ["parallel k static"]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_actions_extend_what_they_are_given(action):
    """Decisions that an action does not concern stay: threads, prefetches."""
    before = Schedule.parse("order i, k, j; prefetch X 3")
    for made in action(before, SPMM):
        assert str(made).endswith("prefetch X 3")
        assert estimate(made, SPMM) > 0
