"""Random schedules give the correct result or are refused, by the interpreter with bounds checks."""

import pytest
import torch

import sparsify
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.plan.plan import steps
from sparsify.errors import DiscordantError, ScheduleError
from sparsify.options import override
from tests.compiler.schedule.draw import draw
from tests.compiler.schedule.prototypes import check_memory, declared, normal, sparse

ROWS, INNER, COLUMNS = 6, 5, 7
SEEDS = 30


def sparse_matrix(rows: int, columns: int, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in a format, and dense."""
    matrix = sparse(rows, columns, density=0.4, dtype=torch.float64)
    return sparsify.tensor(matrix, form), matrix


def product() -> tuple[str, dict[str, torch.Tensor], torch.Tensor]:
    A, W, b = normal(ROWS, INNER), normal(INNER, COLUMNS, seed=1), normal(COLUMNS, seed=2)
    return "C[i,k] = relu(A[i,j] * W[j,k] + b[k])", {"A": A, "W": W, "b": b}, torch.relu(A @ W + b)


def sparse_product() -> tuple[str, dict[str, torch.Tensor], torch.Tensor]:
    (A, dense), W = sparse_matrix(ROWS, INNER, "csr"), normal(INNER, COLUMNS, seed=1)
    return "C[i,k] = A[i,j] * W[j,k]", {"A": A, "W": W}, dense @ W


def blocked_product() -> tuple[str, dict[str, torch.Tensor], torch.Tensor]:
    blocks = "i/4: dense, j/2: compressed, i%4: dense, j%2: dense"
    (A, dense), W = sparse_matrix(ROWS, INNER, blocks), normal(INNER, COLUMNS, seed=1)
    return "C[i,k] = A[i,j] * W[j,k]", {"A": A, "W": W}, dense @ W


def linear() -> tuple[str, dict[str, torch.Tensor], torch.Tensor]:
    X, b = normal(ROWS, INNER), normal(COLUMNS, seed=2)
    W, dense = sparse_matrix(COLUMNS, INNER, "j/4: dense, i: dense, j%4: compressed")
    return "Y[t,n] = relu(X[t,k] * W[n,k] + b[n])", {"X": X, "W": W, "b": b}, torch.relu(X @ dense.T + b)


def transposition() -> tuple[str, dict[str, torch.Tensor], torch.Tensor]:
    A = normal(ROWS, COLUMNS)
    return "C[i,j] = A[j,i] + 2", {"A": A}, (A.T + 2).contiguous()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, SEEDS, 10))
@pytest.mark.parametrize("make", [product, sparse_product, blocked_product, linear, transposition])
def test_right_or_refused(make, first):
    text, operands, expected = make()
    step = steps(declared(text, operands), scheduled=True)[0]
    for seed in range(first, first + 10):
        schedule = draw(concretize(step.program), seed)
        try:
            with override(vector_bytes=(0, 16, 32)[seed % 3]):
                check_memory(text, schedule, operands, expected, threads=1 + seed % 3)
        except (ScheduleError, DiscordantError):
            continue
        except AssertionError as error:
            error.add_note(f"{text} under `{schedule}`, seed {seed}")
            raise


def test_enough_are_not_refused():
    text, operands, expected = product()
    step = steps(declared(text, operands), scheduled=True)[0]
    done = 0
    for seed in range(SEEDS):
        try:
            check_memory(text, draw(concretize(step.program), seed), operands, expected)
            done += 1
        except (ScheduleError, DiscordantError):
            continue
    assert done > SEEDS // 8
