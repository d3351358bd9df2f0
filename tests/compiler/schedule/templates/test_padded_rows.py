"""Rows of scattered sums are padded to whole registers if masked stores and loads would stall."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import einsum_kernel
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.pipeline import schedules
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.options import override

ROWS, COLUMNS = 40, 50
FORCED = "split k ko ki {}; order ko, j, i, ki; precompute {} at ko in memory; vector ki"


def matrix(form: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """A band of five diagonals, stored and dense."""
    dense = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    apart = torch.arange(ROWS)[:, None] - torch.arange(COLUMNS)
    dense *= (apart.abs() <= 2).to(dtype)
    return sparsify.tensor(dense, form), dense


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)


def chosen(columns: int, width: int = 64, dtype: torch.dtype = torch.float32, **known: float) -> str:
    """Best schedule of a product with a matrix in CSC; `known` overrides the sizes of a mesh."""
    A, B = matrix("csc", dtype)[0], drawn(COLUMNS, columns, dtype=dtype)
    program = einsum_kernel("ij,jk->ik", (A, B), None, None)[0].program
    rows, stored = int(known.get("rows", 30_000)), int(known.get("stored", 1_500_000))
    crowdings = {"A": known.get("crowding", 0.9)}
    sizes = Sizes({"i": rows, "j": rows, "k": columns}, {"A": stored}, crowdings=crowdings)
    return str(next(iter(schedules(program, concretize(program), width, sizes))))


@pytest.mark.parametrize(
    ("columns", "width", "tile"),
    [
        *[(1, 64, 4), (2, 64, 4), (3, 64, 4), (5, 64, 8), (7, 64, 8), (9, 64, 16), (20, 64, 32)],
        *[(1, 16, 4), (3, 16, 4), (7, 16, 8), (4, 64, 0), (8, 64, 0), (16, 64, 0), (12, 16, 0), (24, 32, 0)],
    ],
)
def test_rows_that_fill_no_registers_are_padded(columns: int, width: int, tile: int) -> None:
    text = chosen(columns, width)
    assert ("precompute sum_Y = Y at ko in memory" in text) == bool(tile)
    assert not tile or text.startswith(f"split k ko ki {tile};")


def test_padding_has_to_pay() -> None:
    assert "in memory" in chosen(7, stored=90_000)
    assert "in memory" in chosen(1, dtype=torch.float64)
    assert "in memory" not in chosen(7, crowding=0.01)  # rows that were written long ago
    assert "in memory" not in chosen(7, rows=10_000_000)  # rows that are hardly written
    assert "in memory" not in chosen(100, stored=150_000)  # most registers are whole


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        *((torch.float32, width) for width in (0, 16, 32, 64)),
        *((torch.float64, width) for width in (16, 64)),
        *((dtype, 32) for dtype in (torch.int64, torch.bfloat16)),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [3, 20])
def test_products_of_columns_are_right(dtype: torch.dtype, width: int, columns: int) -> None:
    """As chosen, and forced, in one tile and in two."""
    (A, dense), B = matrix("csc", dtype), drawn(COLUMNS, columns, dtype=dtype)
    rows = "w" if dtype == torch.bfloat16 else "rows = Y"  # sums of halves have rows of float32 anyway
    forced = FORCED.format(16 if columns > 16 else 4, rows)
    with override(vector_bytes=width):
        found = [sparsify.einsum("ij,jk->ik", A, B, schedule=text) for text in (None, forced)]
    for one in found:
        torch.testing.assert_close(one, dense @ B, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "Y[i,k] = relu(sum(j, A[i,j] * B[j,k]) + c[k])",
        "Y[i,k] max= A[i,j] * B[j,k]",
        "Y[i,k] += A[i,j] * B[j,k] * B[j,k]",
    ],
)
def test_what_is_computed_of_the_sums_is_right(text: str) -> None:
    A, dense = matrix("csc")
    given = {"B": drawn(COLUMNS, 7), **({"c": drawn(7)} if "c[k]" in text else {})}
    expected = sparsify.evaluate(text, A=sparsify.tensor(dense, "csr"), **given)
    torch.testing.assert_close(sparsify.evaluate(text, A=A, **given), expected)


def test_gradients_of_narrow_rows_are_padded() -> None:
    """`A^T G` reads the same rows of A as the product, and scatters its sums."""
    (A, dense), B = matrix("csr"), drawn(COLUMNS, 7).requires_grad_()
    G = drawn(ROWS, 7)
    sparsify.einsum("ij,jk->ik", A, B).backward(G)
    torch.testing.assert_close(B.grad, dense.T @ G)
    program = einsum_kernel("ji,jk->ik", (A, G), None, None)[0].program
    found = next(iter(schedules(program, concretize(program), 32, sizes_of(program, (A, G)))))
    assert "precompute sum_Y = Y at ko in memory" in str(found)
