"""Mixtures of experts by torch's products: results are those of the kernel; other programs are refused."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.passes.choose.expert_products import expert_products
from tests.scenarios.test_mixture import CLOSE, GATED, PLAIN, QUICK, SINGLE, operands


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("text", [PLAIN, GATED, SINGLE])
@pytest.mark.parametrize("tokens", [1, 2, 19])
def test_equal_to_the_kernel(text, tokens, dtype):
    given = operands(text, tokens, 5, 12, 9, dtype)
    given["G"] = sparsify.tensor(given["G"], "csc")
    with sparsify.options.override(**QUICK):
        kernel = evaluate_kernel(text, **given)
        values = [given[name] for name in kernel.program.inputs]
        expected = kernel(*values)
    products = expert_products(kernel.program)
    found = products(values)
    assert found.dtype == dtype
    if dtype == torch.bfloat16:  # rows between the products are rounded, too
        torch.testing.assert_close(found, expected, rtol=2**-5, atol=2**-5 * float(expected.abs().max()))
    else:
        torch.testing.assert_close(found, expected, **CLOSE[dtype])


def test_no_token_chooses_an_expert():
    given = operands(PLAIN, 4, 5, 12, 9)
    given["G"] = sparsify.tensor(torch.zeros(4, 5), "csc")
    with sparsify.options.override(**QUICK):
        kernel = evaluate_kernel(PLAIN, **given)
    found = expert_products(kernel.program)([given[name] for name in kernel.program.inputs])
    assert found.shape == (4, 12)
    assert not found.any()


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (PLAIN, "csr"),  # lists no tokens of experts
        ("Y[t,o] = relu(sum(e, d, G[t,e] * X[t,d] * V[e,d,o]))", "csc"),  # a function of the sum over experts
        ("Y[e,o] = sum(t, d, G[t,e] * X[t,d] * V[e,d,o])", "csc"),
    ],
)
def test_other_programs_are_refused(text, form):
    given = operands(PLAIN if "U" in text else SINGLE, 4, 5, 12, 9)
    given["G"] = sparsify.tensor(given["G"], form)
    used = {name: value for name, value in given.items() if f"{name}[" in text}
    with sparsify.options.override(**QUICK):
        kernel = evaluate_kernel(text, **used)
    assert expert_products(kernel.program) is None
