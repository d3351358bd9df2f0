"""An autoencoder of one hidden layer.

In: rows [batch, features] with values from 0 to 1. Out: reconstructed rows [batch, features].
"""

from torch import nn


class Autoencoder(nn.Sequential):
    """A linear layer with relu to the hidden units, and a linear layer with sigmoid back to the features.

    Source: the sparse autoencoders of Scorch, section 5.2.
    """

    def __init__(self, features: int = 784, hidden: int = 1024) -> None:
        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, features), nn.Sigmoid())
