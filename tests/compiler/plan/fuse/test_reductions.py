"""Several reductions over the same rows: one kernel that reads each row once, results, gradients and reasons."""

import re

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.plan.fuse.reductions import Aggregated, aggregated
from sparsify.compiler.plan.plan import joined_reductions
from sparsify.compiler.schedule.sizes import sizes_of

STATISTICS = """c[i] += A[i,j]
s[i,f] += A[i,j] * X[j,f]
q[i,f] += A[i,j] * X[j,f] * X[j,f]
M[i,f] max= where(stored(A[i,j]), X[j,f], -inf)
L[i,f] min= where(stored(A[i,j]), X[j,f], inf)
a[i,f] = s[i,f] / max(c[i], 1)
b[i,f] = where(c[i] == 0, 0, M[i,f])
d[i,f] = where(c[i] == 0, 0, L[i,f])
v[i,f] = q[i,f] / max(c[i], 1) - a[i,f] * a[i,f]"""
RESULTS = ["a", "b", "d", "v"]
SUMS = "Y[i,f] += A[i,j] * X[j,f]\nZ[i,f] max= where(stored(A[i,j]), X[j,f] * A[i,j], -inf)"


def neighbours(rows=23, columns=31, density=0.2, dtype=torch.float32):
    """A matrix of ones with an empty row, and distinct features of its columns."""
    generator = torch.Generator().manual_seed(0)
    full = (torch.rand(rows, columns, generator=generator) < density).to(dtype)
    full[3] = 0
    return full, lambda width: torch.randn(columns, width, generator=generator, dtype=dtype)


def expected(full, x):
    """Mean, largest, smallest and variance of the neighbours of each row, 0 without any."""
    count = full.sum(1, keepdim=True)
    held = full[:, :, None] != 0
    mean = full @ x / count.clamp(min=1)
    most = torch.where(held, x, -torch.inf).amax(1)
    least = torch.where(held, x, torch.inf).amin(1)
    variance = full @ x.square() / count.clamp(min=1) - mean.square()
    return mean, torch.where(count == 0, 0, most), torch.where(count == 0, 0, least), variance


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("dtype", "vector_bytes"), [(torch.float32, 64), (torch.float32, 16), (torch.float64, 32)]
)
def test_one_kernel(dtype, vector_bytes):
    full, features = neighbours(dtype=dtype)
    matrix = sparsify.tensor(full, "csr")
    with options.override(vector_bytes=vector_bytes):
        for width in (1, 5, 32, 70):
            x = features(width)
            kernel = evaluate_kernel(STATISTICS, RESULTS, A=matrix, X=x)
            assert len(kernel.steps) == 1
            operands = {"A": matrix, "X": x}
            found = kernel(*[operands[name] for name in kernel.program.inputs])
            torch.testing.assert_close(found, expected(full, x), rtol=1e-5, atol=1e-5)


def test_all_reductions_are_in_one_loop_over_the_entries_of_a_row():
    full, features = neighbours()
    with options.override(vector_bytes=64):
        kernel = evaluate_kernel(STATISTICS, RESULTS, A=sparsify.tensor(full, "csr"), X=features(32))
    (step,) = kernel.generated
    stages = step.current.stages
    assert "merge j" in str(stages.schedule) and not stages.refused
    first, *tiles = [part.split("}")[0] for part in stages.cpp.split("for (int64_t pA2")[1:]]
    assert "c += " in first and len(tiles) == 2  # whole tiles and the cut one
    for tile in tiles:
        assert set(re.findall(r"^ +([sqML])v?\d*_0 ", tile, re.MULTILINE)) == set("sqML")
        assert tile.count("load") == 2  # a vector of X each, of two in a tile


def test_results_that_are_reductions_and_their_explanation():
    full, features = neighbours()
    matrix, x = sparsify.tensor(full * 2, "csr"), features(40)
    y, z = sparsify.evaluate(SUMS, ["Y", "Z"], A=matrix, X=x)
    torch.testing.assert_close(y, 2 * full @ x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z, torch.where(full[:, :, None] != 0, 2 * x, -torch.inf).amax(1))
    kernel = evaluate_kernel(SUMS, ["Y", "Z"], A=matrix, X=x)
    sizes = sizes_of(kernel.program, (matrix, x))
    found = joined_reductions(kernel.program, sizes)
    assert found.is_faster and "rows of X are read once for all reductions" in str(found)
    assert [str(s.target) for s in found.program.statements] == ["s_Y[i,f]", "s_Z[i,f]", "Y[i,f]", "Z[i,f]"]
    loses = Aggregated(found.program, found.tables, 2.0, 1.0)
    assert not loses.is_faster and "cut, since one kernel loses" in str(loses)


def test_a_row_with_most_entries_is_cut():
    """A heavy row is not shared by threads in the fused kernel, but in the separate ones, so fusion is rejected."""
    full = torch.zeros(40, 30_000)
    full[0] = 1
    full[1:, 5] = 1
    operands = (sparsify.tensor(full, "csr"), torch.zeros(30_000, 64))
    with options.override(threads=16):
        program = evaluate_kernel(SUMS, ["Y", "Z"], A=operands[0], X=operands[1]).program
        found = joined_reductions(program, sizes_of(program, operands))
        assert not found.is_faster and "cut, since one kernel loses" in str(found)


@pytest.mark.sampled(2)
def test_gradients():
    full, features = neighbours(dtype=torch.float64)
    matrix, x = sparsify.tensor(full, "csr"), features(9)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = sparsify.evaluate(STATISTICS, RESULTS, A=matrix, X=ours), expected(full, theirs)
    factors = [torch.randn_like(part) for part in wanted]
    for results in (found, wanted):
        sum((part * factor).sum() for part, factor in zip(results, factors, strict=True)).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("Y[i,f] += A[i,j] * X[j,f]\nZ[i,f] += A[i,j] * W[j,f]", "csr"),  # nothing is read by both
        ("Y[i,f] += A[i,j] * X[j,f]\nZ[i,f] = 2 * Y[i,f]", "csr"),
        (SUMS, "csc"),
    ],
)
def test_what_is_none(text, format):
    full, features = neighbours()
    operands = {"A": sparsify.tensor(full, format), "X": features(8)}
    if "W[" in text:
        operands["W"] = features(8)
    program = evaluate_kernel(text, ["Y", "Z"], **operands).program
    sizes = sizes_of(program, tuple(operands[name] for name in program.inputs))
    assert aggregated(name_extents(program), sizes) is None
