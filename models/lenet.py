"""LeNet-300-100 and LeNet-5, the digit classifiers of the pruning literature.

In: images [batch, 1, 28, 28] for `LeNet5`, rows of pixels [batch, 784] for `LeNet300`. Out: logits [batch, classes].
Source: LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998; with relu and
max pooling instead of the original activations and sums, as in later versions.
"""

from types import SimpleNamespace

from torch import nn


class LeNet300(nn.Sequential):
    """Linear layers of 300 and 100 outputs, and a classifier."""

    def __init__(self, features: int = 784, first: int = 300, second: int = 100, classes: int = 10) -> None:
        super().__init__(
            nn.Linear(features, first),
            nn.ReLU(),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, classes),
        )


class LeNet5(nn.Sequential):
    """Two convolutions of 5 x 5, each with 2 x 2 max pooling, and three linear layers."""

    def __init__(self, image: int = 28, classes: int = 10) -> None:
        side = (image // 2 - 4) // 2
        if side < 1:
            raise ValueError(f"images of {image} x {image}: nothing is left of them after two convolutions")
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * side**2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
        self.config = SimpleNamespace(num_channels=1, image_size=image)
