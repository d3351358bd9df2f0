"""Images of digits, from a file of the same layout."""

import gzip

import pytest
import torch

from sparsify.errors import DataError
from sparsify.models.data.mnist import FILE, mnist


def write(folder, content):
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(content)


def header(*numbers):
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def test_rows_of_pixels(tmp_path):
    write(tmp_path / "mnist" / "raw", gzip.compress(header(2051, 2, 1, 3) + bytes([0, 51, 255, 102, 0, 0])))
    torch.testing.assert_close(mnist(tmp_path), torch.tensor([[0, 0.2, 1], [0.4, 0, 0]]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "cannot be read"),
        (gzip.compress(bytes(100), mtime=0)[:10] + b"\xff" * 20, "cannot be read"),
        (gzip.compress(header(2051, 2, 1, 3) + bytes(5), mtime=0), "is no whole file of images"),
        (gzip.compress(header(2049, 2) + bytes(2), mtime=0), "is no whole file of images"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    write(tmp_path / "MNIST" / "raw", content)
    with pytest.raises(DataError, match=message):
        mnist(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match="no folder is given; --data-root names the folder"):
        mnist(None)
    with pytest.raises(DataError, match="has none of MNIST/raw"):
        mnist(tmp_path)
