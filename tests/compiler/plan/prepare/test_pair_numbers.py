"""Products with weights that store pairs of bfloat16: which become dot products of pairs, and that all are right."""

import itertools
from dataclasses import replace

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.explain import explain_kernel
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.plan.prepare.pair_numbers import PairView
from sparsify.errors import DtypeError, FormatError, ShapeError
from tests.compiler.random_programs.operands import operand

PRODUCT = "Y[t,n] = sum(k, X[t,k] * W[n,k])"
PAIRS = "i: dense, j/2: compressed, j%2: dense"
BLOCKS = "i/4: dense, j/2: compressed(crd=int16), i%4: dense, j%2: dense"
TRANSPOSED = "j: dense, i/2: compressed, i%2: dense"
# Half a step of bfloat16; sums of many terms in float32.
ROUNDED = {"rtol": 0.502 * 2**-7, "atol": 1e-5}


def planned(text: str, dtypes: str = "bfloat16", **formats: str) -> list[str]:
    """The statements of the kernels of a program, without spaces in the texts of views."""
    operands = {name: replace(operand(form), dtype=dtypes) for name, form in formats.items()}
    found = steps(declare(parse(text), operands))
    return [str(one) if isinstance(one, PairView) else str(one.program.statements[0]) for one in found]


def pruned(outputs: int, columns: int, density: float = 0.2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(outputs, columns, generator=generator) < density
    mask[1::7] = False  # rows without entries
    return (torch.randn(outputs, columns, generator=generator) * mask).bfloat16()


def rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize(
    ("text", "formats", "kernel"),
    [
        (PRODUCT, {"X": "dense, dense", "W": PAIRS}, "sum(kp, dot_bfloat16(X_pairs[t,kp], W_pairs[n,kp]))"),
        (
            "Y[t,n] += W[n,k] * X[t,k]",
            {"X": "dense, dense", "W": PAIRS},
            "dot_bfloat16(X_pairs[t,kp], W_pairs[n,kp])",
        ),
        (
            "Y[t,n] = relu(sum(k, X[t,k] * W[k,n]) + b[n])",
            {"X": "dense, dense", "W": TRANSPOSED, "b": "dense"},
            "relu(sum(kp, dot_bfloat16(X_pairs[t,kp], W_pairs[kp,n])) + b[n])",
        ),
        (
            "Y[t,n] = sum(k, X[t,k] * W[n,k]) + X[t,n]",
            {"X": "dense, dense", "W": PAIRS},
            "sum(kp, dot_bfloat16(X_pairs[t,kp], W_pairs[n,kp])) + X[t,n]",
        ),
    ],
)
def test_products_of_pairs(text, formats, kernel):
    *views, last = planned(text, **formats)
    assert [view.split()[0] for view in views] == ["W_pairs", "X_pairs"]
    assert kernel in last


@pytest.mark.parametrize(
    ("text", "dtype", "formats"),
    [
        (PRODUCT, "float32", {"X": "dense, dense", "W": PAIRS}),
        (PRODUCT, "float16", {"X": "dense, dense", "W": PAIRS}),
        (PRODUCT, "bfloat16", {"X": "dense, dense", "W": "csr"}),
        (PRODUCT, "bfloat16", {"X": "dense, dense", "W": "bcsr(2, 4)"}),
        (PRODUCT, "bfloat16", {"X": "dense, dense", "W": "i/2: dense, j: compressed, i%2: dense"}),
        (PRODUCT, "bfloat16", {"X": "j: dense, i: dense", "W": PAIRS}),
        ("Y[n,t] = sum(k, X[k,t] * W[n,k])", "bfloat16", {"X": "dense, dense", "W": PAIRS}),
        ("Y[t,n] = sum(k, X[t,k] * W[n,k]) + sum(k, W[n,k])", "bfloat16", {"X": "dense, dense", "W": PAIRS}),
        ("Y[t,k] = sum(n, X[t,n] * W[n,k])", "bfloat16", {"X": "dense, dense", "W": PAIRS}),
        ("Y[t,n] = max(k, X[t,k] * W[n,k])", "bfloat16", {"X": "dense, dense", "W": PAIRS}),
        ("Y[t,n] = sum(k, X[t,k+1] * W[n,k])", "bfloat16", {"X": "dense, dense", "W": PAIRS}),
    ],
)  # fmt: skip
def test_other_products_are_unchanged(text, dtype, formats):
    assert not any("pairs" in one for one in planned(text, dtype, **formats))


def test_a_schedule_is_for_the_loops_of_the_program():
    operands = {
        name: replace(operand(form), dtype="bfloat16")
        for name, form in {"X": "dense, dense", "W": PAIRS}.items()
    }
    (step,) = steps(declare(parse(PRODUCT), operands), scheduled=True)
    assert "dot" not in str(step.program.statements[0])


SIZES = [*itertools.product((1, 2, 33), (1, 3, 40), (1, 2, 7, 64)), (70, 64, 300), (300, 24, 129)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", [PAIRS, BLOCKS, "i: dense, j/2: compressed(crd=int16), j%2: dense"], ids=str)
@pytest.mark.parametrize(("tokens", "outputs", "columns"), SIZES)
def test_results(form, tokens, outputs, columns):
    W, X = pruned(outputs, columns), rows(tokens, columns)
    stored = sparsify.tensor(W, form)
    kernel = kernel_of(PRODUCT, X=X, W=stored)
    expected = X.double() @ W.double().T
    for _ in range(3):  # the first call takes the slow path, later ones the fast path
        found = kernel(*({"X": X, "W": stored}[name] for name in kernel.program.inputs))
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), expected, **ROUNDED)


def kernel_of(text, **operands):
    kernel = evaluate_kernel(text, **operands)
    assert [type(step) for step in kernel.steps[:2]] == [PairView, PairView]
    return kernel


@pytest.mark.parametrize(
    "X",
    [
        rows(2, 5, 64),
        rows(5, 65)[:, 1:],
        rows(64, 5).T,
        rows(5 * 64 + 1)[1:].view(5, 64),
        rows(5, 128)[:, ::2],
    ],
    ids=["batch", "odd offset of rows", "transposed", "odd offset", "strided"],
)
def test_rows_anywhere_in_memory(X):
    W = pruned(40, 64)
    text = PRODUCT if X.dim() == 2 else "Y[b,t,n] = sum(k, X[b,t,k] * W[n,k])"
    found = sparsify.evaluate(text, X=X, W=sparsify.tensor(W, PAIRS))
    torch.testing.assert_close(found.double(), X.double() @ W.double().T, **ROUNDED)


def test_statements_behind_the_product():
    W, X, b = pruned(40, 64), rows(9, 64), rows(40)
    text = "Y[t,n] = relu(sum(k, X[t,k] * W[n,k]) + b[n]) * 2"
    found = sparsify.evaluate(text, X=X, W=sparsify.tensor(W, BLOCKS), b=b)
    torch.testing.assert_close(
        found.double(), 2 * torch.relu(X.double() @ W.double().T + b.double()), **ROUNDED
    )


def test_two_weights_of_one_input():
    V, W, X = pruned(40, 64, seed=2), pruned(40, 64), rows(9, 64)
    text = "Y[t,n] = sum(k, X[t,k] * W[n,k]) * sum(k, X[t,k] * V[n,k])"
    found = sparsify.evaluate(text, X=X, W=sparsify.tensor(W, PAIRS), V=sparsify.tensor(V, PAIRS))
    x = X.double()
    torch.testing.assert_close(found.double(), (x @ W.double().T) * (x @ V.double().T), **ROUNDED)


def test_infinite_entries_reach_the_result_from_stored_pairs_alone():
    W = torch.zeros(3, 4, dtype=torch.bfloat16)
    W[0, 0], W[1, 2], W[1, 3] = 1, 1, -1
    X = torch.ones(2, 4, dtype=torch.bfloat16)
    X[1, 1] = float("inf")  # the stored zero beside W[0, 0], as in all blocks
    found = sparsify.evaluate(PRODUCT, X=X, W=sparsify.tensor(W, PAIRS))
    expected = torch.tensor([[1, 0, 0], [float("nan"), 0, 0]], dtype=torch.bfloat16)
    torch.testing.assert_close(found, expected, equal_nan=True)
    X[1, 1:] = torch.tensor([1, float("inf"), float("inf")])
    found = sparsify.evaluate(PRODUCT, X=X, W=sparsify.tensor(W, PAIRS))
    expected[1] = torch.tensor([1, float("nan"), 0])
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_gradients():
    W, X, G = pruned(40, 63), rows(9, 63), rows(9, 40, seed=3)
    stored, given = sparsify.tensor(W, PAIRS).requires_grad_(), X.clone().requires_grad_()
    sparsify.evaluate(PRODUCT, X=given, W=stored).backward(G)
    torch.testing.assert_close(given.grad.double(), G.double() @ W.double(), **ROUNDED)
    assert stored.grad.format == stored.format
    kept = sparsify.tensor(W, PAIRS).with_values(torch.ones(stored.nnz)).to_dense() != 0
    torch.testing.assert_close(stored.grad.to_dense().double(), (G.double().T @ X.double()) * kept, **ROUNDED)


@pytest.mark.parametrize(
    ("X", "W", "error", "message"),
    [
        (
            rows(9, 64).float(),
            sparsify.tensor(pruned(40, 64), PAIRS),
            DtypeError,
            "X has dtype torch.float32",
        ),
        (rows(9, 63), sparsify.tensor(pruned(40, 64), PAIRS), ShapeError, "X has extent 63 in mode 1"),
        (rows(9, 64), sparsify.tensor(pruned(40, 64), "csr"), FormatError, "W is stored dense, compressed"),
        (rows(9, 64), pruned(40, 64), FormatError, "W is dense and was"),
    ],
)
def test_operands_that_do_not_fit(X, W, error, message):
    kernel = kernel_of(PRODUCT, X=rows(9, 64), W=sparsify.tensor(pruned(40, 64), PAIRS))
    places = {"X": X, "W": W}
    with pytest.raises(error, match=message):
        kernel(*(places[name] for name in kernel.program.inputs))


def test_later_weights_of_other_values_and_patterns():
    X = rows(9, 64)
    kernel = kernel_of(PRODUCT, X=X, W=sparsify.tensor(pruned(40, 64), PAIRS))
    for seed in range(4):
        W = pruned(40, 64, density=0.1 + 0.2 * seed, seed=seed)
        places = {"X": X, "W": sparsify.tensor(W, PAIRS)}
        for _ in range(2):
            found = kernel(*(places[name] for name in kernel.program.inputs))
            torch.testing.assert_close(found.double(), X.double() @ W.double().T, **ROUNDED)


def test_without_a_compiler():
    W, X = pruned(40, 63), rows(9, 63)
    with (
        options.override(compiler="missing-compiler"),
        pytest.warns(RuntimeWarning, match="torch's operators"),
    ):
        found = sparsify.evaluate(PRODUCT, X=X, W=sparsify.tensor(W, PAIRS))
    torch.testing.assert_close(found.double(), X.double() @ W.double().T, **ROUNDED)


def test_explained():
    kernel = kernel_of(PRODUCT, X=rows(64, 64), W=sparsify.tensor(pruned(40, 64), PAIRS))
    text = "\n".join(map(str, explain_kernel(kernel)))
    assert "step 1 of 3: W_pairs = pairs of W along k, in the same memory" in text
    assert "sums[ti] += dot_bfloat16(turned_X_pairs[kp,ti], W_pairs[n" in text
