"""Masks from files.

In: `mask.npz` of scipy's. Out: the matrix in it. Nothing in a file is run: no pickles.
"""

import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sparsify.errors import InvalidTensorError, path_of

WAYS: Final = "`.npy`, `.npz` of scipy.sparse.save_npz, `.mtx`, or `.pt` with one tensor"
# A file, what is compressed in it, and a dense mask have at most so many bytes.
MOST_BYTES: Final = 2 << 30


def load_mask(path: str | PathLike[str]) -> Any:
    """The matrix in a file.

    Raises:
        InvalidTensorError: no such file, no matrix in it, or one of more than 2 GiB.
    """
    file = path_of(path, "the file of a mask,")
    try:
        is_file = file.is_file()  # no pipe and no device, which might never end
    except OSError:  # a name that is too long
        is_file = False
    if not is_file:
        raise InvalidTensorError(f"there is no file {file}", f"the mask is in {WAYS}")
    try:
        _require_size(unpacked_bytes(file))
        found = _read(file)
    except Exception as error:  # libraries raise whatever they like for files that are none of theirs
        raise InvalidTensorError(f"{file} holds no mask: {error}", WAYS) from error
    if found is None:
        raise InvalidTensorError(f"{file.name} is of no kind that masks are read from", WAYS)
    return found


def unpacked_bytes(file: Path) -> int:
    """The bytes of a file, of an archive those of its members."""
    size = file.stat().st_size
    if file.suffix in (".npz", ".pt") and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            size = max(size, sum(member.file_size for member in archive.infolist()))
    return size


def _require_size(size: int) -> None:
    """Raises for what does not fit into memory that a mask may take."""
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

            found = torch.load(file, weights_only=True)
            if not isinstance(found, torch.Tensor) or found.is_nested:
                raise TypeError(f"{type(found).__name__}, not a tensor")
            if found.layout == torch.strided:  # small files may hold large views
                _require_size(found.nbytes)
            return found
    return None
