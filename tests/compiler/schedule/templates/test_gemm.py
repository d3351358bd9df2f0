"""Packed matrix product, register tiles and the epilogue inside, from a schedule written by hand."""

import pytest
import torch

from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops import nodes as loops
from sparsify.errors import ScheduleError
from sparsify.options import override
from tests.compiler.schedule.prototypes import check, check_memory, hottest, lowered, normal, sums

TEXT = "C[i,k] = relu(A[i,j] * W[j,k] + b[k])"
# Panels of 16 columns, packed once; tiles of 6 rows by 2 vectors of 8 lanes.
PANELS = (
    "split i io ii 6 tail 1; split k ko ki 16; order io, ko, j, ii, ki; precompute w at ko in register; "
    "pack P = W[ko, j, ki] at root in memory; vector ki; unroll ii; parallel io dynamic"
)
# Tasks of 24 rows, a panel packed in each; a panel stays in cache while the row tiles pass.
OWN_PANELS = (
    "split i ib i2 24; split i2 io ii 6 tail 4 2 1; split k ko ki 16 tail 8; order ib, ko, io, j, ii, ki; "
    "precompute w at io in register; pack P = W[j, ki] at ko in thread; vector ki; unroll ii; parallel ib"
)
# Sums over blocks of 32 of j in registers, added up in memory; the epilogue after the last block.
BLOCKED = (
    "split i ib i2 24; split i2 io ii 6 tail 1; split k ko ki 16; split j jo ji 32; "
    "order ib, ko, jo, io, ji, ii, ki; precompute w at ib in thread; precompute a = w at io in register; "
    "pack P = W[ko, j, ki] at root in memory; vector ki; unroll ii; parallel ib dynamic"
)
# All threads pack; inside their tiles of rows the panels come one after the other.
TOGETHER = PANELS + "; parallel ko"
MASKED = PANELS.replace("ki 16;", "ki 16 masked;")
SCHEDULES = {
    "panels": PANELS,
    "together": TOGETHER,
    "own": OWN_PANELS,
    "blocked": BLOCKED,
    "masked": MASKED,
}
SHAPES = [
    (0, 3, 4),
    (4, 3, 0),
    (5, 0, 9),
    (1, 1, 1),
    (1, 7, 5),
    (6, 3, 16),
    (7, 5, 17),
    (13, 40, 33),
    (61, 33, 40),
]


def operands(
    rows: int, inner: int, columns: int, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A, W, b and the result in float64."""
    A, W, b = normal(rows, inner), normal(inner, columns, seed=1), normal(columns, seed=2)
    given = {"A": A.to(dtype), "W": W.to(dtype), "b": b.to(dtype)}
    return given, torch.relu(given["A"].double() @ given["W"].double() + given["b"].double())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_product(name, shape, threads):
    given, expected = operands(*shape, torch.float32)
    check(TEXT, SCHEDULES[name], given, expected, threads=threads)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "vector_bytes", "dtype"),
    [
        ("masked", 0, torch.float32),
        ("masked", 64, torch.float32),
        ("panels", 16, torch.float64),
        ("panels", 32, torch.float64),
        ("own", 16, torch.float32),
    ],
)
def test_widths(name, vector_bytes, dtype):
    for shape in SHAPES:
        given, expected = operands(*shape, dtype)
        check(TEXT, SCHEDULES[name], given, expected, threads=2, vector_bytes=vector_bytes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(5, 0, 9), (7, 5, 17), (13, 34, 24)], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_access_outside(name, shape):
    with override(vector_bytes=32):
        check_memory(TEXT, SCHEDULES[name], *operands(*shape, torch.float32))


@pytest.mark.parametrize("name", SCHEDULES)
def test_twelve_accumulators(name):
    with override(vector_bytes=32):
        given, _ = operands(13, 40, 33, torch.float32)
        function = lowered(TEXT, SCHEDULES[name], given)
    loop = hottest(function)
    assert len(sums(loop)) == 12
    assert not [node for node in walk(loop.body) if isinstance(node, loops.Store)]
    loads = {node for node in walk(loop.body) if isinstance(node, loops.Load)}
    assert sorted(load.buffer for load in loads) == ["A_vals"] * 6 + ["P"] * 2
    assert all(load.count is None for load in loads)


def test_loops(golden):
    with override(vector_bytes=32):
        given, _ = operands(13, 40, 33, torch.float32)
        golden("schedule/gemm.txt", str(lowered(TEXT, PANELS, given)))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (PANELS.replace("unroll ii; ", ""), "unroll ii"),
        (PANELS.replace("parallel io", "parallel j"), "its iterations all write"),
        (PANELS.replace("in register", "in cache"), "no scope cache"),
        (PANELS.replace("W[ko, j, ki]", "W[ko, ki]"), "j"),
    ],
)
def test_refused(schedule, message):
    given, _ = operands(7, 5, 17, torch.float32)
    with override(vector_bytes=32), pytest.raises(ScheduleError, match=message):
        lowered(TEXT, schedule, given)
