"""Expressions of the tensor algebra literature, by class, with operands.

In: a row of `CONTRACTIONS` or `STATEMENTS` and formats. Out: operands, and their dense forms for a reference.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf
from typing import Any

import torch

import sparsify

EXTENTS = dict(zip("ijklmnopqrsbh", (7, 9, 8, 6, 5, 4, 3, 3, 2, 4, 3, 3, 2), strict=True))
VECTORS = ("compressed", "coo")
MATRICES = ("csr", "coo", "csc", "dcsr", "bcsr(2,3)", "dcsc", "ell", "dia", "compressed, dense")
CUBES = (
    "csf",
    "coo",
    "dense, compressed, compressed",
    sparsify.Format("compressed, compressed, compressed", ordering=(2, 0, 1)),
    sparsify.Format("coordinate, coordinate, coordinate", ordering=(1, 2, 0)),
    "dense, dense, compressed",
)
OTHERS = ("csf", "coo")
FORMATS: dict[int, Sequence[str | sparsify.Format]] = {
    1: VECTORS,
    2: MATRICES,
    3: CUBES,
    4: OTHERS,
    5: OTHERS,
}

# Subscripts, and which operands are sparse: `s`, or dense: `d`.
CONTRACTIONS = (
    ("ij,j->i", "sd"),  # SpMV
    ("ij,i->j", "sd"),
    ("ij,j->i", "ss"),
    ("i,ij,j->", "dsd"),
    ("ij,jk->ik", "sd"),  # SpMM
    ("ij,kj->ki", "sd"),
    ("ij,jk->ik", "ds"),
    ("ij,ik,jk->ij", "sdd"),  # SDDMM
    ("ij,jk->ik", "ss"),  # SpGEMM
    ("ij,kj->ik", "ss"),
    ("ji,jk->ki", "ss"),
    ("ij,ik,kj->ij", "sss"),  # masked
    ("ij,jk,kl->il", "sss"),
    ("ij,jk,kl,l->i", "sssd"),
    ("ij,jk,ki->", "sss"),
    ("ijk,k->ij", "sd"),  # TTV
    ("ijk,i->jk", "ss"),
    ("ijk,kl->ijl", "sd"),  # TTM
    ("ijk,jl->ilk", "ss"),
    ("ijk,jr,kr->ir", "sdd"),  # MTTKRP
    ("ijk,ir,jr->kr", "sdd"),
    ("ijkl,jr,kr,lr->ir", "sddd"),
    ("ijklm,jr,kr,lr,mr->ir", "sdddd"),
    ("ijk,jr,kr->ir", "sss"),
    ("ijk,il,jm,kn->lmn", "sddd"),  # Tucker
    ("lmn,il,jm,kn->ijk", "sddd"),
    ("ij,ij->", "ss"),  # inner products
    ("ijk,ijk->", "ss"),
    ("ij,ij,ij->ij", "sss"),
    ("ik,jk->ijk", "ss"),  # Khatri-Rao, Kronecker, outer products
    ("ij,kl->ikjl", "ss"),
    ("i,j->ij", "ss"),
    ("ij->", "s"),  # reductions and transposes
    ("ij->i", "s"),
    ("ijk->j", "s"),
    ("ijk->", "s"),
    ("ij->ji", "s"),
    ("ijk->kij", "s"),
    ("ijkl->ljki", "s"),
    ("bij,bjk->bik", "sd"),  # batches
    ("bij,bjk->bik", "ss"),
    ("bij,jk->bik", "ss"),
    ("ij,bhik,bhjk->bhij", "sdd"),
    ("bi,kij,bj->bk", "dsd"),
)
# Common spellings of subscripts, with shapes unless the letters determine them.
HABITS = (
    (" i j , j k -> i k ", "sd", None),
    ("IJ,Jk->Ik", "sd", ((7, 9), (9, 8))),
    ("ij,jk", "ss", None),
    ("ba", "s", ((7, 9),)),
    ("ij", "s", None),
    ("...j,j->...", "sd", ((7, 9), (9,))),
    ("...ij,...jk->...ik", "sd", ((3, 7, 9), (3, 9, 8))),
    ("ij,...jk->...ik", "sd", ((7, 9), (2, 9, 8))),
    ("i...->...", "s", ((7, 9),)),
    (",ij->ij", "ds", ((), (7, 9))),
    ("ij,ij->ij", "sd", ((7, 1), (7, 9))),
    ("ii->i", "s", ((7, 7),)),
    ("ii->", "s", ((7, 7),)),
    ("ii,ij->j", "ss", ((7, 7), (7, 9))),
    ("iji->j", "s", ((5, 6, 5),)),
    ("bii->b", "s", ((3, 7, 7),)),
    ("ij,jk->ik", "dd", None),
    ("i->", "s", None),
    (",->", "dd", ((), ())),
)


# Statements over the square operands of `statement_operands`, with their dense references.
STATEMENTS: tuple[tuple[str, Callable[..., Any]], ...] = (
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


def convolved(A: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """The products of the windows of A with W, zeros around A."""
    return torch.nn.functional.conv2d(A[None, None], W[None, None], padding=1)[0, 0]


def drawn(*shape: int, seed: int = 0, density: float = 0.4) -> torch.Tensor:
    """Normally distributed numbers, mostly 0 by default."""
    draw = torch.Generator().manual_seed(seed + 31 * sum(shape) + len(shape))
    values = torch.randn(shape, generator=draw, dtype=torch.float64)
    return torch.where(
        torch.rand(shape, generator=draw) < density, values, torch.zeros((), dtype=torch.float64)
    )


def operands(
    subscripts: str, kinds: str, shapes: Sequence[Sequence[int]] | None = None
) -> list[torch.Tensor]:
    """The dense forms of the operands of a row."""
    terms = subscripts.replace(" ", "").split("->")[0].split(",")
    shapes = shapes or [[EXTENTS[letter] for letter in term] for term in terms]
    return [
        drawn(*shape, seed=number, density=0.4 if kind == "s" else 1.0)
        for number, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]


def stored(dense: torch.Tensor, number: int) -> torch.Tensor:
    """A tensor in one of the formats of its rank."""
    choices = FORMATS[dense.dim()]
    return sparsify.tensor(dense, choices[number % len(choices)])


def in_pairs_of_formats(
    subscripts: str, kinds: str, dense: Sequence[torch.Tensor]
) -> Iterator[tuple[tuple[int, ...], list[torch.Tensor]]]:
    """Operands of a row in all pairs of formats (the first three per rank) of the first two sparse operands."""
    places = [place for place, kind in enumerate(kinds) if kind == "s"]
    for choice in product(*(range(min(3, len(FORMATS[dense[place].dim()]))) for place in places[:2])):
        numbers = {**dict.fromkeys(places, 0), **dict(zip(places, choice, strict=False))}
        yield choice, [stored(x, numbers[n]) if n in numbers else x for n, x in enumerate(dense)]


def statement_operands(
    text: str, forms: Sequence[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, int] | None]:
    """Dense operands of `STATEMENTS`, the stored operands of one statement, and its extents."""
    dense = {name: drawn(8, 8, seed=n) for n, name in enumerate("ABD")}
    for n, name in enumerate("UV"):
        plain = drawn(8, 8, seed=9 + n)
        dense[name] = torch.where(plain == 0, inf, plain)
    dense |= {"x": drawn(8, seed=5, density=1.0), "z": drawn(8, seed=6, density=1.0)}
    dense |= {"Q": drawn(8, 4, seed=7, density=1.0), "W": drawn(3, 3, seed=8, density=1.0)}
    tensors = {n: sparsify.tensor(dense[n], form) for n, form in zip("ABD", forms, strict=False)}
    tensors |= {n: sparsify.tensor(dense[n], forms[0], fill=inf) for n in "UV"}
    given = {name: tensors.get(name, x) for name, x in dense.items() if f"{name}[" in text}
    return dense, given, {"i": 8, "j": 8} if "W[" in text else None


def value(found: torch.Tensor) -> torch.Tensor:
    """The dense form of a result."""
    return found.to_dense() if isinstance(found, sparsify.SparseTensor) else found


def unchanged(given: Sequence[torch.Tensor], compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Result of a call, with a check that no operand changed."""
    before = [[part.clone() for part in _parts(operand)] for operand in given]
    found = compute()
    for operand, parts in zip(given, before, strict=True):
        assert all(map(torch.equal, _parts(operand), parts))
    return found


def _parts(operand: torch.Tensor) -> list[torch.Tensor]:
    """The arrays of a tensor."""
    if not isinstance(operand, sparsify.SparseTensor):
        return [operand]
    arrays = (*operand.pattern.pos, *operand.pattern.crd)
    return [operand.values().detach(), *(array for array in arrays if array is not None)]
