"""Attacks on files with masks: sizes that do not fit into memory, code, files that never end."""

import os
import zipfile
from io import BytesIO

import numpy
import pytest
import torch

from sparsify.errors import InvalidTensorError, SparsifyError
from sparsify.sparsification.masks.patterns import from_file


def array_file(shape, kind="|b1", data=b""):
    """A `.npy` file that promises more than it holds."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data


def bomb(path):
    """A small archive whose member unpacks to more than memory holds, by its own word."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(1000))
    entry = stream.getvalue().rfind(b"PK\x01\x02") + 24
    data = bytearray(stream.getvalue())
    data[entry : entry + 4] = (0xFFFF0000).to_bytes(4, "little")
    path.write_bytes(data)


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("run",))


def saved(value):
    return lambda path: torch.save(value, path)


def written(data):
    return lambda path: path.write_bytes(data)


def head(text):
    return written(f"%%MatrixMarket matrix {text}\n".encode())


FILES = {
    "large.npy": (written(array_file((10**9, 10**9))), "holds no mask"),
    "short.npy": (written(array_file((9, 9))), "holds no mask"),
    "negative.npy": (written(array_file((-4, -4), data=b"x" * 16)), "holds no mask"),
    "objects.npy": (written(array_file((2, 2), "|O", b"x" * 99)), "holds no mask"),
    "texts.npy": (written(array_file((2, 2), "<U1", b"x" * 16)), "cannot read data"),
    "vector.npy": (written(array_file((4,), data=b"\1" * 4)), r"a mask of shape \[4\]"),
    "bomb.npz": (bomb, "4294901760 bytes, more than 2147483648"),
    "bomb.pt": (bomb, "4294901760 bytes, more than 2147483648"),
    "none.npz": (written(b"PK"), "holds no mask"),
    "view.pt": (saved(torch.ones(1).expand(10**6, 10**6)), "4000000000000 bytes, more than"),
    "evil.pt": (saved(Evil()), "holds no mask"),
    "dict.pt": (saved({"a": 1}), "holds no mask: dict, not a tensor"),
    "large.mtx": (head("array real general\n1000000 1000000\n1"), "holds no mask"),
    "many.mtx": (head("coordinate real general\n3 3 1000000000000\n1 1 1"), "holds no mask"),
    "outside.mtx": (head("coordinate real general\n3 3 1\n9 9 1"), "holds no mask"),
    "mask.txt": (written(b"1"), "is of no kind that masks are read from"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_mask(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, words = FILES[name]
    write(tmp_path / name)
    with pytest.raises(InvalidTensorError, match=words):
        from_file(tmp_path / name)
    assert not (tmp_path / "run").exists()


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.npy", tmp_path / "zero.npy", tmp_path, "a" * 5000):
        with pytest.raises(InvalidTensorError, match="there is no file"):
            from_file(path)
    for path in (3, None, ["mask.npy"]):
        with pytest.raises(SparsifyError, match=r"a path, as text or pathlib.Path"):
            from_file(path)


def test_sparse_tensors_of_large_shapes(tmp_path):
    large = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (10**5, 10**5))
    with torch.sparse.check_sparse_tensor_invariants():
        torch.save(large, tmp_path / "large.pt")
    assert from_file(tmp_path / "large.pt").nnz == 256
    numpy.save(tmp_path / "mask.npy", numpy.eye(3))
    assert torch.equal(from_file(tmp_path / "mask.npy").to_dense(), torch.eye(3, dtype=torch.bool))
