"""Statements in the style of users of sparse tensors, by theme, against dense float64."""

from math import inf

import pytest
import torch
from torch.nn import functional

import sparsify
from sparsify.errors import EinsumError, FormatError, ScheduleError, ShapeError, UnsupportedProgramError
from sparsify.storage.format import Format
from tests.compiler.random_programs.catalogue import drawn, unchanged, value

FORMATS = ("csr", "coo", "csc", "dcsr", "bcsr(2,3)", "dia", "ell")
N = 8
P, J = torch.arange(N)[:, None], torch.arange(N)


def filled(x, fill):
    """A matrix with a nonzero fill."""
    return torch.where(x == 0, fill, x)


# Capitals but for X and Z are sparse; the fill of each is what most of its entries are.
DENSE = {
    "A": drawn(N, N),
    "B": drawn(N, N, seed=1),
    "C": drawn(N, N, seed=2),
    "G": (drawn(N, N, seed=3) != 0).double(),
    "M": drawn(N, N, seed=4) != 0,
    "U": filled(drawn(N, N, seed=5).abs(), inf),
    "L": filled(drawn(N, N, seed=6), -inf),
    "H": filled(drawn(N, N, seed=7), 1.0),
    "X": drawn(N, 3, seed=8, density=1.0),
    "Z": drawn(2, 3, 6, 7, seed=9, density=1.0),
    "K": drawn(4, 3, 3, 3, seed=10),
    "x": drawn(N, seed=11, density=1.0),
    "b": drawn(N, seed=12, density=1.0),
    "w": drawn(3, seed=13, density=1.0),
    "v": drawn(3, seed=14, density=1.0),
    "q": drawn(N, seed=15, density=1.0) > 0,
}
FILLS = {"U": inf, "L": -inf, "H": 1.0}
IS_DENSE = frozenset("XZxbwvq")
FORMAT_OF = {"K": "csf"}

SUMS = (
    ("y = sqrt(A[i,j]**2)", lambda A, **_: A.norm()),
    ("y[i] = sqrt(A[i,j]**2)", lambda A, **_: A.norm(dim=1)),
    ("y = x[i] * A[i,j] * x[j]", lambda A, x, **_: x @ A @ x),
    ("y[i] = A[i,j] * (x[j] - b[i])", lambda A, x, b, **_: (A * (x - b[:, None])).sum(1)),
    ("y[i] = (A[i,j] + B[i,j]) * x[j]", lambda A, B, x, **_: (A + B) @ x),
    ("y[i] = A[i,j]*A[j,k]*x[k]", lambda A, x, **_: A @ (A @ x)),
    ("y[k] = A[j,i]*A[j,k]*x[i]", lambda A, x, **_: A.T @ (A @ x)),
    ("Y[i,k] = relu(A[i,j] * X[j,k] + w[k])", lambda A, X, w, **_: torch.relu(A @ X + w)),
    ("p[i] *= 1 + A[i,j]", lambda A, **_: (1 + A).prod(1)),
    ("p[i] *= H[i,j]", lambda H, **_: H.prod(1)),
    ("a[i] |= A[i,j] > 1", lambda A, **_: (A > 1).any(1)),
    ("a[i] &= A[i,j] > -1", lambda A, **_: (A > -1).all(1)),
    ("n[i] += stored(G[i,j])", lambda G, **_: (G != 0).sum(1)),
    ("y[i] += exp(A[i,j])", lambda A, **_: A.exp().sum(1)),
    ("D[i,j] += abs(A[i,k] - B[j,k])", lambda A, B, **_: torch.cdist(A, B, 1)),
    ("D[i,j] += (X[i,k] - X[j,k])**2", lambda X, **_: (X[:, None] - X).square().sum(2)),
    (
        "l += where(stored(G[i,j]), (A[i,j] - sum(k, X[i,k]*X[j,k]))**2, 0)",
        lambda G, A, X, **_: (G * (A - X @ X.T) ** 2).sum(),
    ),
    (
        "m[i,k] max= where(stored(G[i,j]), X[j,k], -inf)",
        lambda G, X, **_: torch.where(G[:, :, None] != 0, X, -inf).amax(1),
    ),
)
ENTRIES = (
    ("Y[i,j] = A[i,j] - B[j,i] + C[i,j]", lambda A, B, C, **_: A - B.T + C),
    ("Y[i,j] = min(A[i,j], B[i,j])", lambda A, B, **_: torch.minimum(A, B)),
    ("Y[i,j] = where(A[i,j] > 0, A[i,j], 0.1*A[i,j])", lambda A, **_: functional.leaky_relu(A, 0.1)),
    ("Y[i,j] = where(M[i,j], x[i]*b[j], 0)", lambda M, x, b, **_: M * torch.outer(x, b)),
    ("Y[i,j] = A[i,j] <= B[i,j]", lambda A, B, **_: A <= B),
    ("Y[i,j] = logical_xor(A[i,j], B[i,j])", lambda A, B, **_: torch.logical_xor(A, B)),
    ("Y[i,j] = atan2(A[i,j], 2 + B[i,j])", lambda A, B, **_: torch.atan2(A, 2 + B)),
    ("Y[i,j] = 2 ** A[i,j]", lambda A, **_: 2**A),
    ("Y[i,j] = mod(A[i,j], 0.3)", lambda A, **_: torch.remainder(A, 0.3)),
    ("Y[i,j] = mod(3*i + j, j + 1) * A[i,j]", lambda A, **_: torch.remainder(3 * P + J, J + 1) * A),
    ("Y[i,j] = A[i,j] * (i > j)", lambda A, **_: A.tril(-1)),
    ("Y[i,j] = where(i == j, x[i], 0) - A[i,j]", lambda A, x, **_: torch.diag(x) - A),
    ("y max= where(A[i,j] != 0, abs(i-j), 0)", lambda A, **_: ((P - J).abs() * (A != 0)).amax()),
)
FILLED = (
    ("d[i] min= U[i,j] + x[j]", lambda U, x, **_: (U + x).amin(1)),
    ("d[i,k] min= U[i,j] + U[j,k]", lambda U, **_: (U[:, :, None] + U).amin(1)),
    ("Y[i,j] = exp(L[i,j])", lambda L, **_: L.exp()),
    ("Y[i,j] = 2*L[i,j] + b[i]", lambda L, b, **_: 2 * L + b[:, None]),
    ("Y[i,j] = min(U[i,j], A[i,j])", lambda U, A, **_: torch.minimum(U, A)),
    ("Y[i,j] = H[i,j] * A[i,j]", lambda H, A, **_: H * A),
    ("Y[i,k] = H[i,j] * X[j,k]", lambda H, X, **_: H @ X),
    ("y[j] max= L[i,j]", lambda L, **_: L.amax(0)),
)
PLACES = (
    ("Y[i,j] = A[::-1, j]", lambda A, **_: A.flip(0)),
    ("Y[i,j] = A[6:1:-2, :-1]", lambda A, **_: A[[6, 4, 2], :-1]),
    ("y[i] = A[i,-1] * x[i]", lambda A, x, **_: A[:, -1] * x),
    ("y[i] = x[-2::-3]", lambda x, **_: x[[6, 3, 0]]),
    ("Y[i,j] = A[i, 7-j]", lambda A, **_: A.flip(1)),
    ("Y[i,j] = A[i,j] * B[i+2,j]", lambda A, B, **_: A * functional.pad(B, (0, 0, 0, 2))[2:]),
    ("y[k] = A[i, i+k]", lambda A, **_: torch.stack([A.diagonal(n).sum() for n in range(N)])),
    (
        "y[i] = x[i-1] - 2*x[i] + x[i+1]",
        lambda x, **_: functional.pad(x, (1, 1))[:-2] - 2 * x + functional.pad(x, (1, 1))[2:],
    ),
    (
        "y[h,k] max= A[2*h+r, 2*k+s]",
        lambda A, **_: functional.max_pool2d(A[None], 2)[0],
    ),
    (
        "y[n,o,h,k] = Z[n,c,h+r-1,k+s-1] * K[o,c,r,s]",
        lambda Z, K, **_: functional.conv2d(Z, K, padding=1),
    ),
    (
        "y[n,o,h,k] = Z[n,c,2*h+r,2*k+s] * K[o,c,r,s]",
        lambda Z, K, **_: functional.conv2d(Z, K, stride=2),
    ),
)
SIZES = {
    "Y[i,j] = A[i, 7-j]": {"j": N},
    "y[k] = A[i, i+k]": {"k": N},
    "y[h,k] max= A[2*h+r, 2*k+s]": {"h": 4, "k": 4, "r": 2, "s": 2},
    "y[n,o,h,k] = Z[n,c,h+r-1,k+s-1] * K[o,c,r,s]": {"h": 6, "k": 7},
    "y[n,o,h,k] = Z[n,c,2*h+r,2*k+s] * K[o,c,r,s]": {"h": 2, "k": 3},
}
PROGRAMS = (
    ("r[i] = b[i] - A[i,j]*x[j]; s = r[i]*r[i]", lambda A, b, x, **_: (b - A @ x).square().sum()),
    (
        "s[i] = where(i == j, 0, A[i,j]) * x[j]; y[i] = (b[i] - s[i]) / (9 + b[i])",  # Jacobi
        lambda A, b, x, **_: (b - (A @ x - A.diag() * x)) / (9 + b),
    ),
    (
        "o[i] = G[i,j]; p[i] = x[i] / max(o[i], 1); r[i] = 0.15/8 + 0.85 * sum(j, G[j,i] * p[j])",  # PageRank
        lambda G, x, **_: 0.15 / 8 + 0.85 * (G.T @ (x / G.sum(1).clamp(min=1))),
    ),
    (
        "f[i] |= logical_and(M[j,i], q[j]); n[i] = logical_and(f[i], logical_not(q[i]))",  # breadth first
        lambda M, q, **_: (M.T.long() @ q.long() > 0) & ~q,
    ),
    (
        "S[i,j] = where(stored(G[i,j]), sum(k, G[i,k]*G[j,k]), 0); T[i,j] = where(S[i,j] >= 2, 1, 0)",  # truss
        lambda G, **_: (G @ G.T * G >= 2).long(),
    ),
    (
        "d[i] = G[i,j]; N[i,j] = G[i,j] / sqrt((1 + d[i]) * (1 + d[j])); Y[i,k] = N[i,j] * X[j,k]",  # GCN
        lambda G, X, **_: G / ((1 + G.sum(1))[:, None] * (1 + G.sum(1))).sqrt() @ X,
    ),
    (
        "c[i] += stored(G[i,j]); s[i,k] = G[i,j]*X[j,k]; Y[i,k] = s[i,k] / max(c[i], 1)",  # mean of neighbours
        lambda G, X, **_: G @ X / G.sum(1, keepdim=True).clamp(min=1),
    ),
    (
        "s[i] = X[i,k]*w[k]; t[j] = X[j,k]*v[k]; "
        "E[i,j] = where(stored(G[i,j]), where(s[i] + t[j] > 0, s[i] + t[j], 0.2*(s[i] + t[j])), -inf); "
        "m[i] max= E[i,j]; P[i,j] = exp(E[i,j] - where(m[i] == -inf, 0, m[i])); d[i] += P[i,j]; "
        "Y[i,k] = P[i,j] * X[j,k] / where(d[i] == 0, 1, d[i])",  # graph attention
        lambda G, X, w, v, **_: (
            torch.where(G != 0, functional.leaky_relu((X @ w)[:, None] + X @ v, 0.2), -inf)
            .softmax(1)
            .nan_to_num()
            @ X
        ),
    ),
)
# Fills that contradict each other decide nothing.
CONTRADICTING = (
    ("Y[i,j] = U[i,j] + L[i,j]", lambda U, L, **_: U + L),
    ("Y[i,j] = U[i,j] - U[j,i]", lambda U, **_: U - U.T),
)
ROWS = (*SUMS, *ENTRIES, *FILLED, *PLACES, *PROGRAMS, *CONTRADICTING)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda n: ROWS[n][0][:40])
def test_as_dense(number):
    """Each in one format, another one in each row."""
    text, reference = ROWS[number]
    given = {}
    for name, dense in DENSE.items():
        if f"{name}[" not in text.replace("max=", ""):
            continue
        form = FORMAT_OF.get(name, FORMATS[number % len(FORMATS)])
        form = "csr" if name == "G" and "stored" in text else form  # formats with room store zeros too
        made = name in IS_DENSE or sparsify.tensor(dense, form, fill=FILLS.get(name, 0))
        given[name] = dense if name in IS_DENSE else made
    given = {name: x for name, x in given.items() if name not in _assigned(text)}
    found = unchanged(tuple(given.values()), lambda: sparsify.evaluate(text, sizes=SIZES.get(text), **given))
    wanted = reference(**DENSE)
    assert value(found).dtype == wanted.dtype
    torch.testing.assert_close(value(found), wanted, equal_nan=True)


def _assigned(text):
    """The names on the left of the statements."""
    return {statement.strip().partition("[")[0] for statement in text.split(";")}


A = sparsify.tensor(DENSE["A"], "csr")
MISTAKES = (
    (lambda: sparsify.evaluate(3, A=A), EinsumError, "evaluate of a int; statements"),
    (lambda: sparsify.einsum(3, A), EinsumError, 'einsum of a int; subscripts, "ij,jk->ik", come first'),
    (lambda: sparsify.einsum("ij->i", A, format=3), FormatError, 'format=3; "csr"'),
    (lambda: sparsify.einsum("ij->i", A, schedule=3), ScheduleError, "schedule=3; text as sparsify.explain"),
    (lambda: sparsify.evaluate("y[i] = A[i,j]", 3, A=A), EinsumError, "outputs=3; the name of a result"),
    (lambda: sparsify.evaluate("y[i] = A[i,j]", ["A", "y"], A=A), EinsumError, "outputs has 'A', an operand"),
    (lambda: sparsify.evaluate("y[i] = A[i,j]", ["y", "y"], A=A), EinsumError, "outputs has 'y' twice"),
    (lambda: sparsify.evaluate("y[i] = A[i,j]", A=A, sizes=3), EinsumError, "sizes=3; extents by"),
    (lambda: sparsify.evaluate("y[i] = 2*i", sizes={"i": -5}), ShapeError, "the extent -5 of i; a whole"),
    (lambda: sparsify.evaluate("y[i] = 2*i", sizes={"i": 2.5}), ShapeError, "the extent 2.5 of i; a whole"),
    (lambda: sparsify.evaluate("y[i] = A[i,8]", A=A), ShapeError, "index 8 is outside mode 1"),
    (lambda: sparsify.evaluate("y[i] = A[i,-9]", A=A), ShapeError, "index -1 is outside mode 1"),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda n: MISTAKES[n][2])
def test_mistakes(number):
    compute, error, text = MISTAKES[number]
    with pytest.raises(error) as raised:
        compute()
    assert text in str(raised.value)


@pytest.mark.parametrize("format", ["dense, compressed(crd=int16)", "bcsr(2, 2)"])
def test_results_of_one_kernel_for_several_statements_have_the_format_that_is_asked_for(format: str) -> None:
    """A schedule makes one kernel of all statements: results that it cannot write in their format are converted."""
    seeded = torch.Generator().manual_seed(0)
    a, b = torch.randint(-2, 3, (2, 6, 8), generator=seeded).float()
    A, B = sparsify.tensor(a, "csr").requires_grad_(), sparsify.tensor(b, "csr")
    text = "t[i] = sum(j, A[i,j])\nY[i,j] = (A[i,j] + B[i,j]) * t[i]"
    found = sparsify.evaluate(text, A=A, B=B, format={"Y": format}, schedule="order i, j")
    assert found.format == Format(format)
    expected = ["int16"] if "int16" in format else ["int32"]
    assert [str(crd.dtype)[6:] for crd in found.pattern.crd if crd is not None] == expected
    torch.testing.assert_close(found.to_dense(), (a + b) * a.sum(1, keepdim=True))
    (gradient,) = torch.autograd.grad(found.to_dense().sum(), A)
    learned = a.clone().requires_grad_()
    ((learned + b) * learned.sum(1, keepdim=True)).sum().backward()
    torch.testing.assert_close(gradient.to_dense(), learned.grad * (a != 0))


@pytest.mark.parametrize(
    ("outputs", "format"), [("D", None), (("C", "D"), None), (("C", "D"), {"D": "bcsr(2, 2)"})], ids=str
)
def test_one_kernel_finds_the_entries_of_no_result_that_another_reads(outputs, format):
    """Refused before code generation; the error has names of the program and a supported format."""
    a, b = drawn(N, N), drawn(N, N, seed=1)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    text = "C[i,k] = sum(j, A[i,j] * B[j,k])\nD[i,k] = 2 * C[i,k]"
    with pytest.raises(UnsupportedProgramError, match="one kernel for C and D: which entries of C"):
        sparsify.evaluate(text, A=A, B=B, outputs=outputs, format=format, schedule="order C: i, j, k")
    found = sparsify.evaluate(
        text, A=A, B=B, outputs="D", format={"C": "dense", "D": "dense"}, schedule="order C: i, j, k"
    )
    torch.testing.assert_close(found, 2 * a @ b)
