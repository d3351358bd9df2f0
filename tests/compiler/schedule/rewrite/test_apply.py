"""Each directive: its effect on notation, and its refusals."""

import numpy as np
import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.interpret import interpret
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.notation.verify import verify
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.rewrite.apply import apply
from sparsify.errors import ScheduleError
from sparsify.storage.format import Format


def plain(text: str, **formats: str) -> Notation:
    """The notation of a text before any schedule."""
    return concretize(declare(parse(text), {n: Operand(Format(f), "float32") for n, f in formats.items()}))


SPMM = plain("Y[i,k] = A[i,j] * T[j,k]", A="csr", T="dense, dense")
LAYER = plain("Y[i,k] = relu(A[i,j] * T[j,k] + b[k])", A="csr", T="dense, dense", b="dense")
BODY = "Y[i,k] += A[i,j] * T[j,k]"
APPLIED = [
    ("order i, j, k", f"forall i: forall j: forall k: {BODY}"),
    ("order Y: j, i, k", f"forall j: forall i: forall k: {BODY}"),
    ("split k ko ki 8", f"forall i: forall ko: forall ki: forall j: {BODY}"),
    ("fuse i k f", f"forall f: forall j: {BODY}"),
    ("pos j p A", f"forall i: forall k: forall p: {BODY}"),
    (
        "precompute a = Y at k in register",
        "forall i: forall k: let a: float32 in register: (forall j: a += A[i,j] * T[j,k]); Y[i,k] = a",
    ),
    (
        "order i, j, k; precompute a = Y at i in thread",
        "forall i: let a[k]: float32 in thread: (forall j: forall k: a[k] += A[i,j] * T[j,k]); forall k: Y[i,k] = a[k]",
    ),
    (
        "split j jo ji 4; precompute a = Y over ji in register",
        "forall i: forall k: let a[ji]: float32 in register: (forall jo: forall ji: a[ji] += A[i,j] * T[j,k]); "
        "forall ji: Y[i,k] += a[ji]",
    ),
    (
        "pack P = T[k, j] at i in thread",
        "forall i: let P[k,j]: float32 in thread: (forall k: forall j: P[k,j] = T[j,k]); "
        "forall k: forall j: Y[i,k] += A[i,j] * P[k,j]",
    ),
    (
        "pack P = T[k, j] at i in thread for Y",
        "forall i: let P[k,j]: float32 in thread: (forall k: forall j: P[k,j] = T[j,k]); "
        "forall k: forall j: Y[i,k] += A[i,j] * P[k,j]",
    ),
    ("vector k", f"forall i: vector forall k: forall j: {BODY}"),
    ("vector k in Y", f"forall i: vector forall k: forall j: {BODY}"),
    ("unroll k", f"forall i: unrolled forall k: forall j: {BODY}"),
    ("parallel i", f"parallel forall i: forall k: forall j: {BODY}"),
    ("parallel i in Y", f"parallel forall i: forall k: forall j: {BODY}"),
    (
        "parallel i dynamic A chunks 4",
        f"parallel forall i dynamic by positions of A chunks 4: forall k: forall j: {BODY}",
    ),
    ("transpose i k in Y", f"transposed forall i: vector forall k: forall j: {BODY}"),
]


@pytest.mark.parametrize(("schedule", "after"), APPLIED, ids=[schedule for schedule, _ in APPLIED])
def test_directives(schedule, after):
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
    ("schedule", "relation"),
    [
        ("split k ko ki 8 tail 4", "split k ko ki 8 tail 4"),
        ("fuse i k f", "fuse i k f"),
        ("pos j p A", "pos j p A"),
        ("prefetch T 16", "prefetch T 16"),
    ],
)
def test_relations(schedule, relation):
    assert [str(r) for r in apply(SPMM, Schedule.parse(schedule)).relations] == [relation]


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("split z zo zi 4", "changes nothing"),
        ("split k i ki 4", "a loop i exists"),
        ("split k ki ki 4", "a loop ki exists"),
        ("split k ko ki 4; pos j k A", "a loop k exists"),
        ("fuse i k i", "a loop i exists"),
        ("pos j j A", "a loop j exists"),
        ("join k in Y", "k is not split"),
        ("split k ko ki 4; order ko, i, ki; join k in Y", "ki is not right inside ko"),
        ("split k ko ki 4; vector ki; join k in Y", "join first"),
        ("split j jo ji 4; join j in Y", r"A\[i,j\] is stored sparse"),
        ("fuse i j f", "j is not right inside i"),
        ("precompute a at k in register", "there is no temporary a"),
        ("precompute a = Z at k in register", "nothing is added to Z"),
        ("precompute a = Y at z in register", "there is no loop z among i, k, j"),
        ("precompute a = Y over j in register", "j has no constant extent"),
        ("pack P = Z[k] at i in thread", "changes nothing"),
        ("vector z", "changes nothing"),
        ("unroll z", "changes nothing"),
        ("parallel j", "its iterations all write"),
        ("parallel z", "changes nothing"),
        ("parallel i in Z", "changes nothing"),
        ("parallel j in Y", "its iterations all write"),
        ("order x, y", "there is no loop x"),
        ("order i, z", "there is no loop z"),
        ("order i, i", "i is named twice"),
        ("order Z: i, k", "nothing is assigned to Z"),
        ("transpose i z in Y", "no loop over z around Y"),
        ("transpose z k in Y", "no loop over z around Y"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))


def test_copies_do_not_know_what_is_stored():
    program = plain("Y[i,k] = where(stored(A[i,k]), T[i,k], 0)", A="csr", T="dense, dense")
    with pytest.raises(
        ScheduleError, match=r"stored\(A\[i,k\]\) asks what is stored, which a copy does not know"
    ):
        apply(program, Schedule.parse("pack P = A[k] at i in thread"))
