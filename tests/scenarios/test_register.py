"""User-registered functions and monoids, through the public names: kernels, gradients and refusals."""

from math import inf

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.monoids import MONOIDS

HUBER = "where(abs(v) < 1, v*v/2, abs(v) - 0.5)"


@pytest.fixture(autouse=True)
def forget():
    """Removes the registrations of a test."""
    functions, monoids = dict(FUNCTIONS), dict(MONOIDS)
    yield
    for table, before in ((FUNCTIONS, functions), (MONOIDS, monoids)):
        for name in set(table) - set(before):
            del table[name]


def matrix():
    return torch.tensor([[1.0, 0, -4, 2], [0, 0.5, 3, 0], [0, 0, 0, 0]])


def test_functions_in_kernels_with_gradients():
    sparsify.register_function("huber", HUBER, args=("v",))
    A = sparsify.tensor(matrix(), "csr").requires_grad_()
    x = torch.tensor([0.3, -2, 1, 0.25], requires_grad=True)
    y = sparsify.evaluate("y[i] = huber(A[i,j] * x[j])", A=A, x=x)
    dense = matrix().requires_grad_()
    own = x.detach().clone().requires_grad_()
    want = torch.nn.functional.huber_loss(dense @ own, torch.zeros(3), reduction="none")
    torch.testing.assert_close(y, want)
    want.sum().backward()
    y.sum().backward()
    torch.testing.assert_close(x.grad, own.grad)
    torch.testing.assert_close(A.grad.values(), dense.grad[matrix() != 0])


def test_second_gradients_of_functions():
    sparsify.register_function("cube", "x * x * x")
    x = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: sparsify.evaluate("y[i] = cube(x[i]) * x[i]", x=x), x)


def test_monoids_in_kernels():
    longest = sparsify.register_monoid("longest", "where(abs(x) < abs(y), y, x)", 0)
    assert longest.assign == "longest="
    A = sparsify.tensor(matrix(), "csr")
    torch.testing.assert_close(sparsify.evaluate("m[i] longest= A[i,j]", A=A), torch.tensor([-4.0, 3, 0]))
    torch.testing.assert_close(
        sparsify.evaluate("m[j] = longest(i, A[i,j])", A=A), torch.tensor([1.0, 0.5, -4, 2])
    )
    sparsify.register_monoid("logsum", "max(x, y) + log(1 + exp(min(x, y) - max(x, y)))", -1e30)
    torch.testing.assert_close(
        sparsify.evaluate("m[i] logsum= A[i,j]", A=A.to_dense()), matrix().logsumexp(1), rtol=1e-5, atol=1e-5
    )


def test_statements_join_by_monoids():
    """Reductions of several statements into one tensor are combined by the monoid; booleans have no fractions."""
    sparsify.register_monoid(
        "smallest", "where(abs(x) < abs(y), x, where(abs(y) < abs(x), y, max(x, y)))", inf
    )
    A, b = sparsify.tensor(matrix(), "csr"), torch.tensor([0.25, -1.0, 0.5])
    text = """
        m[i] smallest= A[i,j] - 3
        m[i] smallest= b[i]
        t[i,j] &= A[i,j] > 0
        t[i,j] &= sigmoid(A[i,j])"""
    smallest, truth = sparsify.evaluate(text, outputs=("m", "t"), A=A, b=b)
    torch.testing.assert_close(smallest, torch.tensor([0.25, 0.0, 0.5]))
    assert torch.equal(truth.to_dense(), matrix() > 0)


def test_gradients_of_monoids():
    sparsify.register_monoid("total", "add", 0)
    sparsify.register_monoid("longest", "where(abs(x) < abs(y), y, x)", 0)
    x = torch.rand(3, 4, requires_grad=True)
    sparsify.evaluate("y[i] total= square(x[i,j])", x=x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    y = sparsify.evaluate("y[i] longest= x[i,j]", x=x)
    with pytest.raises(
        sparsify.SparsifyError, match="y is reduced by longest, whose derivative is not known"
    ):
        y.sum().backward()


def test_other_definitions_are_other_kernels():
    A = sparsify.tensor(matrix(), "csr")
    sparsify.register_monoid("pick", "where(abs(x) < abs(y), y, x)", 0)
    first = sparsify.evaluate("m[i] pick= A[i,j]", A=A)
    program = "n[i] pick= A[i,j]"
    del MONOIDS["pick"], FUNCTIONS["pick_combine"]  # as in the next process
    sparsify.register_monoid("pick", "x + y + 0 * x * y", 0)
    from sparsify.compiler import evaluate
    from sparsify.compiler.kernel import kernel
    from sparsify.compiler.loops.lower import lowering

    lowering._RECENT.clear()
    evaluate._evaluations.clear()
    evaluate._shortcuts.clear()
    kernel._planned.cache_clear()
    second = sparsify.evaluate(program.replace("n[i]", "m[i]"), A=A)
    assert first.tolist() == [-4, 3, 0]
    assert second.tolist() == [-1, 3.5, 0]


def test_the_same_again_changes_nothing():
    for _ in range(2):
        sparsify.register_function("huber", HUBER, args=("v",))
        sparsify.register_monoid("longest", "where(abs(x) < abs(y), y, x)", 0)
    with pytest.raises(sparsify.SparsifyError, match="'huber': the name is taken"):
        sparsify.register_function("huber", "x")
    with pytest.raises(sparsify.SparsifyError, match="'sum': the name is taken"):
        sparsify.register_monoid("sum", "add", 0)
    with pytest.raises(sparsify.SparsifyError, match="the identity 'a' of wrong; a number"):
        sparsify.register_monoid("wrong", "min", "a")


@pytest.mark.parametrize(
    ("name", "body", "args", "message"),
    [
        ("f", 'x; system("rm -rf /")', ("x",), "is not part of index notation"),
        ("f", "x) { return 0; } //", ("x",), "no bracket is open that"),
        ("f", "std::exp(x)", ("x",), "':'|ends before|expected"),
        ("f", "x @ x", ("x",), "'@'"),
        ("f", "f(x)", ("x",), "f calls f.x., which is not a known function of 1 arguments"),
        ("f", "exp(x, x)", ("x",), "f calls exp.*not a known function of 2 arguments"),
        ("f", "x + y", ("x",), "f reads y, which is not one of its arguments x"),
        ("f", "x[0]", ("x",), "f reads x"),
        ("f(x); //", "x", ("x",), "the name is taken or not a name"),
        ("f", "x", ("x", "x"), "the argument 'x' of f is there twice or not a name"),
        ("f", "x", ("x y",), "the argument 'x y' of f is there twice or not a name"),
        ("return", "x", ("x",), "the name is taken or not a name"),
        ("f", b"x", ("x",), "names and bodies are texts"),
        ("f", "(" * 500 + "x" + ")" * 500, ("x",), "levels of brackets"),
    ],
)
def test_hostile_definitions(name, body, args, message):
    with pytest.raises(sparsify.SparsifyError, match=message):
        sparsify.register_function(name, body, args)
    assert name not in FUNCTIONS


def test_functions_that_would_never_end():
    sparsify.register_function("twice", "x + x")
    with pytest.raises(sparsify.SparsifyError, match="parts with its functions written out"):
        sparsify.register_function("f", "twice(" * 60 + "x" + ")" * 60)
    with pytest.raises(sparsify.SparsifyError, match="name a part by a statement of its own"):
        sparsify.evaluate(f"y[i] = {'twice(' * 60}x[i]{')' * 60}", x=torch.ones(2))
