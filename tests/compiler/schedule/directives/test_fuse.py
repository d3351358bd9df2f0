"""Loops made one: fused, joined over tiles, merged: effect on notation, and refusals."""

import numpy as np
import pytest

from sparsify.compiler.notation.interpret import interpret
from sparsify.compiler.notation.parse import parse_notation
from sparsify.compiler.notation.verify import verify
from sparsify.compiler.schedule.directives import Merge, Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import BODY, LAYER, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("fuse i k f", f"forall f: forall j: {BODY}"),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "relation"),
    [
        ("fuse i k f", "fuse i k f"),
    ],
)
def test_relations(schedule, relation):
    assert [str(r) for r in apply(SPMM, Schedule.parse(schedule)).relations] == [relation]


def test_tiles_become_one_loop_where_nothing_is_stored_by_them():
    schedule = "split k ko ki 8; order w: i, j, ko, ki; precompute w at i in thread; join k in Y"
    program = apply(LAYER, Schedule.parse(schedule))
    assert str(program.body) == (
        "forall i: let w[ko,ki]: float32 in thread: (forall j: forall ko: forall ki: w[ko,ki] += A[i,j] * T[j,k]); "
        "forall k: Y[i,k] = relu(w[ko,ki] + b[k])"
    )
    verify(program)
    A, T, b = np.eye(2, 3, dtype="float32"), np.ones((3, 19), "float32"), np.arange(19, dtype="float32")
    ((result, _),) = interpret(program, {"A": A, "T": T, "b": b}).values()
    assert np.array_equal(result, np.tile(1 + b, (2, 1)))


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("fuse i k i", "a loop i exists"),
        ("join k in Y", "k is not split"),
        ("split k ko ki 4; order ko, i, ki; join k in Y", "ki is not right inside ko"),
        ("split k ko ki 4; vector ki; join k in Y", "another directive on its loops.*join first"),
        ("split j jo ji 4; join j in Y", r"A\[i,j\] is stored sparse"),
        ("fuse i j f", "j is not right inside i"),
        ("vector k; fuse i k f", "comes after another directive on its loops"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(forall j: s[i] += x[j]); forall j: m[i] max= x[j]", "forall j: (s[i] += x[j]; m[i] max= x[j])"),
        ("(forall j: s[i] += x[j]); forall j: y[j] = s[i] * x[j]", None),
        ("(forall j: s[i] += x[j]); forall k: m[i] max= x[k]", None),
        ("(forall j: s[i] += x[j]); y[i] = s[i]; forall j: m[i] max= x[j]", None),
    ],
)
def test_merge(before, after):
    program = parse_notation(f"forall i: ({before})")
    wanted = parse_notation(f"forall i: ({before if after is None else after})").body
    assert Merge("j").apply(program).body == wanted
