"""Images as rows of grey values from 0 to 1, as prepared in appendix E.3.

In: `rows_of("cifar10", root)`. Out: rows for training [n, 1024] and for test [m, 1024].
"""

import pickle
import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import DataError
from sparsify.models.data.folders import find
from sparsify.models.data.images import Arrays, images

CIFAR: Final = {
    "cifar10": ("cifar-10-batches-py", "data_batch_?", "test_batch"),
    "cifar100": ("cifar-100-python", "train", "test"),
}
GREY: Final = (0.299, 0.587, 0.114)  # ITU-R BT.601
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def rows_of(name: str, root: Path | None) -> tuple[Tensor, Tensor]:
    """Images of a data set, for training and for test.

    Raises:
        DataError: files are missing or cannot be read.
    """
    if name == "mnist":
        found = images("mnist", root)
        return found.train[0].flatten(1), found.val[0].flatten(1)
    if name in CIFAR:
        folder, train, test = CIFAR[name]
        place = _folder(name, folder, root, train.replace("?", "1"))
        batches = torch.cat([_photographs(file) for file in sorted(place.glob(train))])
        return batches, _photographs(place / test)
    place = _folder(name, "olivetti_faces", root, "train/s01/01.png")
    return _faces(place / "train"), _faces(place / "test")


def _folder(name: str, folder: str, root: Path | None, witness: str) -> Path:
    """Folder of a data set."""
    place = None if root is None else find((folder, "."), root, witness)
    if place is None:
        raise DataError(
            f"{name} is not here: looked for {folder}/{witness} under {root or 'no data root'}",
            f"--data-root names the folder that holds {folder}",
        )
    return place


def _photographs(file: Path) -> Tensor:
    """Grey rows [n, 1024] of a batch of CIFAR."""
    try:
        with file.open("rb") as stream:
            loaded = Arrays(stream, encoding="bytes").load()
        stored = {key.decode() if isinstance(key, bytes) else key: value for key, value in loaded.items()}
        pixels = torch.from_numpy(np.array(stored["data"], np.uint8)).view(-1, 3, 1024).float() / 255
    except (
        OSError,
        pickle.UnpicklingError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        EOFError,
    ) as error:
        raise DataError(f"{file} cannot be read: {error}", "fetch the set again") from None
    return torch.einsum("ncp,c->np", pixels, torch.tensor(GREY))


def _faces(folder: Path) -> Tensor:
    """Rows [n, 4096] of the images below a folder."""
    files = sorted(folder.glob("*/*.png"))
    if not files:
        raise DataError(f"{folder} has no images", "fetch the set again")
    return torch.stack([grey_png(file).flatten().float() / 255 for file in files])


def grey_png(file: Path) -> Tensor:
    """Pixels [height, width] of a grey 8-bit PNG without interlacing.

    Raises:
        DataError: any other file.

    Source: Portable Network Graphics, W3C Recommendation, 2003, sections 9.2 and 11.2.
    """
    content = file.read_bytes()
    if not content.startswith(SIGNATURE):
        raise DataError(f"{file} is no PNG", "fetch the set again")
    at, header, data = len(SIGNATURE), b"", b""
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        header = body if kind == b"IHDR" else header
        data += body if kind == b"IDAT" else b""
        at += length + 12
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if (depth, colour, interlaced) != (8, 0, 0):
        raise DataError(f"{file} is no grey image of 8 bits", "convert it")
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, width + 1)
    return torch.from_numpy(_unfiltered(raw))


def _unfiltered(
    raw: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]",
) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """Pixels of filtered scan lines; each line begins with its filter's number."""
    height, width = raw.shape[0], raw.shape[1] - 1
    found = np.zeros((height + 1, width + 1), np.int64)  # a line and a column of zeros before the image
    for y in range(1, height + 1):
        kind = int(raw[y - 1, 0])
        for x in range(1, width + 1):
            left, up, corner = int(found[y, x - 1]), int(found[y - 1, x]), int(found[y - 1, x - 1])
            guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind]
            found[y, x] = (int(raw[y - 1, x]) + guess) % 256
    return found[1:, 1:].astype(np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    """Paeth predictor: the neighbour closest to `left + up - corner`."""
    return min((left, up, corner), key=lambda value: abs(left + up - corner - value))
