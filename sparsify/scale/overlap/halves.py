"""The division of a part: inner rows read own rows only, boundary rows read rows of other parts.

In: a part. Out: `halves(part)`, two parts of a part, numbered like parts: `[own | borrowed]`, where the inner half
borrows boundary rows, and the boundary half inner rows and the halo.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsify.scale.parts import Part


@dataclass(frozen=True)
class Half:
    """One half of a part.

    Attributes:
        rows: int64 [own], own rows of the part in this half, ascending.
        edges: int64 [edges], edges of the part with targets in this half, ascending.
        edge_index: int64 [2, edges], sources in `[own | borrowed | halo]` above targets in `[own]`.
        borrowed: int64 [borrowed], rows of the other half read by this half, numbered in the other half.
        columns: int64 [own + borrowed + halo], the rows of `edge_index[0]`, numbered in the part's `[own | halo]`.
    """

    rows: Tensor
    edges: Tensor
    edge_index: Tensor
    borrowed: Tensor
    columns: Tensor


def halves(part: Part) -> tuple[Half, Half]:
    """The inner and the boundary half of a part; the halo belongs to the boundary half."""
    own = len(part.rows)
    source, target = part.edge_index
    is_boundary = torch.zeros(own, dtype=torch.bool)
    is_boundary[target[source >= own]] = True
    halo = torch.arange(own, own + len(part.halo))
    number = torch.empty(own, dtype=torch.int64)  # of a row in its half
    for is_in_half in (~is_boundary, is_boundary):
        number[is_in_half] = torch.arange(int(is_in_half.sum()))
    return (
        _half(part.edge_index, ~is_boundary, number, halo[:0]),
        _half(part.edge_index, is_boundary, number, halo),
    )


def _half(edge_index: Tensor, is_in_half: Tensor, number: Tensor, halo: Tensor) -> Half:
    """The half of the rows with true entries.

    Args:
        edge_index: int64 [2, edges of the part].
        is_in_half: bool [own].
        number: int64 [own], numbers of rows within the halves.
        halo: int64 [halo], the halo read by the half, numbered in the part.
    """
    rows = is_in_half.nonzero().view(-1)
    edges = is_in_half[edge_index[1]].nonzero().view(-1)
    source, target = edge_index[:, edges]
    is_borrowed = torch.zeros_like(is_in_half)
    is_borrowed[source[source < len(number)]] = True
    borrowed = (is_borrowed & ~is_in_half).nonzero().view(-1)
    columns = torch.cat([rows, borrowed, halo])
    at = torch.empty(len(number) + len(halo), dtype=torch.int64)
    at[columns] = torch.arange(len(columns))
    return Half(rows, edges, torch.stack([at[source], number[target]]), number[borrowed], columns)
