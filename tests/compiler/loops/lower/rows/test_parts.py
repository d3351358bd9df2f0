"""Results with only appended levels, assembled by threads in parts of the outermost loop."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.errors import ScheduleError
from sparsify.storage.format import Format


@pytest.fixture(autouse=True)
def two_threads():
    """Threads share all work, however little."""
    with options.override(threads=2, serial_threshold=0, compiler_flags=("-O0",)):
        yield


def random(shape: tuple[int, ...], density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < density, values, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["csf", "coo"])
@pytest.mark.parametrize(
    "text", ["X[i,j,k] = A[i,j,k] + B[i,j,k]", "X[i,j,k] = A[i,j,k] * B[i,j,k]", "X[i,j,k] = 2 * A[i,j,k]"]
)
@pytest.mark.parametrize(("rows", "density"), [(200, 0.1), (3, 0.5), (200, 0.0), (1, 1.0)])
def test_parts_are_those_of_one_thread(form, text, rows, density):
    """Fewer rows than parts, no rows, and only full rows."""
    dense = [random((rows, 4, 3), density, seed) for seed in (0, 1)]
    form = Format(form, rank=3)
    given = {name: sparsify.tensor(x, form) for name, x in zip("AB", dense) if name in text}
    found = sparsify.evaluate(text, **given, format=form, schedule="order i, j, k; parallel i")
    alone = sparsify.evaluate(text, **given, format=form, schedule="order i, j, k")
    assert found.format == form
    assert torch.equal(found.coordinates(), alone.coordinates())
    assert torch.equal(found.values(), alone.values())


@pytest.mark.parametrize("form", ["dcsr", "coo"])
@pytest.mark.parametrize("left", ["csr", "dcsr"])
def test_products_of_sparse_matrices(form, left):
    a, b = random((70, 50), 0.1, 0), random((50, 40), 0.1, 1)
    schedule = "order i, j, k; precompute row_Y = Y at i in thread listed; parallel i dynamic A"
    found = sparsify.einsum(
        "ij,jk->ik", sparsify.tensor(a, left), sparsify.tensor(b, "csr"), format=form, schedule=schedule
    )
    torch.testing.assert_close(found.to_dense(), a @ b)
    assert found.nnz == int(((a != 0).float() @ (b != 0).float()).count_nonzero())


def test_the_loops_count_parts_before_they_fill_them():
    A = sparsify.tensor(torch.eye(5), "dcsr")
    kernel = evaluate_kernel("X[i,j] = A[i,j] + B[i,j]", A=A, B=A, format="dcsr", schedule="parallel i")
    text = str(kernel.generated[0].stages.loops)
    assert "count the entries of each part" in text and "X1_parts" in text and "X2_parts" in text
    assert text.count("parallel X_parts_begin") == 2


def test_chosen_without_a_schedule():
    A = sparsify.tensor(random((50, 20), 0.2, 0), "dcsr")
    kernel = evaluate_kernel("X[i,j] = A[i,j] + B[i,j]", A=A, B=A)
    assert "parallel i" in str(kernel.generated[0].stages.schedule)


def test_inner_loops_stay_in_order():
    A = sparsify.tensor(torch.eye(5), "dcsr")
    with pytest.raises(ScheduleError, match="appended in it one after the other"):
        sparsify.evaluate("X[i,j] = A[i,j] + B[i,j]", A=A, B=A, format="dcsr", schedule="parallel j")


def test_merged_coordinates_are_shared_where_the_result_is_dense():
    """Each thread searches the first coordinate of its part in each operand."""
    a, b = random((300,), 0.3, 0), random((300,), 0.3, 1)
    A, B = sparsify.tensor(a, "compressed"), sparsify.tensor(b, "compressed")
    found = sparsify.evaluate("y[i] = A[i] * B[i]", A=A, B=B, format="dense", schedule="parallel i")
    assert torch.equal(found, a * b)
