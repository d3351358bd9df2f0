"""Masks from files.

In: `mask.npz` of scipy's. Out: the matrix in it. Nothing in a file is run: no pickles.
"""

from os import PathLike
from pathlib import Path
from typing import Any

from sparsify.errors import InvalidTensorError, path_of

WAYS = "`.npy`, `.npz` of scipy.sparse.save_npz, `.mtx`, or `.pt` with one tensor"


def load_mask(path: str | PathLike[str]) -> Any:
    """The matrix in a file.

    Raises:
        InvalidTensorError: no such file, or no matrix in it.
    """
    file = path_of(path, "the file of a mask,")
    try:
        is_there = file.is_file()
    except OSError:  # a name longer than any file has
        is_there = False
    if not is_there:
        raise InvalidTensorError(f"there is no file {file}", f"the mask is in {WAYS}")
    try:
        found = _read(file)
    except Exception as error:  # libraries raise whatever they like for files that are none of theirs
        raise InvalidTensorError(f"{file} holds no mask: {error}", WAYS) from error
    if found is None:
        raise InvalidTensorError(f"{file.name} is of no kind that masks are read from", WAYS)
    return found


def _read(file: Path) -> Any:
    """What a file of a known kind holds."""
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
            if not isinstance(found, torch.Tensor):
                raise TypeError(f"{type(found).__name__}, not a tensor")
            return found
    return None
