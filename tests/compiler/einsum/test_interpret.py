"""The reference interpreter against torch, numpy and the rules of fill entries."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsify.compiler.einsum.interpret import interpret

from .programs import COO, CSR, DCSR, MATRIX, VECTOR, operand, program, random_inputs

ATTENTION = """
    S[i,j] = where(stored(M[i,j]), sum(k, Q[i,k] * K[j,k]), -inf)
    m[i] max= S[i,j]
    P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))
    d[i] += P[i,j]
    Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])"""


@pytest.mark.parametrize("seed", range(3))
def test_graph_layer(seed):
    prog = program(
        "T[j,k] = X[j,f]*W[f,k]\nY[i,k] = relu(A[i,j]*T[j,k] + b[k])", X=MATRIX, W=MATRIX, A=CSR, b=VECTOR
    )
    inputs = random_inputs(prog, seed)
    a, x, w, b = (torch.as_tensor(inputs[name][0]) for name in "AXWb")
    np.testing.assert_allclose(
        interpret(prog, inputs)["Y"][0], torch.relu(a @ (x @ w) + b), rtol=1e-12, atol=1e-12
    )


def test_an_empty_sum_is_not_stored():
    """An empty sum annihilates like an unstored entry, also with no columns at all."""
    prog = program("y[i] = sum(j, A[i,j]) * x[i]", A=CSR, x=VECTOR)
    x = np.array([np.nan, np.inf])
    for columns in (0, 3):
        given = {"A": (np.zeros((2, columns)), np.zeros((2, columns), bool)), "x": x}
        assert interpret(prog, given)["y"][0].tolist() == [0.0, 0.0]


def test_attention_with_an_empty_row():
    prog = program(ATTENTION, M=CSR, Q=MATRIX, K=MATRIX, V=MATRIX)
    inputs = random_inputs(prog, 2)
    mask = inputs["M"][1].copy()
    mask[1] = False
    inputs["M"] = (mask * 1.0, mask)
    results = interpret(prog, inputs)
    q, k, v = (torch.as_tensor(inputs[name][0]) for name in "QKV")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.as_tensor(mask), scale=1.0)
    np.testing.assert_allclose(results["Y"][0], expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(results["S"][1], mask)
    np.testing.assert_array_equal(results["P"][1], mask)
    assert (results["Y"][0][1] == 0).all()


def test_a_nan_that_meets_no_stored_entry_has_no_effect():
    prog = program("y[i] = A[i,j] * x[j]", A=CSR, x=VECTOR)
    a = np.array([[1.0, 0, 2, 0], [0, 0, 3, 0], [4, 0, 0, 0]])
    x = np.array([1.0, np.nan, 2, np.inf])
    np.testing.assert_array_equal(interpret(prog, {"A": (a, a != 0), "x": x})["y"][0], [5, 6, 4])


@pytest.mark.parametrize(
    ("text", "both"), [("A[i] + B[i]", np.nan), ("B[i] - B[i]", np.nan), ("B[i] + B[i]", -np.inf)]
)
def test_infinite_fills_that_contradict_each_other(text, both):
    """Two unstored infinite fills decide nothing; a single one decides regardless of the other's stored value."""
    vector = operand("compressed")
    forms = {"A": replace(vector, fill=np.inf), "B": replace(vector, fill=-np.inf)}
    prog = program(f"y[i] = {text}", **{name: form for name, form in forms.items() if f"{name}[" in text})
    stored = {"A": np.array([False, True, False]), "B": np.array([False, False, True])}
    given = {name: (np.where(stored[name], 2.0, forms[name].fill), stored[name]) for name in prog.inputs}
    found = interpret(prog, given)["y"][0]
    np.testing.assert_equal(found[0], both)
    if "A" in text:
        assert found[1:].tolist() == [-np.inf, np.inf]


def test_a_stored_zero_follows_ieee():
    prog = program("y[i] = A[i,j] * x[j]", A=CSR, x=VECTOR)
    a = np.array([[1.0, 0]])
    result = interpret(prog, {"A": (a, np.ones_like(a, dtype=bool)), "x": np.array([1.0, np.nan])})
    assert np.isnan(result["y"][0]).all()


def test_reductions_see_unstored_entries():
    prog = program("m[i] max= A[i,j]\nn[i] = prod(j, A[i,j])", A=DCSR)
    a = np.array([[-1.0, -2, -3, -4], [-1, 0, -2, 0]])
    results = interpret(prog, {"A": (a, a != 0)})
    np.testing.assert_array_equal(results["m"][0], [-1, 0])
    np.testing.assert_array_equal(results["n"][0], [24, 0])


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Y[i,j] = A[i,j] * x[j]", "A"),
        ("Y[i,j] = A[i,j] + B[i,j]", "A or B"),
        ("Y[i,j] = A[i,j] * B[i,j]", "A and B"),
        ("Y[i,j] = relu(A[i,j] - 1)", "A"),
        ("Y[i,j] = A[i,j] / x[j]", "A"),
        ("Y[i,j] = min(A[i,j], B[i,j])", "A or B"),
        ("Y[i,j] = A[i,j] + x[j]", "all"),
        ("Y[i,j] = where(A[i,j] > 0, x[j], 0)", "A"),
        ("Y[i,j] = where(stored(A[i,j]), x[j], B[i,j])", "A or B"),
        ("Y[i,j] = exp(C[i,j] + x[j])", "C"),
    ],
)
def test_where_results_are_stored(text, stored):
    used = {"A": COO, "B": COO, "C": operand("coo", fill=-np.inf), "x": VECTOR}
    prog = program(text, **{name: op for name, op in used.items() if f"{name}[" in text.partition("=")[2]})
    inputs = random_inputs(prog, 1)
    a, b, c = (inputs[name][1] if name in inputs else None for name in "ABC")
    masks = {"A": a, "C": c, "all": np.ones((3, 4), dtype=bool)}
    if stored == "A or B":
        masks[stored] = a | b
    if stored == "A and B":
        masks[stored] = a & b
    np.testing.assert_array_equal(interpret(prog, inputs)["Y"][1], masks[stored])


def test_windows_are_padded_with_zeros():
    prog = program("y[h] = x[2*h+r-1] * w[r]", sizes={"h": 3}, x=VECTOR, w=VECTOR)
    x, w = np.arange(1.0, 5), np.array([1.0, 10, 100])
    expected = torch.nn.functional.conv1d(
        torch.as_tensor(x)[None, None], torch.as_tensor(w)[None, None], stride=2, padding=1
    )
    np.testing.assert_allclose(interpret(prog, {"x": x, "w": w})["y"][0][:2], expected[0, 0])


def test_index_variables_are_values_and_slices_select():
    prog = program("y[i] = A[i,j] * (3*i + j)\nz[j] = A[0:3:2, j]", A=MATRIX)
    a = np.arange(12.0).reshape(3, 4)
    results = interpret(prog, {"A": a})
    np.testing.assert_allclose(results["y"][0], (a * (3 * np.arange(3)[:, None] + np.arange(4))).sum(1))
    np.testing.assert_allclose(results["z"][0], a[0] + a[2])


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (3, 0), (1, 1), (0, 0)])
def test_small_extents(rows, columns):
    prog = program("y[i] = A[i,j] * x[j]\nm[i] min= A[i,j]\nb[i] |= A[i,j] > 0", A=CSR, x=VECTOR)
    a = np.ones((rows, columns))
    results = interpret(prog, {"A": (a, a != 0), "x": np.ones(columns)})
    np.testing.assert_array_equal(results["y"][0], np.full(rows, columns))
    np.testing.assert_array_equal(results["m"][0], np.full(rows, 1.0 if columns else np.inf))
    np.testing.assert_array_equal(results["b"][0] != 0, np.full(rows, columns > 0))


def test_accumulation_over_statements():
    prog = program("y[i] = x[i]\ny[i] += A[i,j]\ny[i] += 1", A=MATRIX, x=VECTOR)
    a, x = np.arange(6.0).reshape(2, 3), np.array([10.0, 20])
    np.testing.assert_allclose(interpret(prog, {"A": a, "x": x})["y"][0], x + a.sum(1) + 1)
