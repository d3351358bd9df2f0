import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import sparsify
from sparsify.errors import InvalidTensorError, UnsupportedOperatorError
from tests.ops.operands import full, sparse

A = sparse(5, 4)
X = full(4, 3)
TRANSFORMS = {
    "grad": lambda f: grad(f)(X),
    "grad of grad": lambda f: grad(lambda x: grad(f)(x).sum())(X),
    "vjp": lambda f: vjp(f, X)[1](torch.tensor(2.0, dtype=torch.float64))[0],
    "jvp": lambda f: jvp(f, (X,), (X * 2,))[1],
    "jacrev": lambda f: jacrev(f)(X),
    "jacfwd": lambda f: jacfwd(f)(X),
    "hessian": lambda f: hessian(f)(X),
    "vmap": lambda f: vmap(f)(torch.stack([X, 2 * X])),
    "vmap along the last mode": lambda f: vmap(f, in_dims=2)(torch.stack([X, 2 * X], 2)),
    "vmap of grad": lambda f: vmap(grad(f))(torch.stack([X, 2 * X])),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_as_of_dense_operands(name):
    got = TRANSFORMS[name](lambda x: sparsify.einsum("ij,jk->ik", A, x).pow(3).sum())
    torch.testing.assert_close(got, TRANSFORMS[name](lambda x: (A.to_dense() @ x).pow(3).sum()))


def test_programs_of_several_results():
    def residual(x, b):
        return sparsify.evaluate("r[i] = b[i] - A[i,j]*x[j]\ns += r[i]*r[i]", ("r", "s"), A=A, x=x, b=b)

    def dense(x, b):
        r = b - A.to_dense() @ x
        return r, (r * r).sum()

    x, b = X[:, 0].clone(), full(5)
    torch.testing.assert_close(
        grad(lambda *a: residual(*a)[1] + residual(*a)[0][2], (0, 1))(x, b),
        grad(lambda *a: dense(*a)[1] + dense(*a)[0][2], (0, 1))(x, b),
    )
    torch.testing.assert_close(jvp(residual, (x, b), (b[:4], b)), jvp(dense, (x, b), (b[:4], b)))
    torch.testing.assert_close(
        vmap(residual, (1, None))(X, b), vmap(lambda x, b: dense(x, b), (1, None))(X, b)
    )


def test_sparse_tensors_made_within_are_constants():
    twice = A.to_dense() * 2
    expected = grad(lambda x: (twice[1:] @ x).sum())(X)
    for made in (
        lambda: (A + A)[1:],
        lambda: sparsify.tensor(twice, "csc")[1:],
        lambda: torch.cat([2 * A[:2], 2 * A[2:]])[1:],
    ):
        torch.testing.assert_close(grad(lambda x, made=made: (made() @ x).sum())(X), expected)


def test_what_cannot_be_followed():
    with pytest.raises(UnsupportedOperatorError, match=r"torch\.func of a sparse result, Y; a dense result"):
        grad(lambda x: sparsify.evaluate("Y[i,j] = A[i,j] * x[j]", A=A, x=x).values().sum())(X[:, 0])
    with pytest.raises(InvalidTensorError, match=r"values that torch\.func follows; make it outside"):
        grad(lambda v: sparsify.tensor((A.coordinates(), v, A.shape)).values().sum())(A.values())


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_tangents_of_dense_operands(needs_gradient):
    def tangent(product):
        x = X.clone().requires_grad_(needs_gradient)
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(product(forward_ad.make_dual(x, 2 * X)).pow(3)).tangent.clone()

    for _ in range(4):  # the shortcut knows such operands then
        A @ X
    torch.testing.assert_close(tangent(A.__matmul__), tangent(A.to_dense().__matmul__))


def test_tangents_of_several_statements():
    """The adjoint reads T, which is neither an operand nor a result."""
    W = torch.randn(X.shape[1], 3, dtype=X.dtype)
    text = "T[j,m] = sum(k, X[j,k] * W[k,m])\nY[i,m] = sum(j, A[i,j] * T[j,m])"
    found = jvp(lambda x: sparsify.evaluate(text, A=A, X=x, W=W), (X,), (2 * X,))
    torch.testing.assert_close(found, (A.to_dense() @ X @ W, 2 * A.to_dense() @ X @ W))


def test_tangents_that_cannot_be_followed():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X[:, 0], X[:, 1])
        with pytest.raises(UnsupportedOperatorError, match="tangents of a sparse result, Y; a dense result"):
            sparsify.evaluate("Y[i,j] = A[i,j] * x[j]", A=A, x=x)
        values = forward_ad.make_dual(A.values(), A.values())
        with pytest.raises(InvalidTensorError, match="values with tangents"):
            sparsify.tensor((A.coordinates(), values, A.shape))
