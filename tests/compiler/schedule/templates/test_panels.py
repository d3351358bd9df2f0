"""Schedules for products with packed weights: chosen by sizes, right for every shape."""

import re
from itertools import product

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.candidates import candidates
from sparsify.compiler.schedule.templates.panels import panels
from sparsify.compiler.schedule.templates.sparse_linear import tile_rows
from sparsify.options import override
from tests.compiler.schedule.prototypes import check_memory, lowered
from tests.sampling import sampled

PANELS = "j/16: dense, i: dense, j%16: compressed(crd=int16)"
BLOCKS = "j/16: dense, i/{0}: dense, j%16: compressed(crd=int16), i%{0}: dense"
FORMATS = ("csr", PANELS, BLOCKS.format(4), BLOCKS.format(8), "i/8: dense, j: compressed, i%8: dense")
LAYER = "Y[t,n] = relu(X[t,k] * W[n,k] + b[n])"
TEXTS = (LAYER, "Y[t,n] = X[t,k] * W[n,k]", "Y[s,t,n] = X[s,t,k] * W[n,k] + b[n]")


def given(text: str, rows: int, format: str, *, outputs: int = 24, columns: int = 50, density: float = 0.4):
    """Operands of a layer in small integers, so that every order of sums gives the same result."""
    seeded = torch.Generator().manual_seed(rows)
    X = torch.randint(
        -4, 5, (2, rows, columns) if "X[s" in text else (rows, columns), generator=seeded
    ).float()
    W = torch.randint(1, 5, (outputs, columns), generator=seeded).float()
    W *= torch.rand(outputs, columns, generator=seeded) < density
    operands = {"X": X, "W": sparsify.tensor(W, format)}
    if "b[" in text:
        operands["b"] = torch.randint(-4, 5, (outputs,), generator=seeded).float()
    return operands, sparsify.evaluate(text, **(operands | {"W": W}))


def program(text: str, format: str) -> Program:
    kernel = evaluate_kernel(text, **given(text, 2, format)[0])
    return kernel.program


def best(text: str, format: str, sizes: Sizes) -> str:
    (step,) = steps(program(text, format))
    assert isinstance(step, Step)
    return str(next(candidates(concretize(step.program), 8, 4, sizes)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text, format", sampled(product(TEXTS, FORMATS), 2))
def test_right_for_all_rows(text, format):
    for rows in (0, 1, 3, 70):  # the first kernel has to be right for all other sizes, too
        operands, expected = given(text, rows, format)
        assert torch.equal(sparsify.evaluate(text, **operands), expected)


@pytest.mark.parametrize(("vector_bytes", "threads"), [(0, 1), (16, 2)])
def test_widths(vector_bytes, threads):
    with override(vector_bytes=vector_bytes, threads=threads, serial_threshold=0):
        for format in (PANELS, BLOCKS.format(4)):
            operands, expected = given(LAYER, 21, format)
            assert torch.equal(sparsify.evaluate(LAYER, **operands), expected)


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_empty_and_full_weights(density):
    operands, expected = given(LAYER, 9, PANELS, density=density)
    assert torch.equal(sparsify.evaluate(LAYER, **operands), expected)


@pytest.mark.parametrize(("rows", "expected"), [(None, 64), (1, 8), (70, 40), (128, 64), (9, 16)])
def test_tiles_divide_the_rows_evenly(rows, expected):
    assert tile_rows(rows, 8, 4) == expected


@pytest.mark.parametrize("height", [4, 8])
@pytest.mark.parametrize(("lanes", "registers"), [(8, 16), (16, 32)])
def test_sums_of_blocks_fit_beside_what_they_read(height, lanes, registers):
    vectors = tile_rows(960, lanes, 4, height) // lanes
    assert 8 <= height * vectors <= registers - vectors - 1


@pytest.mark.parametrize("width", [16, 96, 97, 768])
@pytest.mark.parametrize("lanes", [8, 16])
def test_tiles_are_wide_where_the_nearest_cache_holds_their_panel(lanes, width):
    rows = tile_rows(4096, lanes, 4, width=width)
    assert (rows == 8 * lanes) == (lanes == 8 or width * 8 * lanes * 4 <= 48 << 10)


def test_wide_registers_hold_more_sums_of_blocks():
    assert tile_rows(1024, 16, 4, 4) == 64


def test_outputs_that_no_block_divides():
    with override(compiler_flags=("-O0",)):
        for outputs, columns in ((25, 1), (0, 7), (7, 0)):
            operands, expected = given(LAYER, 9, BLOCKS.format(4), outputs=outputs, columns=columns)
            assert torch.equal(sparsify.evaluate(LAYER, **operands), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_narrow_values_are_summed_as_the_rows_are(dtype):
    text = "Y[t,n] = s[n] * sum(k, X[t,k] * W[n,k]) + b[n]"
    with override(compiler_flags=("-O0",)):
        for rows in (1, 9):
            operands, _ = given(LAYER, rows, PANELS)
            W = operands["W"].to_dense()
            narrow = operands | {"W": sparsify.tensor(W.to(dtype), PANELS), "s": torch.arange(24.0)}
            Y = sparsify.evaluate(text, **narrow)
            expected = torch.arange(24.0) * (operands["X"] @ W.T) + operands["b"]
            assert Y.dtype == torch.float32
            assert torch.equal(Y, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("height", "rows"), [(4, 9), (8, 5)])
def test_blocks_that_few_rows_meet_are_shared_by_threads(height, rows):
    form = BLOCKS.format(height)
    schedule = best(LAYER, form, Sizes({"t": rows, "n": 40 * height, "k": 50}, {"W": 24_000}))
    assert "split no nos nop" in schedule
    assert "parallel nos dynamic" in schedule
    part = int(re.search(r"nop (\d+)", schedule)[1])
    schedule = schedule.replace(f"nop {part}", "nop 2")  # so that there are several, and a cut one
    with override(vector_bytes=32):
        for outputs, columns in ((10 * height, 24), (5 * height + 3, 21), (2, 5), (0, 8)):
            operands, expected = given(LAYER, rows, form, outputs=outputs, columns=columns)
            check_memory(LAYER, schedule, operands, expected)


def test_padding_that_is_stored_needs_no_second_kernel():
    blocks = BLOCKS.format(4)
    with override(vector_bytes=32):
        for rows, outputs in ((17, 24), (3, 21)):
            schedule = best(LAYER, blocks, sizes(128))
            operands, expected = given(LAYER, rows, blocks, outputs=outputs)
            assert "n_extent % 4" not in str(lowered(LAYER, schedule, operands))
            check_memory(LAYER, schedule, operands, expected)


def test_sums_over_padding_leave_it_out():
    text, blocks = "Y[t,k] = X[t,n] * W[n,k]", "i/4: dense, i%4: dense, j: compressed"
    given_, _ = given(LAYER, 9, blocks, outputs=21)
    operands = {"X": given_["X"][:, :21].contiguous(), "W": given_["W"]}
    expected = operands["X"] @ operands["W"].to_dense()
    schedule = "order t, no, ni, k; parallel t"
    assert "n_extent % 4" in str(lowered(text, schedule, operands))
    with override(vector_bytes=32):
        check_memory(text, schedule, operands, expected)


def sizes(rows: int, stored: int = 24_000) -> Sizes:
    return Sizes({"t": rows, "n": 240, "k": 200}, {"W": stored})


def test_one_row_is_not_turned():
    text = best(LAYER, "csr", sizes(1))
    assert "pack" not in text
    assert "split p po pi 8" in text and "vector pi" in text
    assert "split p po pi 4" in best(LAYER, PANELS, sizes(1))  # rows have few entries in a panel


def test_few_rows_share_the_outputs():
    assert "parallel ns dynamic" in best(LAYER, PANELS, sizes(20))
    assert "parallel to dynamic" in best(LAYER, PANELS, sizes(128))
    assert "parallel nos dynamic" in best(LAYER, BLOCKS.format(4), sizes(12))
    assert "parallel to dynamic" in best(LAYER, BLOCKS.format(4), sizes(50))


def test_sets_hide_the_latency_where_rows_are_long():
    assert "split p po pi" in best(LAYER, "csr", sizes(8))
    assert "split p po pi" not in best(LAYER, "csr", sizes(8, stored=1000))
    assert "split p po pi" not in best(LAYER, "csr", sizes(64))


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("Y[n,t] = W[n,k] * Z[k,t]", PANELS),  # lanes run along the rows of Z as it is
        ("y[n] = W[n,k] * z[k]", PANELS),
        ("Y[t,n] = X[t,k] * W[n,k]", "coo"),
        ("Y[t,n] max= X[t,k] * W[n,k]", PANELS),
        ("Y[t,n] = relu(X[t,k]) * W[n,k]", PANELS),
        ("y[n] = W[n,k] * D[k,k]", PANELS),  # a diagonal
    ],
)
def test_other_products_are_left_alone(text, format):
    operands = {
        "X": torch.ones(3, 50),
        "Z": torch.ones(50, 3),
        "z": torch.ones(50),
        "D": torch.ones(50, 50),
        "W": sparsify.tensor(torch.eye(24, 50), format),
    }
    used = {name: value for name, value in operands.items() if f"{name}[" in text}
    kernel = evaluate_kernel(text, **used)
    generated = [step for step in steps(kernel.program) if isinstance(step, Step)]
    assert generated
    assert all(panels(concretize(step.program)) is None for step in generated)


def test_tiles_that_do_not_stay_near_are_left_alone():
    far = Sizes({"t": 64, "n": 24, "k": 100_000}, {"W": 1000})
    assert "pack" not in best(LAYER, "csr", far)
