"""Sparse times dense with a row of the result in registers, from schedules written by hand."""

import pytest
import torch

import sparsify
from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops import nodes as loops
from sparsify.errors import ScheduleError
from sparsify.options import override
from tests.compiler.schedule.prototypes import check, check_memory, hottest, lowered, normal, sparse, sums

TEXT = "C[i,k] = relu(A[i,j] * T[j,k] + b[k])"


def row(columns: int, tail: str) -> str:
    """Accumulators for `columns` columns of a row, narrower ones for the rest; gathered rows asked for ahead."""
    return (
        f"split k ko ki {columns} {tail}; order i, ko, j, ki; precompute w at ko in register; vector ki; "
        "prefetch T 16; parallel i dynamic A"
    )


WIDE = row(128, "tail 64 32 16 8")
NARROW = row(32, "tail 8")
# Four sets of accumulators over consecutive nonzeros, for rows too short to hide the latency of one.
SETS = (
    "pos j p A; split p po pi 4 tail 1; split k ko ki 16 tail 8; order i, ko, po, pi, ki; "
    "precompute w at ko in register; precompute s = w over pi in register; unroll pi; vector ki; parallel i dynamic A"
)
SCHEDULES = {"wide": WIDE, "narrow": NARROW, "sets": SETS}
SHAPES = [(0, 3, 4), (4, 0, 5), (3, 4, 0), (1, 1, 1), (9, 30, 5), (13, 21, 47), (20, 33, 128), (7, 9, 213)]


def operands(
    rows: int, inner: int, columns: int, dtype: torch.dtype, *, density: float = 0.3, form: str = "csr"
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A, T, b and the result in float64."""
    A = sparse(rows, inner, density=density, dtype=dtype)
    T, b = normal(inner, columns, dtype=dtype), normal(columns, dtype=dtype, seed=2)
    given = {"A": sparsify.tensor(A, form), "T": T, "b": b}
    return given, torch.relu(A.double() @ T.double() + b.double())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_product(name, shape, threads):
    given, expected = operands(*shape, torch.float32)
    check(TEXT, SCHEDULES[name], given, expected, threads=threads)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("vector_bytes", "dtype"),
    [(0, torch.float32), (16, torch.float32), (16, torch.float64), (32, torch.float64)],
)
@pytest.mark.parametrize("name", ["narrow", "sets"])
def test_widths(name, vector_bytes, dtype):
    for shape in SHAPES:
        given, expected = operands(*shape, dtype)
        check(TEXT, SCHEDULES[name], given, expected, threads=2, vector_bytes=vector_bytes)


@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_empty_and_full_rows(name, density):
    given, expected = operands(12, 17, 40, torch.float32, density=density)
    check(TEXT, SCHEDULES[name], given, expected, threads=2)


@pytest.mark.parametrize("form", ["dcsr", "dense, compressed(pos=int64, crd=int16)"])
def test_other_levels(form):
    given, expected = operands(13, 21, 47, torch.float32, form=form)
    check(TEXT, NARROW, given, expected, threads=2)


@pytest.mark.parametrize("shape", [(4, 0, 5), (9, 30, 5), (13, 21, 47)], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_access_outside(name, shape):
    with override(vector_bytes=32):
        check_memory(TEXT, SCHEDULES[name], *operands(*shape, torch.float32))


@pytest.mark.parametrize(
    ("name", "accumulators", "lines"), [("wide", 16, 8), ("narrow", 4, 2), ("sets", 8, 0)]
)
def test_accumulators(name, accumulators, lines):
    with override(vector_bytes=32):
        given, _ = operands(13, 21, 47, torch.float32)
        function = lowered(TEXT, SCHEDULES[name], given)
    loop = hottest(function)
    assert len(sums(loop)) == accumulators
    inside = list(walk(loop.body))
    assert not [node for node in inside if isinstance(node, loops.Store)]
    assert len([node for node in inside if isinstance(node, loops.Prefetch)]) == lines


@pytest.mark.parametrize("name", SCHEDULES)
def test_loops(name, golden):
    with override(vector_bytes=32):
        given, _ = operands(13, 21, 47, torch.float32)
        text = str(lowered(TEXT, SCHEDULES[name], given))
    golden(f"schedule/spmm_{name}.txt", text)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (WIDE.replace("parallel i dynamic A", "parallel j"), "its iterations all write"),
        (WIDE.replace("prefetch T 16", "prefetch U 16"), "U"),
        (WIDE.replace("dynamic A", "dynamic B"), "B"),
        (SETS.replace("unroll pi; ", ""), "unroll pi"),
        (SETS.replace("pos j p A", "pos j p T"), "T"),
        (SETS.replace("order i, ko, po, pi, ki", "order po, i, ko, pi, ki"), "order|loops"),
    ],
)
def test_refused(schedule, message):
    given, _ = operands(7, 5, 17, torch.float32)
    with override(vector_bytes=32), pytest.raises(ScheduleError, match=message):
        lowered(TEXT, schedule, given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns, tile", [(2, 2), (3, 4), (5, 8), (8, 8), (9, 16)])
def test_few_columns_are_part_of_a_register(columns: int, tile: int) -> None:
    given, expected = operands(300, 200, columns, torch.float32, density=0.2)
    with override(vector_bytes=64):
        assert f"split k ko ki {tile};" in sparsify.explain(TEXT, **given)
    for vector_bytes in (64, 32, 16, 0):
        with override(vector_bytes=vector_bytes, serial_threshold=0, threads=2):
            found = sparsify.evaluate(TEXT, **given)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
