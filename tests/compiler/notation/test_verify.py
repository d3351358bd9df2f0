"""Verification errors of notation broken by a schedule."""

from dataclasses import replace

import pytest

from sparsify.compiler.notation.nodes import Fuse, Position, Prefetch, Split
from sparsify.compiler.notation.parse import parse_notation
from sparsify.compiler.notation.verify import verify
from sparsify.errors import ScheduleError

from .test_interpret import LAYER, LAYER_SCHEDULES, setting

WRITE = "forall i: forall k: Y[i,k] = relu(w[i,k] + b[k])"


def racing(loops: str) -> str:
    """A sum with a data race: iterations of the parallel loop write the same entries."""
    return f"let w[i,k]: float32 in memory: ({loops} w[i,k] += A[i,j] * T[j,k]); {WRITE}"


@pytest.fixture(scope="module")
def notation():
    return setting(LAYER, 0, A="csr", T="dense, dense", b="dense")[1]


@pytest.mark.parametrize(("text", "relations"), LAYER_SCHEDULES)
def test_good_schedules_pass(notation, text, relations):
    verify(replace(notation, body=parse_notation(text), relations=relations))


@pytest.mark.parametrize(
    ("text", "relations", "message"),
    [
        (racing("parallel forall j: forall i: forall k:"), (), "parallel loop over j write the same entries"),
        (
            racing("parallel forall p: forall k:"),
            (Fuse("i", "j", "f"), Position("f", "p", "A")),
            "parallel loop over p write the same entries",
        ),
        ("forall i: Y[i,k] = b[k]", (), "no loop gives k"),
        ("forall i: forall k: w[i,k] += A[i,k]", (), "writes w, which is no output"),
        ("forall i: forall k: A[i,k] = 1", (), "writes A, which is no output"),
        ("forall i: forall k: Y[i,k] = w[k]", (), "reads w outside the scope"),
        ("forall i: forall k: Y[i,k] = b[i,k]", (), r"b\[i,k\] has 2 indices, b 1 modes"),
        ("forall i: forall i: forall k: Y[i,k] = b[k]", (), "two loops over i"),
        ("forall i: unrolled forall k: Y[i,k] = b[k]", (), "its extent is not a constant"),
        ("forall i: let b[k]: float32 in memory: forall k: Y[i,k] = b[k]", (), "takes a name that is in use"),
        (
            "let t: float32 in register: parallel forall i: forall k: t += b[k]",
            (),
            "parallel loop over i write the same entries|in registers outside the parallel loop",
        ),
        (
            "forall i: let t[k]: float32 in register listed: forall k: t[k] = b[k]",
            (),
            "registers have no list",
        ),
        (
            "let t[i]: float32 in memory listed: parallel forall i: forall k: t[i] += b[k]",
            (),
            "parallel loop over i adds to it; compute t inside",
        ),
        (
            "forall i: forall k: Y[i,k] = b[k]",
            (Split("i", "io", "ii", 2), Split("k", "io", "ki", 2)),
            "makes io a second time",
        ),
        (
            "forall i: forall k: Y[i,k] = b[k]",
            (Split("i", "k", "ii", 2), Split("k", "i", "ki", 2)),
            "is made of itself",
        ),
        ("forall i: forall k: Y[i,k] = b[k]", (Position("j", "p", "Z"),), "names Z, which is no tensor"),
        ("forall i: forall k: Y[i,k] = b[k]", (Prefetch("Z", 8),), "names Z, which is no tensor"),
    ],
)
def test_broken_schedules(notation, text, relations, message):
    with pytest.raises(ScheduleError, match=message):
        verify(replace(notation, body=parse_notation(text), relations=relations))
