"""Neighbouring schedules, which differ in a single decision."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import einsum_kernel
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.neighbours import neighbours

ROWS = "order i, ko, j, ki; precompute w at ko in register; vector ki"
OUTERMOST = "order ko, i, j, ki; precompute w at i in register; vector ki"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            f"split k ko ki 64 tail 32 8; {ROWS}; parallel i dynamic A; prefetch T 16",
            [
                f"split k ko ki 32 tail 8; {ROWS}; parallel i dynamic A; prefetch T 16",
                f"split k ko ki 64 tail 32 8; {ROWS}; parallel i balanced A; prefetch T 16",
                f"split k ko ki 128 tail 32 8; {ROWS}; parallel i dynamic A; prefetch T 16",
                f"split k ko ki 64 tail 32 8; {OUTERMOST}; parallel i dynamic A; prefetch T 16",
                f"split k ko ki 64 tail 32 8; {ROWS}; parallel i dynamic A",
            ],
        ),
        (
            f"split k ko ki 16; {ROWS}",
            [f"split k ko ki 32; {ROWS}", f"split k ko ki 16; {OUTERMOST}"],
        ),  # half of it is too narrow
        ("split j jo ji 64; order i, jo, ji; parallel i static", []),  # no lanes, no entries to balance by
    ],
)
def test_one_decision_at_a_time(before, after):
    assert [str(found) for found in neighbours(Schedule.parse(before), {"k": 200})] == after


def test_no_tile_is_larger_than_its_loop():
    found = list(neighbours(Schedule.parse(f"split k ko ki 32; {ROWS}"), {"k": 32}))
    assert [str(one) for one in found] == [f"split k ko ki 16; {ROWS}"]


def test_outermost_tiles_lower_and_compute_the_same():
    A = sparsify.tensor(torch.eye(9, 7) + torch.eye(9, 7).roll(2, 1), "csr")
    B = torch.rand(7, 300)
    kernel, _ = einsum_kernel("ij,jk->ik", (A, B), None, None)
    kernel(A, B)
    expected = kernel.generated[0].current.stages.schedule
    near = neighbours(Schedule.parse(str(expected)), {"k": 300})
    (outermost,) = [s for s in near if "order ko, i, j, ki" in str(s)]
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", A, B, schedule=str(outermost)), A.to_dense() @ B)
