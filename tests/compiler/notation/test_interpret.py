"""The interpreter of scheduled notation agrees with the interpreter of einsum programs."""

from dataclasses import replace

import numpy as np
import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.interpret import interpret as interpret_program
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.interpret import interpret
from sparsify.compiler.notation.nodes import Fuse, Notation, Position, Split
from sparsify.compiler.notation.parse import parse_notation
from sparsify.compiler.notation.verify import verify
from sparsify.storage.format import Format

SHAPES = {"A": (4, 5), "B": (4, 5), "T": (5, 7), "X": (4, 7), "b": (7,), "x": (5,)}


def setting(text: str, seed: int, **formats: str):
    """A program, its unscheduled notation, its inputs and its results."""
    program = declare(parse(text), {name: Operand(Format(f), "float64") for name, f in formats.items()})
    rng = np.random.default_rng(seed)
    inputs = {}
    for name in program.inputs:
        values = rng.standard_normal(SHAPES[name])
        mask = np.ones(values.shape, dtype=bool)
        if not program.declaration(name).format.is_dense:
            mask = rng.random(values.shape) < 0.5
            mask[1] = False
        inputs[name] = (np.where(mask, values, 0), mask)
    return program, concretize(program), inputs, interpret_program(program, inputs)


def check(notation: Notation, inputs, expected) -> None:
    """Verifies and runs a notation; the tolerance allows other orders of sums."""
    verify(notation)
    results = interpret(notation, inputs)
    for name in notation.outputs:
        np.testing.assert_allclose(results[name][0], expected[name][0], rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(results[name][1], expected[name][1])


LAYER = "Y[i,k] = relu(A[i,j]*T[j,k] + b[k])"
LAYER_SCHEDULES = [
    (
        "parallel forall i by positions of A: let w[k]: float64 in register: "
        "(forall p: forall k: w[k] += A[i,j] * T[j,k]); forall k: Y[i,k] = relu(w[k] + b[k])",
        (Position("j", "p", "A"),),
    ),
    (
        "parallel forall i: let w[k]: float64 in thread: (forall ko: vector forall ki: forall j: "
        "w[k] += A[i,j] * T[j,k]); forall ko: forall ki: Y[i,k] = relu(w[k] + b[k])",
        (Split("k", "ko", "ki", 3),),
    ),
    (
        "let w[i,k]: float64 in memory: (forall po: forall pi: forall k: w[i,k] += A[i,j] * T[j,k]); "
        "forall i: forall k: Y[i,k] = relu(w[i,k] + b[k])",
        (Fuse("i", "j", "f"), Position("f", "p", "A"), Split("p", "po", "pi", 4)),
    ),
    (
        "forall i: forall ko: let w[ki]: float64 in register: (forall po: forall pi: unrolled forall ki: "
        "w[ki] += A[i,j] * T[j,k]); unrolled forall ki: Y[i,k] = relu(w[ki] + b[k])",
        (Split("k", "ko", "ki", 4, (2, 1)), Position("j", "p", "A"), Split("p", "po", "pi", 2)),
    ),
    (
        "let w[i,k]: float64 in memory: (forall f: forall k: w[i,k] += A[i,j] * T[j,k]); "
        "forall io: forall ii: forall k: Y[i,k] = relu(w[i,k] + b[k])",
        (Fuse("i", "j", "f"), Split("i", "io", "ii", 3)),
    ),
]


@pytest.mark.parametrize(
    ("text", "relations"), LAYER_SCHEDULES, ids=["rows", "tiles", "positions", "registers", "fused"]
)
def test_schedules_of_a_graph_layer(text, relations):
    _, notation, inputs, expected = setting(LAYER, 0, A="csr", T="dense, dense", b="dense")
    check(replace(notation, body=parse_notation(text), relations=relations), inputs, expected)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("text", "formats"),
    [
        (LAYER, {"A": "csr", "T": "dense, dense", "b": "dense"}),
        (LAYER, {"A": "coo", "T": "dense, dense", "b": "dense"}),
        ("y[i] = A[i,j] * x[j]", {"A": "csc", "x": "dense"}),
        ("S[i,j] = A[i,j] * sum(k, X[i,k] * T[j,k])", {"A": "csr", "X": "dense, dense", "T": "dense, dense"}),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": "csr", "B": "csr"}),
        ("C[i,j] = A[i,j] * B[i,j]", {"A": "csr", "B": "dcsr"}),
        ("m[i] max= A[i,j]", {"A": "csr"}),
        ("p[i] *= A[i,j]", {"A": "csr"}),
        ("T[i,j] = A[i,j] * x[j]\nC[i,j] = T[i,j] + B[i,j]", {"A": "csr", "B": "csr", "x": "dense"}),
        ("y[i] = A[i,j]\ny[i] += B[i,j]", {"A": "csr", "B": "csr"}),
    ],
)
def test_unscheduled_programs(text, formats, seed):
    _, notation, inputs, expected = setting(text, seed, **formats)
    check(notation, inputs, expected)


def test_column_major_positions():
    _, notation, inputs, expected = setting("y[i] = A[i,j] * x[j]", 0, A="csc", x="dense")
    body = parse_notation("forall j: forall p: y[i] += A[i,j] * x[j]")
    check(replace(notation, body=body, relations=(Position("i", "p", "A"),)), inputs, expected)


def test_conditions_and_values_of_index_variables():
    _, notation, inputs, _ = setting("y[i] = A[i,j] * x[j]", 0, A="csr", x="dense")
    notation = replace(notation, body=parse_notation("forall i: forall j: if j < 2: y[i] += x[j] * i"))
    result = interpret(notation, inputs)["y"][0]
    np.testing.assert_allclose(result, np.arange(4) * inputs["x"][0][:2].sum())


def test_a_temporary_starts_anew_with_each_let():
    _, notation, inputs, expected = setting("y[i] = A[i,j] * x[j]", 0, A="csr", x="dense")
    body = "forall i: let t: float64 in register: (forall j: t += A[i,j] * x[j]); y[i] = t"
    check(replace(notation, body=parse_notation(body)), inputs, expected)


def test_a_loop_over_the_whole_inside_of_a_part_is_about_the_part():
    _, notation, inputs, expected = setting("z[k] = relu(b[k])", 0, b="dense")
    body = (
        "forall s: let t[p,ki]: float64 in memory: (forall p: forall ki: t[p,ki] = relu(b[k])); "
        "forall k: z[k] = t[p,ki]"
    )
    parts = (Split("k", "ko", "ki", 2), Split("ko", "s", "p", 3))
    check(replace(notation, body=parse_notation(body), relations=parts), inputs, expected)


def test_reading_what_was_never_written_shows():
    _, notation, inputs, _ = setting("y[i] = A[i,j] * x[j]", 0, A="csr", x="dense")
    body = (
        "forall i: let t[j]: float64 in register: (forall jo: if jo < 2: t[j] = x[j]); forall j: y[i] += t[j]"
    )
    split = (Split("j", "jo", "ji", 1),)
    body = body.replace("if jo < 2:", "forall ji: if jo < 2:")
    result = interpret(replace(notation, body=parse_notation(body), relations=split), inputs)["y"][0]
    assert np.isnan(result).all()


def test_positions_above_lanes_are_those_of_blocks():
    """A block of rows lists a column once if any of its rows has an entry in the column."""
    text, form = "Y[t,n] = X[t,k] * W[n,k]", "i/2: dense, j: compressed, i%2: dense"
    shapes, rng = {"X": (3, 5), "W": (4, 5)}, np.random.default_rng(3)
    program = declare(
        parse(text), {"X": Operand(Format("dense, dense"), "float64"), "W": Operand(Format(form), "float64")}
    )
    inputs = {
        name: (rng.standard_normal(shape), np.ones(shape, dtype=bool)) for name, shape in shapes.items()
    }
    inputs["W"][1][:] = rng.random(shapes["W"]) < 0.4
    inputs["W"] = (np.where(inputs["W"][1], inputs["W"][0], 0), inputs["W"][1])
    relations = (*concretize(program).relations, Position("k", "p", "W"))
    split = next(r for r in relations if isinstance(r, Split))
    body = f"forall t: forall {split.outer}: forall p: forall {split.inner}: Y[t,n] += X[t,k] * W[n,k]"
    notation = replace(concretize(program), body=parse_notation(body), relations=relations)
    check(notation, inputs, interpret_program(program, inputs))
