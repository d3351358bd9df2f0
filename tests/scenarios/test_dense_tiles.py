"""Dense products in register tiles: correct for every shape, chosen if torch's product is much slower."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.plan.products.dense_product import DenseProduct
from sparsify.compiler.schedule.cost.machine import scaled
from sparsify.compiler.schedule.cost.matmul import dense_us, product_us, tiled_us
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.candidates import candidates
from sparsify.compiler.schedule.templates.gemm import tile_rows
from sparsify.options import override

PRODUCT = "C[i,k] = A[i,j] * W[j,k]"
TURNED = "C[i,k] = A[i,j] * W[k,j]"
LAYER = "C[i,k] = relu(A[i,j] * W[j,k] + b[k])"
TEXTS = (PRODUCT, TURNED, LAYER)
SHAPES = [(0, 3, 4), (24, 0, 9), (13, 3, 1), (100, 5, 17), (61, 4, 40)]


def given(text: str, rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float32):
    """Operands and result in small integers, so that every order of sums gives the same result."""
    seeded = torch.Generator().manual_seed(rows)
    A, W = (
        torch.randint(-4, 5, shape, generator=seeded).to(dtype) for shape in ((rows, inner), (inner, columns))
    )
    operands, expected = {"A": A, "W": W.t().contiguous() if text is TURNED else W}, A @ W
    if text is LAYER:
        operands["b"] = torch.arange(columns, dtype=dtype) - 3
        expected = torch.relu(expected + operands["b"])
    return operands, expected


def schedule(text: str, lanes: int, columns: int, item_bytes: int = 4) -> str:
    """The one for many rows and so many columns."""
    kernel = evaluate_kernel(text, **given(text, 2, 3, 5)[0])
    step = next(step for step in steps(kernel.program, scheduled=True) if isinstance(step, Step))
    found = candidates(
        concretize(step.program), lanes, item_bytes, Sizes({"i": 10_000, "j": 8, "k": columns})
    )
    return str(next(found))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("vector_bytes", "threads"), [(64, 2), (32, 1), (16, 2)])
@pytest.mark.parametrize("text", TEXTS)
def test_right_for_all_shapes(text, vector_bytes, threads):
    for columns in (64, 40, 16, 3):
        how = schedule(text, vector_bytes // 4, columns)
        assert "precompute" in how and "panels_W" in how
        for shape in SHAPES[:: 1 if columns == 40 else 2]:
            operands, expected = given(text, *shape)
            with override(
                vector_bytes=vector_bytes, threads=threads, serial_threshold=0, compiler_flags=("-O0",)
            ):
                found = sparsify.evaluate(text, schedule=how, **operands)
            assert torch.equal(found, expected), (columns, shape)


def test_doubles():
    operands, expected = given(LAYER, 50, 7, 21, torch.float64)
    with override(vector_bytes=64, compiler_flags=("-O0",)):
        assert torch.equal(sparsify.evaluate(LAYER, schedule=schedule(LAYER, 8, 21, 8), **operands), expected)


@pytest.mark.parametrize("lanes", [8, 16])
def test_tiles_fill_the_registers(lanes):
    registers = 32 if lanes == 16 else 16
    assert registers // 2 <= 2 * tile_rows(lanes, 4) <= registers - 3
    assert f"split k ko ki {2 * lanes} masked" in schedule(PRODUCT, lanes, 1024)


def planned(text: str, sizes: dict[str, int], **settings: object):
    kernel = evaluate_kernel(text, **given(text, 3, 3, 5)[0])
    with override(**{"vector_bytes": 64, "threads": 2, **settings}):
        (step,) = steps(kernel.program, Sizes(sizes))
    return step


LARGE = {"i": 20_000, "j": 500, "k": 128}


@pytest.mark.parametrize(
    ("text", "sizes", "settings", "kind"),
    [
        (PRODUCT, LARGE, {}, Step),
        (TURNED, LARGE, {}, Step),
        (PRODUCT, {**LARGE, "i": 20}, {}, DenseProduct),
        (PRODUCT, {"j": 500, "k": 128}, {}, DenseProduct),
        (PRODUCT, LARGE, {"vector_bytes": 0}, DenseProduct),
        ("C[i,k] = A[j,i] * W[j,k]", LARGE, {}, DenseProduct),
    ],
)
def test_torchs_product_stays_unless_it_is_much_slower(text, sizes, settings, kind):
    assert isinstance(planned(text, sizes, **settings), kind)


@pytest.mark.parametrize("size", [64, 2000])
def test_the_price_is_that_of_what_runs(size):
    machine = scaled(2, 64)
    cost = (tiled_us if size > 64 else dense_us)(size, 256, 256, machine)
    assert product_us(size, 256, 256, machine) == cost


def test_gradients():
    seeded = torch.Generator().manual_seed(0)
    X, W = (torch.rand(shape, generator=seeded, dtype=torch.float64) for shape in ((6000, 96), (96, 80)))
    W.requires_grad_()
    with override(vector_bytes=64, threads=1):
        kernel = evaluate_kernel(PRODUCT, A=X, W=W)
        assert isinstance(kernel.steps[0], GeneratedStep)
        kernel(X, W).square().sum().backward()
    assert torch.allclose(W.grad, 2 * X.t() @ (X @ W.detach()))
