"""Choice of schedules by sizes."""

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.evaluate import einsum_kernel
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.compiler.schedule.templates.candidates import candidates
from sparsify.compiler.schedule.templates.spgemm import scattered
from sparsify.storage.format import Format
from tests.compiler.random_programs.operands import operand

ROWS, NNZ = 1000, 20_000


@pytest.fixture(scope="module")
def product() -> Program:
    """`Y[i,k] = sum(j, A[i,j] * B[j,k])` with A compressed by row."""
    matrix = sparsify.tensor(torch.eye(3), "csr")
    kernel, _ = einsum_kernel("ij,jk->ik", (matrix, torch.ones(3, 4)), None, None)
    return kernel.program


def best(program: Program, sizes: Sizes, lanes: int = 8) -> str:
    (step,) = steps(program)
    assert isinstance(step, Step)
    return str(next(candidates(concretize(step.program), lanes, 4, sizes)))


def known(columns: int, *, nnz: int = NNZ, rows: int = ROWS) -> Sizes:
    return Sizes({"i": rows, "j": rows, "k": columns}, {"A": nnz})


@pytest.mark.parametrize(
    "columns, split",
    [
        (1, "split k ko ki 8;"),
        (16, "split k ko ki 16;"),
        (41, "split k ko ki 48;"),
        (128, "split k ko ki 128;"),
        (200, "split k ko ki 104 tail 96;"),
        (1433, "split k ko ki 120;"),
    ],
)
def test_tiles_divide_the_columns_evenly(product: Program, columns: int, split: str) -> None:
    assert best(product, known(columns)).startswith(split)


def test_unknown_sizes_get_what_suits_all(product: Program) -> None:
    assert best(product, UNKNOWN) == (
        "split k ko ki 128 tail 64 32 16 8; order i, ko, j, ki; precompute sum_Y = Y at ko in register; vector ki; "
        "parallel i dynamic A; prefetch B 32"
    )


@pytest.mark.parametrize(
    "columns, nnz, together",
    [(8, 40 * ROWS, 4), (8, 20 * ROWS, 0), (16, 20 * ROWS, 2), (16, 5 * ROWS, 0), (32, 50 * ROWS, 0)],
)
def test_long_rows_of_few_columns_are_summed_in_sets(
    product: Program, columns: int, nnz: int, together: int
) -> None:
    text = best(product, known(columns, nnz=nnz))
    assert (f"pos j p A; split p po pi {together};" in text) == bool(together)
    assert ("unroll pi" in text) == bool(together)


@pytest.mark.parametrize(
    "columns, rows, distance",
    [
        (128, 1_000, 0),
        (128, 19_717, 32),
        (64, 169_343, 64),
        (32, 19_717, 0),
        (32, 169_343, 128),
        (16, 10**7, 0),
    ],
)
def test_rows_from_far_are_asked_for_so_many_bytes_ahead(
    product: Program, columns: int, rows: int, distance: int
) -> None:
    found = best(product, known(columns, rows=rows, nnz=5 * rows))
    assert found.endswith(f"; prefetch B {distance}") if distance else "prefetch" not in found


@pytest.mark.parametrize("rows", [40_000, 3_600])
def test_bands_are_near(product: Program, rows: int) -> None:
    place = torch.arange(rows)
    band = torch.stack(
        [place.repeat_interleave(3), (place.repeat_interleave(3) + torch.arange(3).repeat(rows)) % rows]
    )
    random = torch.stack(
        [band[0], torch.randint(rows, (3 * rows,), generator=torch.Generator().manual_seed(0))]
    )
    for coordinates, is_far in ((band, False), (random, True)):
        matrix = sparsify.tensor(
            torch.sparse_coo_tensor(coordinates, torch.ones(3 * rows), (rows, rows))
            .coalesce()
            .to_sparse_csr()
        )
        text = best(product, sizes_of(product, (matrix, torch.empty(rows, 128))))
        assert ("prefetch B 32" in text) == is_far


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "text",
    [
        "Y[i,k] = sum(j, (A[i,j] + b[j]) * B[j,k])",
        "Y[i,k] = sum(j, A[i,j] * A[i,j] * B[j,k])",
        "Y[i,k] max= A[i,j] * B[j,k]",
        "Y[i,k] = relu(sum(j, A[i,j] * B[j,k]) + c[k])",
        "y[i] = sum(j, (A[i,j] + b[j]) * b[j])",
        "y[i] = sum(j, A[i,j] * b[j]) + sum(j, A[i,j])",
        "y[i] min= A[i,j] * b[j]",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_rows_are_right_whatever_is_summed(text: str, dtype: torch.dtype) -> None:
    seeded = torch.Generator().manual_seed(0)
    dense = torch.randn(50, 90, generator=seeded, dtype=dtype)
    dense *= torch.rand(50, 90, generator=seeded) < 0.6
    operands = {
        "B": torch.randn(90, 16, generator=seeded, dtype=dtype),
        "b": torch.randn(90, generator=seeded, dtype=dtype),
        "c": torch.randn(16, generator=seeded, dtype=dtype),
    }
    used = {name: value for name, value in operands.items() if f"{name}[" in text}
    found = sparsify.evaluate(text, A=sparsify.tensor(dense, "csr"), **used)
    torch.testing.assert_close(found, sparsify.evaluate(text, A=dense, **used), rtol=1e-4, atol=1e-4)


def test_rows_of_shifted_diagonals_are_not_scattered() -> None:
    """`B[k-1,k]` reads one row for each k, without a loop over coordinates of rows."""
    forms = {"A": "dcsr", "B": "csr"}
    statements = parse("Y[i,j] = sum(k, A[i,j] * B[k-1,k])")
    declared = {name: operand(form) for name, form in forms.items()}
    (step,) = steps(declare(statements, declared, formats={"Y": Format("csr")}), scheduled=True)
    assert isinstance(step, Step)
    found = scattered(concretize(step.program))
    assert found is not None and found.scattered == ()


@pytest.mark.parametrize(
    ("images", "columns", "order"),
    [
        (8, 300, "order n, po, o, k, pi; precompute sum_Y = Y at o"),  # rows of W read the same tile of X
        (8, 40, "order n, o, po, k, pi; precompute sum_Y = Y at po"),  # one tile
        (1, 300, "order o, n, po, k, pi; precompute sum_Y = Y at po"),  # a batch of one is nothing to share
    ],
)
def test_batches_of_matrices_with_the_same_sparse_one(images: int, columns: int, order: str) -> None:
    drawn = torch.Generator().manual_seed(0)
    dense = torch.randn(6, 9, generator=drawn) * (torch.rand(6, 9, generator=drawn) < 0.5)
    matrix, x = sparsify.tensor(dense, "csr"), torch.randn(images, 9, columns, generator=drawn)
    kernel, _ = einsum_kernel("ok,nkp->nop", (matrix, x), None, None)
    assert order in best(kernel.program, sizes_of(kernel.program, (matrix, x)))
    torch.testing.assert_close(sparsify.einsum("ok,nkp->nop", matrix, x), torch.matmul(dense, x))


@pytest.mark.parametrize(
    ("stored", "lanes", "tile"),
    [(115, 16, 256), (26, 16, 128), (115, 8, 128)],
    ids=["long rows", "short rows", "few registers"],
)
def test_tiles_of_what_stored_entries_are_places_in(stored: int, lanes: int, tile: int) -> None:
    declared = {"F": operand("dense, dense"), "W": operand("csr")}
    program = declare(parse("Y[n,o,p] = sum(k, W[o,k] * F[n,k+p])"), declared, ("Y",), sizes={"p": 3246})
    places = program.declaration("F").extents[1]
    sizes = Sizes({"n": 8, "o": 64, "k": 4000, places: 4000, "p": 3246}, {"W": 64 * stored})
    assert best(program, sizes, lanes).startswith(f"split p po pi {tile}")


@pytest.mark.parametrize(
    ("rows", "columns", "images", "lanes", "schedule"),
    [
        (14, 14, 8, 8, "split y yo yi 7; split x xo xi 16; order n, yo, o, xo, k, yi, xi"),
        (32, 32, 8, 8, "split y yo yi 3; split x xo xi 32; order n, yo, o, xo, k, yi, xi"),
        (14, 14, 8, 16, "split y yo yi 14; split x xo xi 16; order n, yo, o, xo, k, yi, xi"),
        (14, 14, 1, 8, "split y yo yi 7; split x xo xi 16; order o, n, yo, xo, k, yi, xi"),
        (5, 200, 8, 8, "split x xo xi 104"),  # a row fills the registers
    ],
)
def test_tiles_of_rows_share_stored_entries(
    rows: int, columns: int, images: int, lanes: int, schedule: str
) -> None:
    declared = {"F": operand("dense, dense"), "W": operand("csr")}
    text = f"Y[n,o,y,x] = sum(k, W[o,k] * F[n,k+{columns + 2}*y+x])"
    program = declare(parse(text), declared, ("Y",), sizes={"y": rows, "x": columns})
    sizes = Sizes({"n": images, "o": 64, "k": 4000, "F_1": 9000, "y": rows, "x": columns}, {"W": 64 * 20})
    assert best(program, sizes, lanes).startswith(schedule)
