"""`distribute w`: products of sums as sums of products."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.pipeline import plain_notation
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.rewrite.apply import apply
from sparsify.errors import ScheduleError

A = sparsify.tensor(torch.eye(4).double(), "csr")
G, X = torch.randn(3, 4).double(), torch.randn(3, 4).double()


def body(text: str, schedule: str) -> str:
    """The loops of a sampled product after a schedule."""
    kernel = evaluate_kernel(text, A=A, G=G, X=X)
    return str(apply(plain_notation(kernel.generated[-1].step), Schedule.parse(schedule)).body)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S[i,j] = A[i,j] * sum(k, G[k,i] * X[k,j])", "S[i,j] += A[i,j] * (G[k,i] * X[k,j])"),
        (
            "S[i,j] = where(stored(A[i,j]), sum(k, G[k,i] * X[k,j]), 0)",
            "S[i,j] += where(stored(A[i,j]), G[k,i] * X[k,j], 0)",
        ),
    ],
)
def test_sums_take_the_place_of_their_temporary(text: str, expected: str) -> None:
    assert body(text, "distribute w") == f"forall i: forall j: forall k: {expected}"


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("S[i,j] = A[i,j] * exp(sum(k, G[k,i] * X[k,j]))", "distribute w"),
        ("S[i,j] = A[i,j] * sum(k, G[k,i] * X[k,j])", "distribute v"),
    ],
)
def test_what_is_not_proportional_is_refused(text: str, schedule: str) -> None:
    with pytest.raises(ScheduleError):
        body(text, schedule)


def test_text_is_read_back() -> None:
    assert str(Schedule.parse("distribute w; order i, j")) == "distribute w; order i, j"
