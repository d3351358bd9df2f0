"""Every class of expression over formats of all kinds against dense float64; huge operands; two orders of gradients."""

import resource
from itertools import product

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparsify
from tests.compiler.random_programs.catalogue import (
    CONTRACTIONS,
    HABITS,
    STATEMENTS,
    drawn,
    in_pairs_of_formats,
    operands,
    statement_operands,
    stored,
    unchanged,
    value,
)
from tests.sampling import chosen, sampled


def check_einsum(subscripts, dense, given):
    """Checks the result of an einsum, and that no operand changed."""
    found = unchanged(given, lambda: sparsify.einsum(subscripts, *given))
    torch.testing.assert_close(value(found), torch.einsum(subscripts, *dense))


@pytest.mark.sampled(6)
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


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize("third", sampled(range(3), 3))
@pytest.mark.parametrize("number", range(len(CONTRACTIONS)), ids=lambda n: " ".join(CONTRACTIONS[n]))
def test_contractions_in_all_formats(number, third):
    """A third of all format pairs (the first three per rank) of the first two sparse operands."""
    subscripts, kinds = CONTRACTIONS[number]
    dense = operands(subscripts, kinds)
    for choice, given in in_pairs_of_formats(subscripts, kinds, dense):
        if (sum(choice) + number) % 3 == third:
            check_einsum(subscripts, dense, given)


@pytest.mark.sampled(3)
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


def check_statement(text, reference, forms):
    """Checks a program over some of the square operands."""
    dense, given, sizes = statement_operands(text, forms)
    found = unchanged(tuple(given.values()), lambda: sparsify.evaluate(text, sizes=sizes, **given))
    torch.testing.assert_close(value(found), reference(**dense))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", range(len(STATEMENTS)), ids=lambda n: STATEMENTS[n][0][:40])
def test_statements(number):
    forms = ("csr", "coo", "csc", "dcsr")
    check_statement(*STATEMENTS[number], [forms[(number + n) % 4] for n in range(3)])


MORE_FORMATS = (("csr", "csr", "csr"), ("coo", "csr", "dcsc"), ("dcsr", "csc", "coo"), ("csr", "coo", "dcsr"))


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("number, forms", sampled(product(range(len(STATEMENTS)), MORE_FORMATS), 3), ids=str)
def test_statements_in_more_formats(number, forms):
    check_statement(*STATEMENTS[number], forms)


@pytest.mark.sampled(4)
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
    """Checks first derivatives in each value and second derivatives in one direction, through tensor construction."""
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text, shapes", GRADIENTS, ids=[text for text, _ in GRADIENTS])
def test_gradients(text, shapes):
    check_gradients(text, shapes, {1: "compressed", 2: "csr", 3: "csf"})


@pytest.mark.sampled(16)
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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(len(HUGE_ONES)), ids=lambda n: " ".join(HUGE_ONES[n]))
def test_operands_whose_dense_form_would_not_fit(number):
    """Tensors of extent 10^6 in each mode with entries at a few coordinates, compared with tensors of those alone."""
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
