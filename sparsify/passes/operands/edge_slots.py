"""A pattern and the entries that come to lie on it, for values that a call brings.

In: the pattern of the edges of a graph. Out: `aligned.values(weights)`, the weights in storage order.
"""

from dataclasses import dataclass

import torch

from sparsify.storage.pattern import Pattern


@dataclass(frozen=True)
class Aligned:
    """A pattern and where each edge's value goes.

    Attributes:
        positions: the slot of each edge, None when that of edge `e` is `e`.
        kept: the edges that have a slot, None when all do.
    """

    pattern: Pattern
    positions: torch.Tensor | None
    kept: torch.Tensor | None = None

    def values(self, edges: torch.Tensor) -> torch.Tensor:
        """The values in storage order on the device of `edges`, duplicates added up, differentiable in `edges`."""
        if self.kept is not None:
            edges = edges.index_select(0, self.kept.to(edges.device))
        if self.positions is None:
            return edges
        slots = edges.new_zeros(self.pattern.nnz)
        return slots.index_add(0, self.positions.to(edges.device), edges)
