import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.plan.prepare.limit_merges import narrow
from tests.compiler.random_programs.operands import operand


def texts(text, forms):
    program = declare(parse(text), {name: operand(form) for name, form in forms.items()})
    return [str(statement) for statement in narrow(program).statements]


@pytest.mark.parametrize(
    "text, forms, after",
    [
        (
            "Y[i,j] = A[i,j] + B[i,j] + C[i,j] + D[i,j] + E[i,j] + F[i,j]",
            dict.fromkeys("ABCDEF", "csr"),
            [
                "w[i,j] = A[i,j] + B[i,j] + C[i,j]",
                "w1[i,j] = w[i,j] + D[i,j] + E[i,j]",
                "Y[i,j] = w1[i,j] + F[i,j]",
            ],
        ),
        # Two compressed levels multiply the cases.
        (
            "Y[i,j] = A[i,j] + B[i,j] + C[i,j]",
            dict.fromkeys("ABC", "dcsr"),
            ["w[i,j] = A[i,j] + B[i,j]", "Y[i,j] = w[i,j] + C[i,j]"],
        ),
        # A sum over fewer is as it was, and so are products, which meet where all are stored.
        ("Y[i,j] = A[i,j] + B[i,j] + C[i,j]", dict.fromkeys("ABC", "csr"), None),
        (
            "Y[i,j] = A[i,j] * B[i,j] * C[i,j] * D[i,j] * E[i,j]",
            dict.fromkeys("ABCDE", "compressed, compressed"),
            None,
        ),
        # Dense operands are everywhere.
        ("Y[i,j] = A[i,j] + B[i,j] + C[i,j] + D[i,j] + E[i,j]", dict.fromkeys("ABCDE", "dense, dense"), None),
    ],
)
def test_narrow(text, forms, after):
    assert texts(text, forms) == (after or [str(s) for s in parse(text)])


@pytest.mark.sampled(2)
def test_many_operands():
    """Sums of ten patterns, and of products of them: dense reference, with gradients."""
    draw = torch.Generator().manual_seed(0)
    names = "ABCDEFGHKL"
    keep = torch.rand(10, 6, 7, generator=draw) < 0.3
    dense = dict(zip(names, torch.randn(10, 6, 7, dtype=torch.float64, generator=draw) * keep, strict=True))
    forms = ("csr", "coo", "csc", "dcsr")
    given = {
        name: sparsify.tensor(x, forms[n % 4]).requires_grad_() for n, (name, x) in enumerate(dense.items())
    }
    total = sparsify.evaluate("Y[i,j] = " + " + ".join(f"{name}[i,j]" for name in names), **given)
    torch.testing.assert_close(total.to_dense(), sum(dense.values()))
    (found,) = torch.autograd.grad(total.to_dense().sin().sum(), given["F"])
    wanted = sum(dense.values()).cos()
    torch.testing.assert_close(found.values(), wanted[tuple(given["F"].coordinates())])


def test_a_choice_of_many_modes_is_a_sum_of_two():
    indices = "[i,j,k,l,m,n]"
    forms = dict.fromkeys("wCD", ", ".join(["compressed"] * 6))
    assert texts(f"Y{indices} = where(w{indices}, C{indices}, D{indices})", forms) == [
        f"w1{indices} = where(w{indices}, C{indices}, -0.0)",
        f"w2{indices} = where(w{indices}, -0.0, D{indices})",
        f"Y{indices} = w1{indices} + w2{indices}",
    ]


@pytest.mark.parametrize(
    "dtype, fills",
    [
        (torch.float64, (0, 0)),
        (torch.float32, (2, float("inf"))),
        (torch.int64, (0, 3)),
        (torch.bool, (False, True)),
    ],
)
def test_choices_in_two_parts(monkeypatch, dtype, fills):
    """Entries, fills, signed zeros and NaN are chosen as by torch."""
    monkeypatch.setattr("sparsify.compiler.plan.prepare.limit_merges.MOST_BODIES", 1)
    draw = torch.Generator().manual_seed(1)
    a, b, c, d = torch.randint(-2, 3, (4, 4, 6), generator=draw).to(dtype)
    if dtype.is_floating_point:
        d[:, 0] = float("nan")
    forms = dict(zip("CD", (sparsify.tensor(x, "csr", fill=f) for x, f in zip((c, d), fills)), strict=True))
    text = "Y[i,j] = where(A[i,j] > B[i,j], C[i,j], D[i,j])"
    for form in forms.values():
        form.values()[::3] = -0.0
    found = sparsify.evaluate(text, A=sparsify.tensor(a, "csr"), B=sparsify.tensor(b, "csr"), **forms)
    wanted = torch.where(a > b, *(form.to_dense() for form in forms.values()))
    assert found.dtype is dtype
    torch.testing.assert_close(found.to_dense(), wanted, equal_nan=True)
    zeros = wanted == 0
    assert torch.equal(torch.signbit(found.to_dense())[zeros], torch.signbit(wanted)[zeros])
