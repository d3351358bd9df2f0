"""Sums over stored entries in vector lanes: number of lanes, and correctness for rows of any length."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import einsum_kernel
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.compiler.schedule.templates.candidates import candidates
from sparsify.options import override
from sparsify.storage.tensor import SparseTensor

ROWS = 1000
SCHEDULE = (
    "pos j p A; split p po pi {count}; order i, po, pi; precompute sum_Y = Y at i in register; "
    "precompute sums = sum_Y over pi in register; vector pi; parallel i dynamic A"
)


def chosen(subscripts: str, operands: tuple[torch.Tensor, ...], sizes: Sizes | None, lanes: int = 16) -> str:
    """The schedule of an einsum for operands, or for sizes alone."""
    kernel, _ = einsum_kernel(subscripts, operands, None, None)
    (step,) = steps(kernel.program)
    assert isinstance(step, Step)
    known = sizes_of(step.program, operands) if sizes is None else sizes
    return str(next(candidates(concretize(step.program), lanes, 4, known)))


def ragged(counts: list[int], columns: int, dtype: torch.dtype = torch.float32) -> SparseTensor:
    """CSR matrix with given row lengths."""
    draw = torch.Generator().manual_seed(0)
    pos = torch.tensor([0, *counts]).cumsum(0).int()
    crd = torch.cat([torch.randperm(columns, generator=draw)[:n].sort().values for n in counts]).int()
    values = torch.randint(-4, 5, (len(crd),), generator=draw).to(dtype)
    return sparsify.tensor(torch.sparse_csr_tensor(pos, crd, values, (len(counts), columns)))


@pytest.mark.parametrize(
    "entries, lanes, expected", [(40, 16, "4"), (4, 8, "4"), (40, 2, "2"), (3, 16, None), (40, 1, None)]
)
def test_rows_of_which_little_is_known(entries: int, lanes: int, expected: str | None) -> None:
    operands = sparsify.tensor(torch.eye(3), "csr"), torch.ones(3)
    sizes = Sizes({"i": ROWS, "j": ROWS}, {"A": entries * ROWS})
    text = chosen("ij,j->i", operands, sizes, lanes)
    assert (f"split p po pi {expected};" in text) == (expected is not None)
    assert ("vector pi" in text) == (expected is not None)


def test_rows_of_coordinates_are_taken_in_lanes_too() -> None:
    operands = sparsify.tensor(torch.eye(3), "coo"), torch.ones(3)
    sizes = Sizes({"i": ROWS, "j": ROWS}, {"A": 40 * ROWS})
    assert chosen("ij,j->i", operands, sizes) == SCHEDULE.format(count=4)
    mask = (
        torch.rand(61, 53, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 0.6, 61)[:, None]
    )
    A, x = mask * torch.arange(61.0)[:, None], torch.arange(53.0)
    for bytes_ in (64, 16, 0):
        with override(vector_bytes=bytes_, serial_threshold=0, threads=2):
            found = sparsify.einsum("ij,j->i", sparsify.tensor(A, "coo"), x)
        assert torch.equal(found, A @ x)


@pytest.mark.parametrize("entries, expected", [(30, "split p po pi 16;"), (20, "order i, j;")])
def test_sums_that_pick_nothing_take_whole_registers(entries: int, expected: str) -> None:
    sizes = Sizes({"i": ROWS, "j": ROWS}, {"A": entries * ROWS})
    assert expected in chosen("ij->i", (sparsify.tensor(torch.eye(3), "csr"),), sizes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "count, vector_bytes", [(4, 64), (8, 64), (16, 64), (4, 32), (8, 32), (4, 16), (2, 0)]
)
def test_rows_of_every_length(dtype: torch.dtype, count: int, vector_bytes: int) -> None:
    A = ragged([*range(20), 0, 7, 0], 40, dtype)
    x = torch.arange(40).sub(20).to(dtype)
    with override(vector_bytes=vector_bytes, threads=2, serial_threshold=0):
        found = sparsify.einsum("ij,j->i", A, x, schedule=SCHEDULE.format(count=count))
    assert torch.equal(found, A.to_dense() @ x)


@pytest.mark.parametrize("count, vector", [(8, "float32x8"), (4, "float32x4"), (16, "float32x16")])
def test_vectors_are_no_longer_than_what_is_taken_at_a_time(count: int, vector: str) -> None:
    with override(vector_bytes=64):
        operands = ragged([5, 9], 40), torch.ones(40)
        kernel, _ = einsum_kernel("ij,j->i", operands, None, SCHEDULE.format(count=count))
        stages = kernel.generated[0].stages
    assert f"var sums_0: {vector}" in str(stages.loops)
    assert f"gather_part_from_{vector}(B_vals, &A2_crd" in stages.cpp
