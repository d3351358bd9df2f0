"""Temporaries inside loops: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import LAYER, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        (
            "precompute a = Y at k in register",
            "forall i: forall k: let a: float32 in register: (forall j: a += A[i,j] * T[j,k]); Y[i,k] = a",
        ),
        (
            "order i, j, k; precompute a = Y at i in thread",
            "forall i: let a[k]: float32 in thread: (forall j: forall k: a[k] += A[i,j] * T[j,k]); "
            "forall k: Y[i,k] = a[k]",
        ),
        (
            "split j jo ji 4; precompute a = Y over ji in register",
            "forall i: forall k: let a[ji]: float32 in register: (forall jo: forall ji: a[ji] += A[i,j] * T[j,k]); "
            "forall ji: Y[i,k] += a[ji]",
        ),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        (
            "precompute w at k in register",
            "forall i: forall k: let w: float32 in register: (forall j: w += A[i,j] * T[j,k]); Y[i,k] = relu(w + b[k])",
        ),
        (
            "order w: i, j, k; precompute w at i in thread",
            "forall i: let w[k]: float32 in thread: (forall j: forall k: w[k] += A[i,j] * T[j,k]); "
            "forall k: Y[i,k] = relu(w[k] + b[k])",
        ),
        (
            "precompute w at root in thread",
            "let w[i,k]: float32 in thread: (forall i: forall k: forall j: w[i,k] += A[i,j] * T[j,k]); "
            "forall i: forall k: Y[i,k] = relu(w[i,k] + b[k])",
        ),
        (
            "order w: i, k, j; precompute w at i in thread; precompute s = w at k in register",
            "forall i: let w[k]: float32 in thread: (forall k: let s: float32 in register: "
            "(forall j: s += A[i,j] * T[j,k]); w[k] = s); forall k: Y[i,k] = relu(w[k] + b[k])",
        ),
        (
            "order w: i, j, k; precompute w at i in thread; precompute s = w at j in register",
            "forall i: let w[k]: float32 in thread: (forall j: let s[k]: float32 in register: "
            "(forall k: s[k] += A[i,j] * T[j,k]); forall k: w[k] += s[k]); forall k: Y[i,k] = relu(w[k] + b[k])",
        ),
    ],
)
def test_precompute_moves_a_temporary(schedule, after):
    assert str(apply(LAYER, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("precompute a at k in register", "there is no temporary a"),
        ("precompute a = Z at k in register", "nothing is added to Z"),
        ("precompute a = Y at z in register", "there is no loop z among i, k, j"),
        ("precompute a = Y over j in register", "j has no constant extent"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
