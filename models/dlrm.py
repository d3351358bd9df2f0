"""A recommendation model: probability of a click.

In: numbers [batch, numbers] and row indices of each table, [tables, batch, lookups]. Out: [batch].
"""

from itertools import pairwise

import torch
from torch import Tensor, nn


class DLRM(nn.Module):
    """A perceptron over the numbers, bags of the tables, dot products of all pairs, and a perceptron over the products.

    Source: Naumov et al., Deep learning recommendation model for personalization and recommendation systems, 2019.
    """

    def __init__(
        self,
        numbers: int = 13,
        tables: int = 8,
        rows: int = 20000,
        columns: int = 64,
        hidden: int = 512,
        mode: str = "sum",
    ) -> None:
        """A model with random weights.

        Args:
            numbers: number of dense features of an example.
            tables, rows, columns: number of tables and their sizes; all vectors have `columns` entries.
            hidden: units of the hidden layers.
            mode: reduction over the rows of a bag: sum, mean or max.
        """
        super().__init__()
        if tables < 1:
            raise ValueError(f"{tables} tables: at least one is wanted")
        vectors = tables + 1
        self.bottom = perceptron(numbers, hidden, columns)
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, columns, mode=mode) for _ in range(tables)])
        self.top = perceptron(columns + vectors * (vectors - 1) // 2, hidden, hidden)
        self.click = nn.Linear(hidden, 1)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, numbers: Tensor, indices: Tensor) -> Tensor:
        """Probabilities [batch] of numbers [batch, numbers] and the rows of tables [tables, batch, lookups]."""
        x = self.bottom(numbers)
        bags = [table(rows) for table, rows in zip(self.tables, indices, strict=True)]
        vectors = torch.stack([x, *bags], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        first, second = self.get_buffer("pairs")
        return torch.sigmoid(self.click(self.top(torch.cat([x, products[:, first, second]], dim=1)))).squeeze(
            1
        )


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with given sizes, each with relu."""
    parts: list[nn.Module] = []
    for columns, outputs in pairwise(sizes):
        parts += [nn.Linear(columns, outputs), nn.ReLU()]
    return nn.Sequential(*parts)
