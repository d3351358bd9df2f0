"""Images with classes: MNIST and CIFAR-10 from files, or generated images.

In: `images("mnist", Path("/data"))`. Out: an `Images` of pixels [n, channels, height, width] and classes, for training
and for validation.
"""

import gzip
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import DataError
from sparsify.models.data.folders import find

MNIST: Final = ("MNIST/raw", "MNIST", "raw", ".")
PARTS: Final = {"train": "train", "val": "t10k"}
CIFAR: Final = ("cifar-10-batches-py", ".")
# Mean and deviation of ImageNet's pixels, assumed by published weights for CIFAR-10.
MEAN: Final = (0.485, 0.456, 0.406)
SPREAD: Final = (0.229, 0.224, 0.225)
GENERATED: Final = (2000, 500)
NOISE: Final = 0.7


@dataclass(frozen=True, slots=True)
class Images:
    """Pixels and classes for training and validation, the name of the source, and the split in words."""

    name: str
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    split: str


def images(
    name: str = "synthetic",
    root: Path | None = None,
    seed: int = 0,
    shape: tuple[int, int, int] = (1, 28, 28),
) -> Images:
    """Images called `name`; generated images have the given shape and 10 classes.

    Raises:
        DataError: files are missing or cannot be read.
    """
    match name:
        case "synthetic":
            return generated(seed, shape)
        case "mnist":
            return mnist(root)
        case "cifar10":
            return cifar10(root)
    raise DataError(f"there are no images {name!r}", "one of synthetic, mnist, cifar10")


def is_there(name: str, root: Path) -> bool:
    """Whether a folder of data sets contains the images `name`."""
    folders, witness = (MNIST, "train-images-idx3-ubyte.gz") if name == "mnist" else (CIFAR, "data_batch_1")
    return find(folders, root, witness) is not None


def mnist(root: Path | None) -> Images:
    """Digits of MNIST, pixels from 0 to 1."""
    folder = None if root is None else find(MNIST, root, "train-images-idx3-ubyte.gz")
    if folder is None:
        raise DataError(
            f"mnist is not here: looked for MNIST/raw/train-images-idx3-ubyte.gz under {root or 'no data root'}",
            "--data-root names the folder that holds MNIST/raw; --dataset synthetic needs no files",
        )
    parts = []
    for part in PARTS.values():
        pixels = idx(folder / f"{part}-images-idx3-ubyte.gz", 3)
        classes = idx(folder / f"{part}-labels-idx1-ubyte.gz", 1)
        if len(pixels) != len(classes):
            raise DataError(f"{folder}: {len(pixels)} images, {len(classes)} classes", "fetch the set again")
        parts.append((pixels[:, None].float() / 255, classes.long()))
    return Images("mnist", parts[0], parts[1], "t10k")


def idx(file: Path, modes: int) -> Tensor:
    """Bytes of an IDX file, shaped by its header with the extent of each mode.

    Raises:
        DataError: it is missing or no such file.
    """
    try:
        content = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}", "fetch the file again") from None
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(0, 4 * (modes + 1), 4)]
    start = 4 * len(sizes)
    if sizes[0] != 2048 + modes or len(content) - start != np.prod(sizes[1:]):
        raise DataError(f"{file} is no whole file", "fetch the file again")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(*sizes[1:])


def cifar10(root: Path | None) -> Images:
    """Photographs of CIFAR-10, normalised by ImageNet's mean and deviation; all batches present in the folder."""
    folder = None if root is None else find(CIFAR, root, "data_batch_1")
    if folder is None:
        raise DataError(
            f"cifar10 is not here: looked for {CIFAR[0]}/data_batch_1 under {root or 'no data root'}",
            "unpack cifar-10-python.tar.gz (cs.toronto.edu/~kriz/cifar.html) and give its folder by --data-root DIR; "
            "--dataset synthetic needs no files",
        )
    batches = [photographs(file) for file in sorted(folder.glob("data_batch_?"))]
    train = (torch.cat([pixels for pixels, _ in batches]), torch.cat([classes for _, classes in batches]))
    return Images("cifar10", train, photographs(folder / "test_batch"), "test_batch")


class Arrays(pickle.Unpickler):
    """Unpickler restricted to arrays and built-in values."""

    def find_class(self, module: str, name: str) -> Any:
        """Class named by a pickle, restricted to classes of arrays and built-in values."""
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs") and name in (
            "ndarray",
            "dtype",
            "_reconstruct",
            "encode",
        ):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"names {module}.{name}")


def photographs(file: Path) -> tuple[Tensor, Tensor]:
    """Pixels [n, 3, 32, 32] and classes of a batch.

    Raises:
        DataError: it is missing, or holds something else.
    """
    try:
        with file.open("rb") as stream:
            loaded = Arrays(stream, encoding="bytes").load()
        # Keys are bytes in archives written by Python 2, texts in others.
        stored = {key.decode() if isinstance(key, bytes) else key: value for key, value in loaded.items()}
        pixels = torch.from_numpy(np.array(stored["data"], np.uint8)).view(-1, 3, 32, 32).float() / 255
        classes = torch.tensor(stored["labels"])
    except (
        OSError,
        pickle.UnpicklingError,
        KeyError,
        AttributeError,
        TypeError,
        ValueError,
        RuntimeError,
        EOFError,
    ) as error:
        raise DataError(f"{file} cannot be read: {error}", "fetch the set again") from None
    mean, spread = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, SPREAD))
    return (pixels - mean) / spread, classes


def generated(seed: int, shape: tuple[int, int, int], classes: int = 10) -> Images:
    """Random images: noise around one pattern for each class."""
    draw = torch.Generator().manual_seed(seed)
    patterns = torch.rand(classes, *shape, generator=draw)

    def part(count: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(classes, (count,), generator=draw)
        return patterns[drawn] + NOISE * torch.randn(count, *shape, generator=draw), drawn

    return Images("synthetic", part(GENERATED[0]), part(GENERATED[1]), "drawn anew")
