"""The expressions of the tensor algebra literature, by class, and tensors to try them on.

In: a row of `CONTRACTIONS` and formats. Out: operands, and their dense forms for a reference.
"""

from collections.abc import Callable, Sequence

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
# What is written by habit, with shapes where letters do not say them.
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


def drawn(*shape: int, seed: int = 0, density: float = 0.4) -> torch.Tensor:
    """Normal numbers, most of them 0."""
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


def value(found: torch.Tensor) -> torch.Tensor:
    """The dense form of a result."""
    return found.to_dense() if isinstance(found, sparsify.SparseTensor) else found


def unchanged(given: Sequence[torch.Tensor], compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What is computed, after a look at the operands: nothing of them may have changed."""
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
