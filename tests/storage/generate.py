"""Tensors for tests: every format over shapes of every kind, from a seed.

In: a seed. Out: `Case("csr", (5, 0), "random")`, whose text is the one line that makes it again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.tensor import SparseTensor

MATRIX_FORMATS = (
    *("csr", "csc", "coo", "dcsr", "dcsc", "bcsr(2, 3)", "bcsc(3, 2)", "dense(2)", "j: dense, i: dense"),
    "j/4: dense, i: dense, j%4: compressed(crd=int16)",
    "compressed, dense",
    "i/2: compressed, j: compressed, i%2: dense",
    "coordinate(unordered), coordinate",
    "dense, compressed(unordered, pos=int64, crd=int32)",
    "j: coordinate, i: coordinate",
    "i%2: dense, j: compressed, i/2: compressed",
    *("nm(3, 3)", "nm(2, 2, group=2)", "dense, grouped", "j: compressed, i: grouped(crd=int8)"),
    *("j-i: compressed, i: dense", "j-i: dense, i: dense", "i: dense, j-i: compressed"),
    *("dense, bitmap", "j: bitmap, i: dense", "i/2: bitmap, j/8: dense, i%2: dense, j%8: bitmap"),
    *(
        "i/4: dense, i%4: dense, j: sliced(2)",
        "dense, ragged",
        "j: dense, i: ragged(pos=int64)",
        *("dense, hash", "hash, compressed", "j: hash(crd=int8), i: hash", "hash, dense"),
        "i/2: dense, j/4: hash, i%2: dense, j%4: hash(pos=int64)",
        "j/3: compressed, i/2: dense, i%2: dense, j%3: sliced(2, crd=int8)",
    ),
)
FORMATS = {
    0: ("scalar",),
    1: ("dense", "hash", "compressed", "compressed(unordered)", "i/4: compressed, i%4: dense"),
    2: MATRIX_FORMATS,
    3: (
        *("csf", "coo(3)", "dense(3)", "dense, compressed, compressed", "k: dense, i: compressed, j: dense"),
        "j/2: dense, i: compressed, k/3: compressed, j%2: dense, k%3: dense",
        "coordinate, coordinate, dense",
        *("dense, hash, compressed", "hash, coordinate, coordinate"),
        *("i: dense, k-j: compressed, j: dense", "i: compressed, j/2: grouped, k: grouped, j%2: dense"),
    ),
    4: (
        "csf(4)",
        "coo(4)",
        "dense, dense, compressed, dense",
        "l: compressed, j: dense, i: coordinate, k: coordinate",
    ),
    5: ("coo(5)", "compressed, dense, compressed, dense, compressed"),
    6: ("coo(6)", "csf(6)"),
}
SHAPES = {
    0: ((),),
    1: ((0,), (1,), (9,)),
    2: ((7, 9), (1, 8), (6, 1), (0, 5), (5, 0), (4, 6)),
    3: ((3, 4, 5), (2, 0, 3), (1, 1, 1)),
    4: ((2, 3, 2, 3),),
    5: ((2, 1, 3, 2, 2),),
    6: ((2, 2, 1, 2, 3, 2),),
}
CONTENTS = ("random", "none", "all", "row")


@dataclass(frozen=True)
class Case:
    """A dense tensor and the format to store it in."""

    format: str
    shape: tuple[int, ...]
    content: str
    seed: int = 0

    def dense(self, dtype: torch.dtype = torch.float64, fill: float = 0.0) -> Tensor:
        """The tensor with the fill in its unstored entries."""
        random = torch.Generator().manual_seed(self.seed + sum(self.shape))
        values = torch.rand(self.shape, generator=random, dtype=torch.float64) + 0.5
        kept = torch.rand(self.shape, generator=random) < 0.4
        match self.content:
            case "none":
                kept = torch.zeros_like(kept)
            case "all":
                kept = torch.ones_like(kept)
            case "row" if self.shape:
                kept = torch.zeros_like(kept)
                kept[: self.shape[0] // 2 + 1][-1:] = True
        return torch.where(kept, values, fill).to(dtype)

    def stored(self, fill: float = 0.0) -> SparseTensor:
        """The tensor in its format."""
        return tensor(self.dense(fill=fill), self.form, fill=fill)

    @property
    def form(self) -> Format:
        """The format, of the rank of the shape."""
        return Format(self.format, rank=len(self.shape))


def cases() -> list[Case]:
    """All formats over all shapes and contents."""
    return [
        Case(format, shape, content)
        for rank, formats in FORMATS.items()
        for format in formats
        for shape in SHAPES[rank]
        for content in CONTENTS
    ]
