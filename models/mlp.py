"""A multilayer perceptron.

In: rows [batch, features]. Out: logits [batch, classes].
"""

from itertools import pairwise

from torch import nn


class MLP(nn.Sequential):
    """Linear layers with relu between consecutive layers."""

    def __init__(self, features: int = 784, hidden: int = 2048, layers: int = 3, classes: int = 10) -> None:
        if layers < 2:
            raise ValueError(f"{layers} layers: at least the first and the last are wanted")
        parts: list[nn.Module] = []
        for columns, outputs in pairwise([features, *[hidden] * (layers - 1), classes]):
            parts += [nn.Linear(columns, outputs), nn.ReLU()]
        super().__init__(*parts[:-1])
