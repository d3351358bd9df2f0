"""Attention with bounds of scores and with sinks by generated kernels, against dense attention in float64."""

import pytest
import torch
from torch import Tensor

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.pipeline import plain_notation
from sparsify.compiler.schedule.sizes import UNKNOWN
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.strategies import row_ways
from tests.scenarios.test_attention_gradients import CLOSE, QUICK, operands

CAP = 0.75
PLAIN = "S[h,i,j] = where(stored(M[i,j]), 0.25 * sum(k, Q[h,i,k] * K[h,j,k]) + B[j], -inf)"
BOUNDED = f"""C[h,i,j] = where(stored(M[i,j]), tanh({0.25 / CAP!r} * sum(k, Q[h,i,k] * K[h,j,k])), 0)
S[h,i,j] = where(stored(M[i,j]), {CAP!r} * C[h,i,j] + B[j], -inf)"""
ROWS = """
m[h,i] max= S[h,i,j]
P[h,i,j] = exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))
d[h,i] += P[h,i,j]
"""
MEAN = "Y[h,i,l] += P[h,i,j] * V[h,j,l] / where(d[h,i] == 0, 1, d[h,i])"
SINKS = """W[h,i,l] += P[h,i,j] * V[h,j,l]
n[h,i] = max(m[h,i], Z[h,i])
c[h,i] = exp(m[h,i] - n[h,i])
t[h,i] = d[h,i] * c[h,i] + exp(Z[h,i] - n[h,i])
Y[h,i,l] = W[h,i,l] * c[h,i] / t[h,i]"""
TEXTS = {
    "bounds": BOUNDED + ROWS + MEAN,
    "sinks": PLAIN + ROWS + SINKS,
    "both": BOUNDED + ROWS + SINKS,
}


def given_for(text: str, size: int, form: str) -> dict[str, Tensor]:
    """Operands with rows without entries, and sinks far above and far below all scores."""
    given = operands(text, size, form)
    if "Z[" in text:
        given["Z"] = torch.randn(3, size, generator=torch.Generator().manual_seed(1))
        given["Z"][0, ::5], given["Z"][1, ::4] = 200.0, -200.0
    return given


def dense(given: dict[str, Tensor], cap: float | None) -> Tensor:
    """Dense attention; fully masked rows give 0."""
    rows, columns = given["M"].coordinates()
    size = len(given["B"])
    inside = (rows < size) & (columns < size)
    stored = torch.zeros(size, size, dtype=torch.bool)
    stored[rows[inside], columns[inside]] = True
    scores = 0.25 * given["Q"] @ given["K"].mT
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = (scores + given["B"]).masked_fill(~stored, -torch.inf)
    sink = given["Z"] if "Z" in given else torch.full(scores.shape[:-1], -1e6, dtype=torch.float64)
    return torch.softmax(torch.cat([scores, sink[..., None]], -1), -1)[..., :-1] @ given["V"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", ["bcsr(8,8)", "csr"])
@pytest.mark.parametrize("name", TEXTS)
def test_results_and_gradients(name, form):
    text = TEXTS[name]
    for size in (40, 27):
        given = given_for(text, size, form)
        wrt = [n for n in given if n not in "MB"]
        ours = {n: value.requires_grad_(n in wrt) if n in wrt else value for n, value in given.items()}
        theirs = {n: v.detach().double().requires_grad_() if n in wrt else v for n, v in given.items()}
        with options.override(**QUICK):
            kernel = evaluate_kernel(text, "Y", **ours)
            assert len(kernel.steps) == 1
            backward = kernel.adjoint(tuple(wrt))
            # In blocks the gradients are one kernel too; of single entries those of columns have their own.
            assert len(backward.steps) == 1 or form == "csr"
            assert not any(
                d.extents[-2:] == ("i", "j") and d.format.is_dense for d in backward.program.declarations
            )
            found = sparsify.evaluate(text, "Y", **ours)
            wanted = dense(theirs, None if name == "sinks" else CAP)
            torch.testing.assert_close(found.double(), wanted, **CLOSE)
            seed = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
            gradients = torch.autograd.grad(found, [ours[n] for n in wrt], seed)
        for n, one, other in zip(
            wrt, gradients, torch.autograd.grad(wanted, [theirs[n] for n in wrt], seed.double()), strict=True
        ):
            torch.testing.assert_close(one.double(), other, **CLOSE, msg=lambda m, n=n: f"d_{n}: {m}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("way", "form"),
    [("strip", "bcsr(16,16)"), ("online", "bcsr(16,16)"), ("recomputed", "bcsr(16,16)"), ("online", "csr")],
)
def test_ways_to_hold_a_row(way, form):
    """A sink is met when the row is done: sums of chunks are rescaled as without one."""
    text = TEXTS["both"]
    given = given_for(text, 40, form)
    with torch.no_grad(), options.override(**QUICK, vector_bytes=16):
        (step,) = evaluate_kernel(text, "Y", **given).steps
        chain = row_chain(plain_notation(step))
        assert chain is not None
        ways = {found.name: found for found in row_ways(chain, 4, 4, UNKNOWN)}
        found = sparsify.evaluate(text, "Y", **given, schedule=str(ways[way].schedule))
    wide = {n: v if n == "M" else v.double() for n, v in given.items()}
    torch.testing.assert_close(found.double(), dense(wide, CAP), **CLOSE)
