"""Affine and windowed indices, slices and constants, on dense and sparse operands."""

import pytest
import torch
import torch.nn.functional as F

import sparsify
from sparsify import options
from sparsify.errors import EinsumError, ParseError, ShapeError
from tests.compiler.random_programs.test_programs import lowered, run

MATRICES = ("csr", "csc", "coo", "dcsr", "bcsr(2, 3)")


def normal(*shape, density=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) < density
    return torch.where(kept, torch.randn(shape, generator=generator, dtype=torch.float64), 0)


def dense(value):
    return value.to_dense() if isinstance(value, sparsify.SparseTensor) else value


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 5, 40])
def test_convolution_of_vectors(stride, length):
    x, w = normal(length), normal(3, seed=1)
    expected = F.conv1d(x[None, None], w[None, None], padding=1, stride=stride)[0, 0]
    sizes = {"h": expected.shape[0]}
    found = sparsify.evaluate(f"y[h] = x[{stride}*h+r-1] * w[r]", x=x, w=w, sizes=sizes)
    torch.testing.assert_close(found, expected)


def test_convolution_of_images():
    x, w = normal(2, 4, 9, 11), normal(5, 4, 3, 3, seed=1)
    text = "Y[b,o,h,v] = X[b,c,h+r-1,2*v+s-1] * W[o,c,r,s]"
    found = sparsify.evaluate(text, X=x, W=w, sizes={"h": 9, "v": 6})
    torch.testing.assert_close(found, F.conv2d(x, w, padding=1, stride=(1, 2)))


@pytest.mark.parametrize("form", ["csf", "coo(3)", "dense, dense, compressed"])
def test_convolution_with_sparse_weights(form):
    x, w = normal(20, 6), normal(3, 6, 8, density=0.4, seed=1)
    expected = F.conv1d(x.T[None], w.permute(2, 1, 0), padding=1)[0].T
    W = sparsify.tensor(w, form)
    found = sparsify.evaluate("y[h,c] = x[h+r-1,f] * W[r,f,c]", x=x, W=W, sizes={"h": 20})
    torch.testing.assert_close(dense(found), expected)


@pytest.mark.parametrize("form", MATRICES[:4])
def test_convolution_of_sparse_operands(form):
    x, w = normal(20, 6, density=0.4), normal(3, 6, 8, seed=1)
    expected = F.conv1d(x.T[None], w.permute(2, 1, 0), padding=1)[0].T
    found = sparsify.evaluate(
        "y[h,c] = x[h+r-1,f] * W[r,f,c]", x=sparsify.tensor(x, form), W=w, sizes={"h": 20}
    )
    torch.testing.assert_close(dense(found), expected)


SELECTIONS = [
    ("Y[i,j] = A[2:10:2, j]", lambda a: a[2:10:2]),
    ("Y[i,j] = A[i, 2:10:2]", lambda a: a[:, 2:10:2]),
    ("Y[i,j] = A[1:9, 2:10] * 2", lambda a: a[1:9, 2:10] * 2),
    ("Y[i,j] = A[:5, :]", lambda a: a[:5]),
    ("Y[i,j] = A[3:, -5:-1]", lambda a: a[3:, -5:-1]),
    ("y[j] = A[2:10:2, j]", lambda a: a[2:10:2].sum(0)),
    ("y[j] = A[0, j]", lambda a: a[0]),
    ("y[i] = A[i, 3]", lambda a: a[:, 3]),
    ("y = A[4, 3]", lambda a: a[4, 3]),
    ("Y[i,j] = A[i, j-1] + A[i, j]", lambda a: a + F.pad(a, (1, 0))[:, :-1]),
    ("y[i] = A[i, i+1]", lambda a: torch.diagonal(a, 1)),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text, select", SELECTIONS, ids=[text for text, _ in SELECTIONS])
@pytest.mark.parametrize("form", ["dense", *MATRICES])
def test_selections(text, select, form):
    a = normal(10, 12, density=0.4)
    A = a if form == "dense" else sparsify.tensor(a, form)
    expected = select(a)
    found = dense(sparsify.evaluate(text, A=A))
    rows = expected.shape[0] if expected.dim() else 0
    torch.testing.assert_close(found[:rows] if expected.dim() else found, expected)


@pytest.mark.parametrize("index", ["(-i+3)/2", "2*i+1"])
def test_windows_that_a_condition_leaves_out(index):
    """A is not read at unstored entries of C, because `i` may be outside of A there."""
    a, c, d = normal(9, 9, density=0.5), normal(9, 9, density=0.4, seed=1), normal(9, 9, seed=2)
    c[:, 4] = 0
    rows = [(3 - i) / 2 if "/" in index else 2 * i + 1 for i in range(9)]
    read = torch.zeros(9, 9, dtype=torch.float64)
    for i, row in enumerate(rows):
        if row in range(9):
            read[i, 2:] = a[int(row), :-2]
    C = sparsify.tensor(c, "dcsc")
    text = f"y[i] = sum(k, where(stored(C[k,i]), A[{index},k-2], D[i,k]))"
    found = sparsify.evaluate(text, A=sparsify.tensor(a, "csr"), C=C, D=d)
    torch.testing.assert_close(found, torch.where(c.T != 0, read, d).sum(1))


def test_outside_of_an_operand_is_its_fill():
    x = sparsify.tensor(torch.tensor([1.0, 2.0]), "compressed", fill=1.0)
    assert dense(sparsify.evaluate("y[h] = x[h-1]", x=x, sizes={"h": 4})).tolist() == [1, 1, 2, 1]


@pytest.mark.parametrize(
    "text, error, match",
    [
        ("Y[i,j] = A[2:12:2, j]", ShapeError, r"2 \* i \+ 2 reaches 10, mode 0 of A has extent 10"),
        ("y[i] = A[i, 12]", ShapeError, "index 12 is outside mode 1, which has extent 12"),
        ("y[h] = A[2*h, 0]", EinsumError, "h of .* has no extent"),
        ("y[i] = A[i*i, 0]", EinsumError, r"the index i \* i is not affine"),
        ("Y[i,j] = A[2:10:2, j] + A[1:9, j]", ParseError, "the slices of i have 4 and 8 entries"),
    ],
)
def test_indices_that_do_not_fit(text, error, match):
    with pytest.raises(error, match=match):
        sparsify.evaluate(text, A=normal(10, 12))


GRADIENTS = [
    ("y[h] = x[2*h+r-1] * w[r]", {"x": (7,), "w": (3,)}, {"h": 4}),
    ("Y[o,h,v] = X[c,2*h+r-1,v+s-1] * W[o,c,r,s]", {"X": (2, 4, 4), "W": (2, 2, 2, 2)}, {"h": 3, "v": 3}),
    ("Y[i,j] = exp(A[1:6:2, j])", {"A": (6, 3)}, {}),
    ("y[j] = exp(A[1, j])", {"A": (6, 3)}, {}),
    ("y[i] = x[i] * w[2*i] * v[2*i]", {"x": (4,), "w": (5,), "v": (7,)}, {}),  # modes of different extents
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text, shapes, sizes", GRADIENTS, ids=[row[0] for row in GRADIENTS])
def test_gradients(text, shapes, sizes):
    operands = [normal(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes.values())]

    def run(*values):
        return sparsify.evaluate(text, sizes=sizes, **dict(zip(shapes, values, strict=True)))

    assert torch.autograd.gradcheck(run, operands)
    assert torch.autograd.gradgradcheck(run, operands)


def test_gradients_of_sparse_operands():
    place, w = torch.tensor([[0, 1, 2, 3, 5], [1, 0, 2, 1, 0]]), normal(3, 3, 2)

    def run(values, w):
        x = sparsify.tensor((place, values, (6, 3)), "csr")
        return sparsify.evaluate("y[h,c] = x[h+r-1,f] * W[r,f,c]", x=x, W=w, sizes={"h": 6})

    assert torch.autograd.gradcheck(run, (normal(5).requires_grad_(), w.requires_grad_()))


def test_extents_of_variables_that_are_alone_in_another_statement():
    A, x = normal(4, 4), normal(4, seed=1)
    text = "Y[i,k] = A[i,k] * x[k]; y[i] = sum(k, A[i,k+1] * x[k-i+1])"
    found = sparsify.evaluate(text, A=sparsify.tensor(A, "csr"), x=x)
    inside = [[(i, k) for k in range(3) if 0 <= k - i + 1 < 4] for i in range(4)]
    expected = torch.stack([sum(A[i, k + 1] * x[k - i + 1] for i, k in row) for row in inside])
    torch.testing.assert_close(dense(found), expected)


def test_threads_share_no_positions_of_one_operand_of_a_sum():
    A, B, x = normal(9, 9, density=0.4), normal(9, 9, density=0.4, seed=1), normal(9, 9, seed=2)
    operands = {"A": sparsify.tensor(A, "j: coordinate, i: coordinate"), "B": sparsify.tensor(B, "dcsr")}
    with options.override(threads=2, serial_threshold=0):
        found = sparsify.evaluate("Y[k,i] = x[k,i] * (A[i,k] + B[k,3-i])", x=x, **operands)
    turned = torch.stack([B[:, 3 - i] if i < 4 else torch.zeros(9) for i in range(9)], dim=1)
    torch.testing.assert_close(dense(found), x * (A.T + turned))


@pytest.mark.sampled(4)
def test_random_programs(tmp_path):
    done = lowered("windowed", range(26))
    assert len(done) > 15
    run(done[:12], tmp_path)


@pytest.mark.sampled(2)
def test_random_gradients():
    assert len(lowered("windowed adjoint", range(20))) > 5
