"""Masks from files.

In: a `mask.npz` of scipy. Out: the stored matrix. Nothing in a file is executed: no pickles.
"""

import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sparsify.errors import InvalidTensorError, path_of

WAYS: Final = "`.npy`, `.npz` of scipy.sparse.save_npz, `.mtx`, or `.pt` with one tensor"
# Maximum bytes of a file, of its decompressed contents, and of a dense mask.
MOST_BYTES: Final = 2 << 30


def load_mask(path: str | PathLike[str]) -> Any:
    """The matrix in a file.

    Raises:
        InvalidTensorError: no such file, no matrix in the file, or a matrix of more than 2 GiB.
    """
    file = path_of(path, "the file of a mask,")
    try:
        is_file = file.is_file()  # no pipe and no device, possibly without an end
    except OSError:  # a name too long
        is_file = False
    if not is_file:
        raise InvalidTensorError(f"there is no file {file}", f"the mask is in {WAYS}")
    try:
        _require_size(unpacked_bytes(file))
        matrix = _read(file)
    except Exception as error:  # libraries raise arbitrary errors for foreign files
        raise InvalidTensorError(f"{file} holds no mask: {error}", WAYS) from error
    if matrix is None:
        raise InvalidTensorError(f"{file.name} is of no kind that masks are read from", WAYS)
    return matrix


def unpacked_bytes(file: Path) -> int:
    """The bytes of a file; for an archive the bytes of the members."""
    size = file.stat().st_size
    if file.suffix in (".npz", ".pt") and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            size = max(size, sum(member.file_size for member in archive.infolist()))
    return size


def _require_size(size: int) -> None:
    """Raises for a size above the memory limit of masks."""
    if size > MOST_BYTES:
        raise ValueError(f"{size} bytes, more than {MOST_BYTES}")


def _read(file: Path) -> Any:
    """The array, matrix or tensor in a file of a known kind."""
    match file.suffix:
        case ".npy":
            import numpy

            return numpy.load(file, allow_pickle=False)
        case ".npz":
            from scipy import sparse

            return sparse.load_npz(file)
        case ".mtx":
            from scipy import io

            return io.mmread(file)
        case ".pt":
            import torch

            loaded = torch.load(file, weights_only=True)
            if not isinstance(loaded, torch.Tensor) or loaded.is_nested:
                raise TypeError(f"{type(loaded).__name__}, not a tensor")
            if loaded.layout == torch.strided:  # small files may hold large views
                _require_size(loaded.nbytes)
            return loaded
    return None
