"""Tensors of higher order against gathers and `index_add` in torch.

In: `mttkrp(place)`. Out: a `Case` of the matricised tensor times Khatri-Rao product.
"""

import torch

import sparsify
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place

SHAPE = (2000, 1000, 800)
STORED = 200_000
COLUMNS = 32


def mttkrp(place: Place, *, asked: float) -> Case:
    """`Y[i,r] = T[i,j,k] * B[j,r] * C[k,r]` against compiled gathers."""
    draw = torch.Generator().manual_seed(0)
    shape = tuple(max(4, int(extent * place.scale)) for extent in SHAPE)
    at = torch.stack(
        [torch.randint(0, n, (max(8, int(STORED * place.scale)),), generator=draw) for n in shape]
    )
    at = at.unique(dim=1)
    values = torch.randn(at.shape[1], generator=draw)
    B, C = (torch.randn(extent, COLUMNS, generator=draw) for extent in shape[1:])
    case = Case(
        "mttkrp-3",
        f"T {list(shape)}, {at.shape[1]} stored, {COLUMNS} columns",
        "generated, entries anywhere",
        [],
        [],
        lambda: gathered(at, values.double(), B.double(), C.double(), shape[0]),
    )
    T = case.prepare("to SparseTensor", lambda: sparsify.tensor((at, values, shape), "csf"))
    case.prepare("first call", lambda: sparsify.einsum("ijk,jr,kr->ir", T, B, C))
    compiled = torch.compile(gathered, dynamic=False)
    case.prepare("first call of torch.compile", lambda: compiled(at, values, B, C, shape[0]))
    case.contenders += [
        Contender("sparsify", lambda: sparsify.einsum("ijk,jr,kr->ir", T, B, C), baseline=False),
        Contender("compiled gathers", lambda: compiled(at, values, B, C, shape[0])),
        Contender("gathers", lambda: gathered(at, values, B, C, shape[0])),
    ]
    case.targets.append(Target("sparsify", ("compiled gathers", "gathers"), asked, "pooled"))
    return case


def gathered(
    at: torch.Tensor, values: torch.Tensor, B: torch.Tensor, C: torch.Tensor, rows: int
) -> torch.Tensor:
    """MTTKRP in torch: gathers rows of both factors and adds the products with `index_add`."""
    products = values[:, None] * B[at[1]] * C[at[2]]
    return torch.zeros(rows, B.shape[1], dtype=values.dtype).index_add(0, at[0], products)
