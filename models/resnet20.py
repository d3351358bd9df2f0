"""The residual network of 20 layers for small images.

In: images [batch, 3, image, image]. Out: logits [batch, classes].
Source: He, Zhang, Ren and Sun, Deep residual learning for image recognition, 2016, section 4.2: at changes of shape,
the identity is subsampled by 2 and padded with zero channels. Names of parameters follow
https://github.com/akamaster/pytorch_resnet_cifar10, so that its weights load.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify.errors import DataError

PREFIX = "module."


class BasicBlock(nn.Module):
    """Two convolutions of 3 x 3 beside the identity."""

    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, outputs - channels

    def forward(self, x: Tensor) -> Tensor:
        """Images [batch, channels, height, width] to [batch, outputs, height / stride, width / stride]."""
        y = torch.relu(self.bn1(self.conv1(x)))
        beside = x
        if self.more:
            low = self.more // 2
            beside = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, low, self.more - low))
        return torch.relu(self.bn2(self.conv2(y)) + beside)


class ResNet20(nn.Module):
    """A convolution, three stages of blocks and a classifier.

    Args:
        blocks: blocks of each stage; 3 make 20 layers, 9 make 56.
        channels: channels of the first stage; each further stage has twice as many and a quarter of the pixels.
        image: height and width of the input images.
        classes: number of logits.
        checkpoint: file of weights written by `torch.save`, "" for random weights.
    """

    def __init__(
        self, blocks: int = 3, channels: int = 16, image: int = 32, classes: int = 10, checkpoint: str = ""
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_channels=3, image_size=image)
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = stage(channels, channels, blocks)
        self.layer2 = stage(channels, 2 * channels, blocks)
        self.layer3 = stage(2 * channels, 4 * channels, blocks)
        self.linear = nn.Linear(4 * channels, classes)
        if checkpoint:
            load(self, Path(checkpoint).expanduser())

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, 3, height, width]."""
        x = torch.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        found: Tensor = self.linear(x.mean((2, 3)))
        return found


def stage(channels: int, outputs: int, blocks: int) -> nn.Sequential:
    """Blocks of a stage; the first block halves height and width if channels and outputs differ."""
    first = BasicBlock(channels, outputs, 1 if channels == outputs else 2)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


def load(model: nn.Module, file: Path) -> None:
    """Loads weights from a file: a state dict, or a mapping with a state dict under `state_dict`.

    Raises:
        DataError: there is no such file, or its weights are those of another model.
    """
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
        state = stored.get("state_dict", stored)
        model.load_state_dict({name.removeprefix(PREFIX): value for name, value in state.items()})
    except (OSError, RuntimeError, AttributeError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{file} holds no weights for this model: {reason}",
            "resnet20-12fca82f.th of github.com/akamaster/pytorch_resnet_cifar10 has those of ResNet-20",
        ) from None
