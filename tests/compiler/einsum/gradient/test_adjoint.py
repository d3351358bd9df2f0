"""Adjoint programs against central differences of the interpreted program."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.gradient.adjoint import adjoint
from sparsify.compiler.einsum.gradient.rules import needs_only_result
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.verify import verify
from sparsify.errors import EinsumError
from tests.compiler.einsum.programs import (
    COO,
    CSC,
    CSR,
    DCSR,
    MATRIX,
    VECTOR,
    operand,
    program,
    random_inputs,
)
from tests.compiler.einsum.test_interpret import ATTENTION

STEP = 1e-6
SAME = operand("csr", pattern_of="A")
CASES = [
    ("Y[i,k] = relu(A[i,j]*T[j,k] + b[k])", {"A": CSR, "T": MATRIX, "b": VECTOR}),
    (
        "T[j,k] = X[j,f]*W[f,k]\nY[i,k] = relu(A[i,j]*T[j,k] + b[k])",
        {"X": MATRIX, "W": MATRIX, "A": CSR, "b": VECTOR},
    ),
    ("S[i,j] = A[i,j] * sum(k, Q[i,k]*K[j,k])", {"A": CSR, "Q": MATRIX, "K": MATRIX}),
    ("C[i,j] = A[i,k]*B[k,j]", {"A": CSR, "B": CSR}),
    ("C[i,j] = A[i,k]*B[k,j]", {"A": CSC, "B": CSC}),
    ("C[i,j] = A[i,j] + B[i,j]", {"A": CSR, "B": COO}),
    ("C[i,j] = A[i,j] * B[i,j]", {"A": CSR, "B": SAME}),
    ("y[i] = A[i,j]*x[j]", {"A": DCSR, "x": VECTOR}),
    ("B[i,j] = exp(A[i,j]) * x[j]", {"A": CSR, "x": VECTOR}),
    ("T[i,j] = A[i,j]*x[j]\nY[i,k] = T[i,j]*C[j,k]", {"A": CSR, "x": VECTOR, "C": MATRIX}),
    ("m[i] max= A[i,j]", {"A": CSR}),
    ("m[i] max= A[i,j]\nm[i] max= B[i,j]", {"A": MATRIX, "B": MATRIX}),
    ("y[i] = min(j, A[i,j]*x[j])", {"A": MATRIX, "x": VECTOR}),
    ("y[i] = prod(j, A[i,j])", {"A": MATRIX}),
    ("p[i] *= A[i,j]", {"A": CSR}),
    ("y[i] = silu(A[i,j]*x[j])*2 + sum(j, x[j])", {"A": MATRIX, "x": VECTOR}),
    ("y[i] = sum(j, A[i,j]) * sum(j, A[i,j]*x[j])", {"A": MATRIX, "x": VECTOR}),
    ("y[i] = sum(j, max(k, A[i,k]) * A[i,j])", {"A": MATRIX}),
    ("y[i] = A[i,j]*x[j] / (2 + x[j]*x[j])", {"A": MATRIX, "x": VECTOR}),
    ("y[i] = exp(A[i,j]*x[j])\ny[i] += A[i,j]", {"A": CSR, "x": VECTOR}),
    ("y[h] = x[2*h+r-1]*w[r]", {"x": VECTOR, "w": VECTOR}),
    ("y = A[i,i]*A[0,1]", {"A": MATRIX}),
    ("y[i] = A[i,2]*A[1,i]", {"A": operand("csr")}),
    (ATTENTION, {"M": CSR, "Q": MATRIX, "K": MATRIX, "V": MATRIX}),
]


def fill_gradients(results: Mapping, names: Mapping[str, str]) -> dict:
    """Random gradients of the outputs, on the patterns of the results."""
    rng = np.random.default_rng(7)
    seeds = {}
    for output, name in names.items():
        stored = results[output][1]
        seeds[name] = (np.where(stored, rng.standard_normal(stored.shape), 0), stored)
    return seeds


def check(prog: Program, wrt: Sequence[str], inputs: dict) -> Program:
    """Compares the adjoint with central differences; the step leaves a relative error of 1e-6."""
    grads = {output: f"g_{output}" for output in prog.outputs}
    reverse = adjoint(prog, wrt, grads)
    verify(reverse)
    results = interpret(prog, inputs)
    seeds = fill_gradients(results, grads)
    gradients = interpret(reverse, {name: {**inputs, **results, **seeds}[name] for name in reverse.inputs})

    def loss(changed: dict) -> float:
        values = interpret(prog, changed)
        total = 0.0
        for output, name in grads.items():
            seed, stored = seeds[name]
            total += float(np.sum(np.where(stored, values[output][0] * seed, 0)))
        return total

    for name, gradient in zip(wrt, reverse.outputs, strict=True):
        values, mask = inputs[name]
        found = gradients[gradient][0]
        assert found.shape == values.shape
        assert (found[~mask] == 0).all()
        for place in map(tuple, np.argwhere(mask)):
            ends = []
            for step in (STEP, -STEP):
                moved = values.copy()
                moved[place] += step
                ends.append(loss({**inputs, name: (moved, mask)}))
            slope = (ends[0] - ends[1]) / (2 * STEP)
            assert abs(slope - found[place]) <= 1e-6 * (1 + abs(slope)), f"d {name}{list(place)}"
    return reverse


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "operands"), CASES, ids=[text.split("\n")[0] or "attention" for text, _ in CASES]
)
def test_first_and_second_derivatives(text, operands):
    prog = program(text, sizes={"h": 3} if "[h]" in text else None, **operands)
    inputs = random_inputs(prog, 3)
    wrt = [name for name in prog.inputs if name != "M"]
    reverse = check(prog, wrt, inputs)
    seeds = fill_gradients(interpret(prog, inputs), {o: f"g_{o}" for o in prog.outputs})
    both = join(prog, reverse)
    check(both, [name for name in both.inputs if name != "M"], {**inputs, **seeds})


def join(forward: Program, reverse: Program) -> Program:
    """Program of the forward and the backward pass, with gradients as outputs."""
    declarations = {d.name: d for d in (*forward.declarations, *reverse.declarations)}
    inputs = dict.fromkeys((*forward.inputs, *(n for n in reverse.inputs if n.startswith("g_"))))
    statements = forward.statements + reverse.statements
    joined = Program(
        statements, tuple(declarations.values()), tuple(inputs), reverse.outputs, forward.extents
    )
    verify(joined)
    return joined


POSITIVE = {"log", "log10", "sqrt", "root", "acosh", "pow"}


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if any(f.derivative) and not f.body])
def test_derivatives_of_functions(name):
    arity = FUNCTIONS[name].arity
    args = ", ".join(f"{letter}[i]" for letter in "xyz"[:arity])
    prog = program(
        f"v[i] = {FUNCTIONS[name].symbol}{args}" if name == "neg" else f"v[i] = {name}({args})",
        **dict.fromkeys("xyz"[:arity], VECTOR),
    )
    inputs = random_inputs(prog, 5)
    for key, (values, mask) in inputs.items():
        scaled = 1.5 + np.abs(values) if name in POSITIVE else 0.9 * np.tanh(values)
        inputs[key] = (scaled, mask)
    check(prog, prog.inputs, inputs)


def test_ties_share_equally():
    prog = program("m[i] max= A[i,j]\nn[i] = max(x[i], z[i])", A=MATRIX, x=VECTOR, z=VECTOR)
    prog = Program(prog.statements, prog.declarations, prog.inputs, ("m", "n"), prog.extents)
    reverse = adjoint(prog, ("A", "x", "z"), {"m": "g_m", "n": "g_n"})
    a = np.array([[1.0, 3, 3, 2], [5, 5, 5, 5], [0, 1, 0, 0]])
    x, z = np.array([1.0, 2, 3]), np.array([1.0, 3, 2])
    known = {"A": a, "x": x, "z": z, "g_m": np.array([4.0, 4, 4]), "g_n": np.array([2.0, 2, 2])}
    known |= {
        name: values for name, (values, _) in interpret(prog, {n: known[n] for n in prog.inputs}).items()
    }
    gradients = interpret(reverse, {name: known[name] for name in reverse.inputs})
    d_a, d_x, d_z = (gradients[name][0] for name in reverse.outputs)
    np.testing.assert_array_equal(d_a, [[0, 2, 2, 0], [1, 1, 1, 1], [0, 4, 0, 0]])
    np.testing.assert_array_equal(d_x, [1, 0, 2])
    np.testing.assert_array_equal(d_z, [1, 2, 0])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros):
    prog = program("p = prod(i, x[i])", x=VECTOR)
    x = np.array([2.0, 3, 4])
    x[:zeros] = 0
    check(prog, ("x",), {"x": (x, np.ones(3, dtype=bool))})


def test_an_infinite_value_passes_no_gradient_through_relu():
    prog = program("y[i] = relu(x[i]) * z[i]", x=VECTOR, z=VECTOR)
    reverse = adjoint(prog, ("x",), {"y": "g"})
    known = {"x": np.array([-1.0, 1]), "z": np.array([np.inf, 2]), "g": np.ones(2)}
    assert interpret(reverse, {n: known[n] for n in reverse.inputs})[reverse.outputs[0]][0].tolist() == [0, 2]


def test_printed_adjoint_of_a_graph_layer():
    prog = program("Y[i,k] = relu(A[i,j]*T[j,k] + b[k])", A=CSR, T=MATRIX, b=VECTOR)
    reverse = adjoint(prog, ("A", "T", "b"), {"Y": "g"})
    assert [str(statement) for statement in reverse.statements] == [
        "d_w[i,k] = where(Y[i,k] > 0, g[i,k], 0)",
        "d_A[i,j] = where(stored(A[i,j]), sum(k, d_w[i,k] * T[j,k]), 0)",
        "d_T[j,k] = sum(i, d_w[i,k] * A[i,j])",
        "d_b[k] = sum(i, d_w[i,k])",
    ]
    assert reverse.inputs == ("A", "T", "Y", "g")
    assert reverse.declaration("d_A").pattern_of == "A"
    assert reverse.declaration("d_T").format.is_dense


def test_only_what_is_asked_is_computed():
    prog = program("Y[i,k] = A[i,j]*T[j,k]", A=CSR, T=MATRIX)
    reverse = adjoint(prog, ("T",), {"Y": "g"})
    assert [str(s) for s in reverse.statements] == ["d_T[j,k] = sum(i, g[i,k] * A[i,j])"]


def test_products_that_are_projected_are_confined_one_by_one():
    """Triangle counting: each contribution is computed only at the stored entries of the matrix."""
    prog = program("a = A[i,j] * A[j,k] * A[k,i]", A=CSR)
    statements = [str(statement) for statement in adjoint(prog, ("A",), {"a": "g"}).statements]
    assert len(statements) == 4
    assert all(text.split(" = ")[1].startswith("where(stored(A[i,j]), sum(") for text in statements[:3])
    assert statements[3] == "d_A[i,j] = p_A[i,j] + p_A1[i,j] + p_A2[i,j]"


def test_an_input_without_effect_has_a_zero_gradient():
    prog = program("y[i] = x[i] + sign(z[i])", x=VECTOR, z=VECTOR)
    check(prog, ("z", "x"), random_inputs(prog, 0))


def test_derivatives_by_the_result_alone():
    assert all(map(needs_only_result, ("relu", "exp", "tanh", "sigmoid", "sqrt", "reciprocal")))
    assert not any(map(needs_only_result, ("gelu", "silu", "mul", "div", "sin")))


def test_mistakes():
    prog = program("y[i] = x[i]", x=VECTOR)
    with pytest.raises(EinsumError, match="z is not an input"):
        adjoint(prog, ("z",), {"y": "g"})
    with pytest.raises(EinsumError, match="x is not an output"):
        adjoint(prog, ("x",), {"x": "g"})
    prog = program("p[i] *= A[i,j]\np[i] *= x[i]", A=MATRIX, x=VECTOR)
    with pytest.raises(EinsumError, match="p is multiplied by several statements"):
        adjoint(prog, ("A",), {"p": "g"})
