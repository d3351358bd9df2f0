"""Gradients of attention over edges: a kernel over rows and one over columns, equal to dense attention in float64."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.evaluate import _program, evaluate_kernel
from sparsify.compiler.plan.fuse.rows_and_columns import divide
from sparsify.storage.tensor import SparseTensor

ROWS = """
m[h,i] max= S[h,i,j]
P[h,i,j] = exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))
d[h,i] += P[h,i,j]
Y[i,h,f] += P[h,i,j] * X[j,h,f] / where(d[h,i] == 0, 1, d[h,i])
"""
LEAKY = "where(a[j,h] + b[i,h] > 0, a[j,h] + b[i,h], 0.2 * (a[j,h] + b[i,h]))"
MIXED = "sum(k, where(Q[i,h,k] + X[j,h,k] > 0, Q[i,h,k] + X[j,h,k], 0.2 * (Q[i,h,k] + X[j,h,k])) * w[0,h,k])"
SCORES = {"sums": LEAKY, "products": "0.5 * sum(k, Q[i,h,k] * K[j,h,k])", "mixed": MIXED}
TEXTS = {name: f"S[h,i,j] = where(stored(A[i,j]), {score}, -inf)" + ROWS for name, score in SCORES.items()}
NODES = 25


def operands(text: str, heads: int, width: int) -> dict[str, torch.Tensor]:
    """Operands with a row and a column without entries."""
    generator = torch.Generator().manual_seed(width)
    stored = torch.rand(NODES, NODES, generator=generator) < 0.2
    stored[3], stored[:, 4] = False, False
    shapes = dict.fromkeys("ab", (NODES, heads)) | dict.fromkeys("QKX", (NODES, heads, width))
    shapes["w"] = (1, heads, width)
    found = {n: torch.randn(s, generator=generator) for n, s in shapes.items() if f"{n}[" in text}
    return {"A": sparsify.tensor(stored.float(), "csr"), **found}


def dense(name: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    if name == "sums":
        scores = given["a"].T[:, None] + given["b"].T[:, :, None]
        scores = torch.where(scores > 0, scores, 0.2 * scores)
    elif name == "mixed":
        both = given["Q"][:, None] + given["X"]
        scores = (torch.where(both > 0, both, 0.2 * both) * given["w"]).sum(-1).permute(2, 0, 1)
    else:
        scores = 0.5 * torch.einsum("ihk,jhk->hij", given["Q"], given["K"])
    scores = scores.masked_fill(given["A"].to_dense() == 0, -torch.inf)
    return torch.einsum("hij,jhf->ihf", torch.nan_to_num(torch.softmax(scores, -1)), given["X"])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("heads", "width", "vector_bytes"), [(4, 3, 64), (2, 5, 16)])
@pytest.mark.parametrize("name", TEXTS)
def test_two_kernels(name, heads, width, vector_bytes):
    given = operands(TEXTS[name], heads, width)
    wrt = tuple(n for n in given if n != "A")
    fixed = {"h": heads, "f": width} | ({} if name == "sums" else {"k": width})
    with options.override(vector_bytes=vector_bytes, serial_threshold=0):
        kernel = evaluate_kernel(TEXTS[name], "Y", sizes=fixed, **given)
        ours = {n: x.requires_grad_() if n in wrt else x for n, x in given.items()}
        found = kernel(*[ours[n] for n in kernel.program.inputs])
        seed = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(found, [ours[n] for n in wrt], seed)
        reverse = kernel.adjoint(wrt)
    # What all nodes share is summed row by row, and then over the rows.
    shared = [[]] if name == "mixed" else []
    assert [[twin.name for twin in step.step.twins] for step in reverse.steps] == [[], ["A_10"], *shared]
    assert all("A" not in step.operands for step in reverse.steps[2:])
    assert all(not step.current.stages.refused for step in reverse.generated)
    theirs = {n: x.detach().double().requires_grad_() if n in wrt else x for n, x in given.items()}
    wanted = torch.autograd.grad(dense(name, theirs), [theirs[n] for n in wrt], seed.double())
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-4, atol=1e-5)  # sums in float32


def test_explain_says_what_is_computed_by_both():
    given = operands(TEXTS["sums"], 4, 3)
    reverse = evaluate_kernel(TEXTS["sums"], "Y", sizes={"h": 4, "f": 3}, **given).adjoint(("X", "a", "b"))
    parts = divide(reverse.program)
    assert str(parts) == (
        "d_b, d_w, d_d: one kernel over rows; d_X, d_a: one over columns, on A_10; P, d_S: computed by both"
    )


def test_leaky_scores_are_summed_once():
    given = operands(TEXTS["sums"], 4, 3)
    kernel = evaluate_kernel(TEXTS["sums"], "Y", **given)
    texts = [str(statement) for statement in kernel.adjoint(("a",)).program.statements]
    assert texts[-1] == (
        "d_a[j,h] = sum(i, where(stored(A[i,j]), where(a[j,h] + b[i,h] > 0, d_S[h,i,j], d_S[h,i,j] * 0.2), 0))"
    )


BILINEAR = "S[h,i,j] = where(stored(A[i,j]), sum(k, l, Q[i,h,k] * M[h,k,l] * K[j,h,l]), -inf)" + ROWS


def test_sums_of_rows_are_no_larger_than_operands():
    """The gradient of a matrix between both sides of the scores would be a matrix for each row."""
    given = operands(BILINEAR, 2, 3) | {"M": torch.randn(2, 3, 3)}
    kernel = evaluate_kernel(BILINEAR, "Y", sizes={"h": 2, "f": 3, "k": 3, "l": 3}, **given)
    parts = divide(name_extents(kernel.adjoint(("Q", "K", "M", "X")).program))
    assert parts is not None and parts.last is not None
    assert "d_M" in parts.last.outputs
    ranks = {declared.name: len(declared.extents) for declared in parts.rows.declarations}
    assert max(ranks.values()) == 3
    assert not any(name.startswith("w") for name in parts.rows.outputs)


def test_programs_of_rows_alone_stay_whole():
    assert divide(_program(TEXTS["sums"], "Y", None, None, operands(TEXTS["sums"], 2, 3))) is None


def test_what_runs_before_the_parts_computes_what_it_reads():
    text = """
u[i,h] = 2 * b[i,h]
z[h] += u[i,h]
P[h,i,j] = where(stored(A[i,j]), exp(u[i,h] + v[j,h]), 0)
Y[i,h,f] += P[h,i,j] * X[j,h,f]
D[j,h,f] += P[h,i,j] * W[i,h,f]
"""
    heads, width = 4, 3
    given = {"A": operands("", heads, width)["A"]}
    given |= {name: torch.randn(NODES, heads) for name in "bv"}
    given |= {name: torch.randn(NODES, heads, width) for name in "XW"}
    found = sparsify.evaluate(text, ["z", "Y", "D"], sizes={"h": heads, "f": width}, **given)
    P = torch.exp(2 * given["b"].T[:, :, None] + given["v"].T[:, None]) * (given["A"].to_dense() != 0)
    wanted = (
        2 * given["b"].sum(0),
        torch.einsum("hij,jhf->ihf", P, given["X"]),
        torch.einsum("hij,ihf->jhf", P, given["W"]),
    )
    found = [x.to_dense() if isinstance(x, SparseTensor) else x for x in found]
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-4, atol=1e-4)
