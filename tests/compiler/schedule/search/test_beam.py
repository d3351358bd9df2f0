"""The beam: better than the default by the cost model, deterministic, bounded."""

from math import inf

import pytest

from sparsify.compiler.loops.lower import lower
from sparsify.compiler.notation.verify import verify
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.rewrite.apply import apply
from sparsify.compiler.schedule.search import beam
from sparsify.compiler.schedule.search.searched import GAIN, searched
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.schedule.templates.candidates import candidates, search_of
from tests.compiler.schedule.search.programs import SIZES, facts, notation

MASKS = "Y[i,j] = A[i,j] * B[i,j] * sum(k, P[i,k] * Q[j,k])"
MASKED = {"A": "csr", "B": "csr", "P": "dense, dense", "Q": "dense, dense"}
SPMM = {"A": "csr", "X": "dense, dense"}


def best(text: str, sizes: Sizes = SIZES, **formats: str) -> str:
    """The best schedule of a program."""
    given = facts(text, sizes, **formats)
    return str(beam.completed(beam.search(given)[0][0].schedule, given)[0])


def test_products_have_the_schedules_of_templates():
    assert best("Y[i,k] = A[i,j] * X[j,k]", **SPMM) == (
        "split k ko ki 64; order i, ko, j, ki; precompute sum_Y = Y at ko in register; vector ki; "
        "parallel i dynamic A"
    )
    assert best("Y[i,k] = relu(A[i,j] * X[j,k])", **SPMM) == (
        "split k ko ki 64; order w: i, ko, j, ki; order Y: i, ko, ki; precompute w at ko in register; "
        "vector ki; parallel i dynamic A"
    )


def test_rows_of_several_statements_stay_together():
    found = best("S[i,k] += A[i,j] * X[j,k]; w[i] += S[i,k]; Y[i,k] = S[i,k] - w[i]", **SPMM)
    assert "precompute S at i in thread" in found and "precompute w at i in register" in found
    assert "lanes_w = w over ki" in found and found.endswith("parallel i dynamic A")


def test_two_masks_gain():
    plain = notation(MASKS, **MASKED)
    usual = next(candidates(plain, 8, 4, SIZES, without=("search",)))
    found = search_of(plain, 8, 4, SIZES)
    assert found is not None
    given = facts(MASKS, **MASKED)
    assert beam.estimate(found.schedules[0], given) < GAIN * beam.estimate(usual, given)
    assert next(candidates(plain, 8, 4, SIZES)) == found.schedules[0] != usual
    assert "lanes_w = w over ki" in str(found.schedules[0])
    assert found.said(found.schedules[0]).startswith(f"searched {found.tried} schedules, estimated")
    assert found.said(usual) == ""


def test_schedules_of_the_beam_lower():
    for text, formats in ((MASKS, MASKED), ("Y[i,k] = A[i,j] * X[j,k]", SPMM)):
        given = facts(text, **formats)
        for one in beam.search(given)[0]:
            tree = apply(given.plain, beam.completed(one.schedule, given)[0])
            verify(tree)
            lower(tree, 32)


def test_a_search_is_repeatable():
    given = [beam.search(facts(MASKS, **MASKED)) for _ in range(2)]
    assert given[0] == given[1]


@pytest.mark.parametrize("most", [1, 5, 20])
def test_a_search_is_bounded(most):
    found, tried = beam.search(facts(MASKS, **MASKED), most)
    assert tried <= most and len(found) <= beam.WIDTH
    assert [one.us for one in found] == sorted(one.us for one in found)


def test_without_sizes_or_work_nothing_is_searched():
    plain = notation(MASKS, **MASKED)
    assert search_of(plain, 8, 4, UNKNOWN) is None
    assert search_of(plain, 8, 4, Sizes({"i": 9, "j": 9, "k": 8}, {"A": 20, "B": 20})) is None
    assert search_of(plain, 8, 4, Sizes({"i": 1000, "k": 64}, {"A": 20, "B": 20})) is None


def test_templates_are_not_searched():
    plain = notation("Y[i,j] = A[i,j] * sum(k, P[i,k] * Q[j,k])", A="csr", P="dense, dense", Q="dense, dense")
    assert search_of(plain, 8, 4, SIZES) is None
    assert next(candidates(plain, 8, 4, SIZES, without=("sddmm",))) != next(candidates(plain, 8, 4, SIZES))


def test_a_search_is_remembered():
    plain = notation(MASKS, **MASKED)
    asked = []

    def defaults():
        asked.append(1)
        yield Schedule.parse("order i, j; precompute w at j in register")

    sizes = Sizes({"i": 1000, "j": 1001, "k": 64}, {"A": 30_000, "B": 40_000})
    first, again = (searched(plain, 8, 4, sizes, (), defaults()) for _ in range(2))
    assert first is again and len(asked) == 1


def test_registers_hold_no_whole_rows():
    given = facts("Y[i,k] = A[i,j] * X[j,k]", **SPMM)
    held = "order i, j, k; precompute a = Y at i in register; vector k"
    assert beam.estimate(Schedule.parse(held), given) == inf
    assert beam.estimate(Schedule.parse("order i, z"), given) == inf
