"""Residual networks of bottlenecks.

In: images [batch, 3, image, image]. Out: logits [batch, classes].
Source: He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2016; the 3x3 convolution of a bottleneck
has its stride, as in later versions.
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

# Output channels of a bottleneck for each inner one.
EXPANSION = 4
# Inner channels of the first stage; each further stage has twice as many.
CHANNELS = 64


def convolution(channels: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution with its normalisation; image extents change only by the stride."""
    conv = nn.Conv2d(channels, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside the identity, or beside a 1x1 convolution if shapes change."""

    def __init__(self, channels: int, inner: int, stride: int = 1) -> None:
        super().__init__()
        outputs = EXPANSION * inner
        self.reduce = convolution(channels, inner, 1)
        self.inner = convolution(inner, inner, 3, stride)
        self.expand = convolution(inner, outputs, 1)
        is_same = stride == 1 and channels == outputs
        self.beside = nn.Identity() if is_same else convolution(channels, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Images [batch, channels, height, width] to [batch, 4 inner, height / stride, width / stride]."""
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.inner(y))
        return torch.relu(self.expand(y) + self.beside(x))


class ResNet(nn.Module):
    """A stem, stages of bottlenecks and a classifier; stages of 3, 4, 6 and 3 bottlenecks make ResNet-50.

    Args:
        blocks: number of bottlenecks of each stage.
        channels: inner channels of the first stage.
        image: height and width of the input images.
        classes: number of logits.
    """

    def __init__(
        self,
        blocks: tuple[int, ...] = (3, 4, 6, 3),
        channels: int = CHANNELS,
        image: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_channels=3, image_size=image)
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, now = [], channels
        for stage, count in enumerate(blocks):
            inner = channels << stage
            first = Bottleneck(now, inner, 1 if stage == 0 else 2)
            now = EXPANSION * inner
            stages.append(nn.Sequential(first, *(Bottleneck(now, inner) for _ in range(count - 1))))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(now, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, 3, height, width]."""
        found: Tensor = self.classifier(self.stages(self.stem(images)).mean((2, 3)))
        return found
