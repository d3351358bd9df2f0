"""Test images of MNIST as rows of numbers from 0 to 1; four fifths of the numbers are 0.

In: `mnist("/data")`. Out: a tensor [10000, 784].
"""

import gzip
import zlib
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from sparsify.errors import DataError
from sparsify.models.data.folders import find

FILE: Final = "t10k-images-idx3-ubyte.gz"
FOLDERS: Final = ("MNIST/raw", "MNIST", "raw", ".")
# Bytes of the header: magic number, number of images, height and width, 4 bytes each.
HEADER: Final = 16


def mnist(root: Path | None) -> Tensor:
    """Test images, one image per row.

    Raises:
        DataError: the file is missing, or is no file of images.
    """
    folder = None if root is None else find(FOLDERS, root, FILE)
    if folder is None:
        looked = "no folder is given" if root is None else f"{root} has none of {', '.join(FOLDERS)} with it"
        raise DataError(f"mnist needs {FILE}: {looked}", "--data-root names the folder that holds MNIST/raw")
    try:
        content = gzip.decompress((folder / FILE).read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{folder / FILE} cannot be read: {error}", "fetch the file again") from None
    kind, images, height, width = (int.from_bytes(content[at : at + 4], "big") for at in range(0, HEADER, 4))
    if kind != 2051 or len(content) != HEADER + images * height * width:
        raise DataError(f"{folder / FILE} is no whole file of images", "fetch the file again")
    pixels = torch.frombuffer(bytearray(content[HEADER:]), dtype=torch.uint8)
    return pixels.view(images, height * width) / 255
