"""Every class of expression over formats of all kinds against dense float64; huge operands; two orders of gradients."""

import resource
from itertools import product
from math import inf

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparsify

from ..sampling import chosen, sampled
from .catalogue import CONTRACTIONS, FORMATS, HABITS, drawn, operands, stored, unchanged, value


def check_einsum(subscripts, dense, given):
    """The result of an einsum, which changes none of its operands."""
    found = unchanged(given, lambda: sparsify.einsum(subscripts, *given))
    torch.testing.assert_close(value(found), torch.einsum(subscripts, *dense))


@pytest.mark.parametrize("number", range(len(CONTRACTIONS)), ids=lambda n: " ".join(CONTRACTIONS[n]))
def test_contractions(number):
    """Each in one choice of formats, another one in each row."""
    subscripts, kinds = CONTRACTIONS[number]
    dense = operands(subscripts, kinds)
    given = [
        stored(x, number + 2 * place) if kind == "s" else x
        for place, (x, kind) in enumerate(zip(dense, kinds, strict=True))
    ]
    check_einsum(subscripts, dense, given)


@pytest.mark.slow
@pytest.mark.parametrize("third", sampled(range(3), 3))
@pytest.mark.parametrize("number", range(len(CONTRACTIONS)), ids=lambda n: " ".join(CONTRACTIONS[n]))
def test_contractions_in_all_formats(number, third):
    """A third of all pairs of the first three formats of their ranks for the first two sparse operands."""
    subscripts, kinds = CONTRACTIONS[number]
    dense = operands(subscripts, kinds)
    places = [place for place, kind in enumerate(kinds) if kind == "s"]
    for choice in product(*(range(min(3, len(FORMATS[dense[place].dim()]))) for place in places[:2])):
        if (sum(choice) + number) % 3 != third:
            continue
        numbers = {**dict.fromkeys(places, 0), **dict(zip(places, choice, strict=False))}
        check_einsum(
            subscripts, dense, [stored(x, numbers[n]) if n in numbers else x for n, x in enumerate(dense)]
        )


@pytest.mark.parametrize("number", range(len(HABITS)), ids=lambda n: f"{HABITS[n][0]} {HABITS[n][1]}")
def test_habits(number):
    subscripts, kinds, shapes = HABITS[number]
    dense = operands(subscripts, kinds, shapes)
    given = [stored(x, number) if kind == "s" else x for x, kind in zip(dense, kinds, strict=True)]
    check_einsum(subscripts, dense, given)


def test_layouts_of_dense_operands():
    """Transposed, strided, expanded, reversed and shared memory; one operand given twice."""
    a, x = drawn(7, 9), drawn(9, 5, density=1.0)
    A = sparsify.tensor(a, "csr")
    strided = drawn(18, 10, density=1.0)[::2, ::2]
    for X in (x, x.T.contiguous().T, strided, x[:, :1].expand(9, 5), x.flip(0), strided[:, 1:]):
        check_einsum("ij,jk->ik", (a, X), (A, X))
    check_einsum("ij,jk,jk->ik", (a, x, x), (A, x, x))
    check_einsum("ij,kj->ik", (a, a), (A, A))


STATEMENTS = (
    ("C[i,j] = A[i,j] + B[i,j]", lambda A, B, **_: A + B),
    ("C[i,j] = A[i,j] + B[i,j] - D[i,j]", lambda A, B, D, **_: A + B - D),
    ("C[i,j] = (A[i,j] + B[i,j]) * D[i,j]", lambda A, B, D, **_: (A + B) * D),
    ("C[i,j] = max(A[i,j], B[i,j], D[i,j])", lambda A, B, D, **_: torch.maximum(torch.maximum(A, B), D)),
    ("y[i] = z[i] - A[i,j] * x[j]", lambda A, x, z, **_: z - A @ x),
    ("y[j] = 2 * A[i,j] * x[i] + 3 * z[j]", lambda A, x, z, **_: 2 * A.T @ x + 3 * z),
    ("C[i,j] = A[i,j] * x[i] / (1 + z[j] ** 2)", lambda A, x, z, **_: A * x[:, None] / (1 + z**2)),
    ("C[i,j] = A[i,j] + x[i]", lambda A, x, **_: A + x[:, None]),
    ("C[i,j] = (A[i,j] + A[j,i]) / 2", lambda A, **_: (A + A.T) / 2),
    ("t = A[i,j] * A[j,k] * A[k,i]", lambda A, **_: torch.trace(A @ A @ A)),
    ("C[i,j] = A[i,j] * A[i,k] * B[k,j]", lambda A, B, **_: A * (A @ B)),
    ("C[i,j] = A[i,k] * B[k,j] + D[i,j]", lambda A, B, D, **_: A @ B + D),
    ("C[i,j] = min(max(A[i,k] * B[k,j] - 0.3, 0), 2)", lambda A, B, **_: (A @ B - 0.3).clamp(0, 2)),
    ("C[i,j] min= U[i,k] + V[k,j]", lambda U, V, **_: (U[:, :, None] + V).amin(1)),
    ("y[j] min= x[i] + U[i,j]", lambda U, x, **_: (U + x[:, None]).amin(0)),
    ("C[i,j] max= A[i,k] * B[k,j]", lambda A, B, **_: (A[:, :, None] * B).amax(1)),
    ("C[i,j] |= logical_and(A[i,k], B[k,j])", lambda A, B, **_: (A != 0).double() @ (B != 0).double() != 0),
    ("y[i] max= A[i,j]", lambda A, **_: A.amax(1)),
    ("y[i] += A[i,j] > 0", lambda A, **_: (A > 0).sum(1)),
    ("C[i,j] = where(i >= j, A[i,j], 0)", lambda A, **_: A.tril()),
    (
        "y[i] = A[i,j] * (3*i + j)",
        lambda A, **_: A @ torch.arange(8.0).double() + 3 * torch.arange(8) * A.sum(1),
    ),
    ("C[i,j] = A[2:, 1:-1]", lambda A, **_: A[2:, 1:-1]),
    ("y[i] = A[i,3] + A[0,i]", lambda A, **_: A[:, 3] + A[0]),
    (
        "s[i] = sum(j, abs(A[i,j])); C[i,j] = A[i,j] / where(s[i] == 0, 1, s[i])",
        lambda A, **_: torch.nn.functional.normalize(A, p=1, dim=1),
    ),
    (
        "S[i,j] = where(stored(A[i,j]), sum(k, Q[i,k] * Q[j,k]), -inf); m[i] max= S[i,j]; "
        "P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i])); d[i] += P[i,j]; "
        "y[i,l] += P[i,j] * Q[j,l] / where(d[i] == 0, 1, d[i])",
        lambda A, Q, **_: torch.where(A != 0, Q @ Q.T, -inf).softmax(1).nan_to_num() @ Q,
    ),
    ("C[i,j] = A[i+r-1,j+s-1] * W[r,s]", lambda A, W, **_: convolved(A, W)),
)


def convolved(A, W):
    return torch.nn.functional.conv2d(A[None, None], W[None, None], padding=1)[0, 0]


def check_statement(text, reference, forms):
    """A program over square operands, of which it reads some."""
    dense = {name: drawn(8, 8, seed=n) for n, name in enumerate("ABD")}
    for n, name in enumerate("UV"):
        plain = drawn(8, 8, seed=9 + n)
        dense[name] = torch.where(plain == 0, inf, plain)
    dense |= {"x": drawn(8, seed=5, density=1.0), "z": drawn(8, seed=6, density=1.0)}
    dense |= {"Q": drawn(8, 4, seed=7, density=1.0), "W": drawn(3, 3, seed=8, density=1.0)}
    tensors = {n: sparsify.tensor(dense[n], form) for n, form in zip("ABD", forms, strict=False)}
    tensors |= {n: sparsify.tensor(dense[n], forms[0], fill=inf) for n in "UV"}
    given = {name: tensors.get(name, x) for name, x in dense.items() if f"{name}[" in text}
    sizes = {"i": 8, "j": 8} if "W[" in text else None
    found = unchanged(tuple(given.values()), lambda: sparsify.evaluate(text, sizes=sizes, **given))
    torch.testing.assert_close(value(found), reference(**dense))


@pytest.mark.parametrize("number", range(len(STATEMENTS)), ids=lambda n: STATEMENTS[n][0][:40])
def test_statements(number):
    forms = ("csr", "coo", "csc", "dcsr")
    check_statement(*STATEMENTS[number], [forms[(number + n) % 4] for n in range(3)])


MORE_FORMATS = (("csr", "csr", "csr"), ("coo", "csr", "dcsc"), ("dcsr", "csc", "coo"), ("csr", "coo", "dcsr"))


@pytest.mark.slow
@pytest.mark.parametrize("number, forms", sampled(product(range(len(STATEMENTS)), MORE_FORMATS), 3), ids=str)
def test_statements_in_more_formats(number, forms):
    check_statement(*STATEMENTS[number], forms)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr", "bcsr(2,2)", "ell"])
def test_results_in_formats(form):
    a, b = drawn(6, 6), drawn(6, 6, seed=1)
    found = sparsify.einsum("ij,jk->ik", sparsify.tensor(a, "csc"), sparsify.tensor(b, "csr"), format=form)
    assert found.format == sparsify.Format(form)
    torch.testing.assert_close(found.to_dense(), a @ b)


# Text, and the shapes of the operands; those whose names are capitals are sparse.
GRADIENTS = (
    ("y[i,k] = A[i,j] * x[j,k]", {"A": (3, 4), "x": (4, 2)}),
    ("y[i,r] = A[i,j,k] * u[j,r] * v[k,r]", {"A": (3, 4, 2), "u": (4, 2), "v": (2, 2)}),
    ("t = A[i,j] * A[j,k] * A[k,i]", {"A": (4, 4)}),
)
MORE_GRADIENTS = (
    ("y[i] = x[i+r] * W[r]", {"x": (5,), "W": (3,)}),
    ("S[i,j] = A[i,j] * q[i,k] * r[j,k]", {"A": (3, 4), "q": (3, 2), "r": (4, 2)}),
    ("y[i] = A[i,j] * x[j]", {"A": (3, 4), "x": (4,)}),
    ("C[i,k] = A[i,j] * B[j,k]", {"A": (3, 4), "B": (4, 3)}),
    ("C[i,j] = A[i,j] + B[i,j]", {"A": (3, 4), "B": (3, 4)}),
    ("C[i,j] = M[i,j] * A[i,k] * B[k,j]", {"M": (3, 3), "A": (3, 4), "B": (4, 3)}),
    ("C[i,j,l] = A[i,j,k] * x[k,l]", {"A": (3, 4, 2), "x": (2, 2)}),
    ("c = A[i,j,k] * B[i,j,k]", {"A": (3, 4, 2), "B": (3, 4, 2)}),
    (
        "c[l,m,n] = A[i,j,k] * x[i,l] * y[j,m] * z[k,n]",
        {"A": (2, 3, 2), "x": (2, 2), "y": (3, 2), "z": (2, 2)},
    ),
    ("C[i,j,k] = A[i,k] * B[j,k]", {"A": (3, 2), "B": (2, 2)}),
    ("s[i] = sum(j, A[i,j] ** 2); C[i,j] = A[i,j] / sqrt(s[i] + 1)", {"A": (3, 4)}),
    (
        "h[i,k] = relu(A[i,j] * x[j,k]); y[i,l] = A[i,j] * h[j,k] * w[k,l]",
        {"A": (3, 3), "x": (3, 2), "w": (2, 2)},
    ),
    ("C[i,j] = exp(A[1:, j])", {"A": (3, 4)}),
)


def check_gradients(text, shapes, forms):
    """First derivatives in each value, second ones in one direction, by way of tensors that are made of them."""
    dense = [drawn(*shape, seed=n, density=0.6) for n, shape in enumerate(shapes.values())]
    sparse = [name.isupper() for name in shapes]
    made = [sparsify.tensor(x, forms[x.dim()]) if s else x for x, s in zip(dense, sparse, strict=True)]
    sizes = {"i": 3} if "i+r" in text else None

    def program(*values):
        given = [
            sparsify.tensor((x.coordinates(), v, x.shape), x.format) if s else v
            for x, v, s in zip(made, values, sparse, strict=True)
        ]
        return value(sparsify.evaluate(text, sizes=sizes, **dict(zip(shapes, given, strict=True))))

    values = [(x.values() if s else x).clone().requires_grad_() for x, s in zip(made, sparse, strict=True)]
    assert gradcheck(program, values)
    assert gradgradcheck(program, values, fast_mode=True)


@pytest.mark.parametrize("text, shapes", GRADIENTS, ids=[text for text, _ in GRADIENTS])
def test_gradients(text, shapes):
    check_gradients(text, shapes, {1: "compressed", 2: "csr", 3: "csf"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, shapes, form",
    [
        chosen((*case, form), (number + place) % 2 == 0)
        for number, case in enumerate([*GRADIENTS, *MORE_GRADIENTS])
        for place, form in enumerate(("csc", "coo"))
    ],
    ids=lambda row: str(row)[:30],
)
def test_more_gradients(text, shapes, form):
    check_gradients(text, shapes, {1: "coo", 2: form, 3: "coo" if form == "coo" else "csf"})


HUGE = 10**6
# In kilobytes; as dense arrays the operands would take 8 TB and more.
MOST = 1_000_000
HUGE_ONES = (
    ("ij,j->i", "sd"),
    ("ij,jr->ir", "sd"),
    ("ij,ir->jr", "sd"),
    ("ij,ir,jr->ij", "sdd"),
    ("ij,jk->ik", "ss"),
    ("ij,kj->ik", "ss"),
    ("ij,ij->ij", "ss"),
    ("ij,ij->", "ss"),
    ("ij,ik,kj->ij", "sss"),
    ("ij->ji", "s"),
    ("ij->j", "s"),
    ("ijk,k->ij", "sd"),
    ("ijk,kr->ijr", "sd"),
    ("ijk,jr,kr->ir", "sdd"),
    ("ijk->", "s"),
    ("ij,jk->ijk", "ss"),
)


@pytest.mark.parametrize("number", range(len(HUGE_ONES)), ids=lambda n: " ".join(HUGE_ONES[n]))
def test_operands_whose_dense_form_would_not_fit(number):
    """Tensors of 10^6 in each mode with entries at a few coordinates: as the tensors of those alone."""
    subscripts, kinds = HUGE_ONES[number]
    draw = torch.Generator().manual_seed(number)
    used = torch.from_numpy(np.sort(np.random.default_rng(number).choice(HUGE, 6, replace=False)))
    small, given = [], []
    for place, (term, kind) in enumerate(zip(subscripts.split("->")[0].split(","), kinds, strict=True)):
        if kind == "d":
            shape = [2 if letter == "r" else HUGE for letter in term]
            given.append(torch.randn(shape, generator=draw, dtype=torch.float64))
            small.append(given[-1][used])
            continue
        small.append(drawn(*(6 for _ in term), seed=place))
        at = small[-1].nonzero().T
        form = (
            ("csr", "coo", "csc", "dcsr")[(number + place) % 4]
            if len(term) == 2
            else ("csf", "coo")[number % 2]
        )
        given.append(sparsify.tensor((used[at], small[-1][tuple(at)], [HUGE] * len(term)), form))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = sparsify.einsum(subscripts, *given)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST
    wanted = torch.einsum(subscripts, *small)
    if not isinstance(found, sparsify.SparseTensor):
        torch.testing.assert_close(found[used] if found.dim() else found, wanted)
        return
    place = [
        torch.searchsorted(used, row) if size == HUGE else row
        for row, size in zip(found.coordinates(), found.shape, strict=True)
    ]
    exact = torch.zeros_like(wanted)
    exact[tuple(place)] = found.values()
    torch.testing.assert_close(exact, wanted)
    assert found.nnz == len(found.values()) <= wanted.numel()
