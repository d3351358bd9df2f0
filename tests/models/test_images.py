"""Images with classes, from tiny files of the usual layouts."""

import gzip
import pickle

import numpy as np
import pytest
import torch

from sparsify.errors import DataError
from sparsify.models.data import images
from sparsify.models.data.images import MEAN, SPREAD


def idx(*sizes, values):
    kind = (2048 + len(sizes)).to_bytes(4, "big")
    return gzip.compress(kind + b"".join(size.to_bytes(4, "big") for size in sizes) + bytes(values))


def test_digits(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(2, 1, 2, values=[0, 51, 255, 0]))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(2, values=[7, 1]))
    found = images("mnist", tmp_path)
    torch.testing.assert_close(found.train[0], torch.tensor([[[[0.0, 0.2]]], [[[1.0, 0.0]]]]))
    assert found.val[1].tolist() == [7, 1]
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(3, values=[7, 1]))
    with pytest.raises(DataError, match="no whole file"):
        images("mnist", tmp_path)


@pytest.mark.parametrize("keys", [(b"data", b"labels"), ("data", "labels")], ids=str)
def test_photographs(tmp_path, keys):
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        data = np.full((2, 3072), 255, np.uint8)
        (tmp_path / name).write_bytes(pickle.dumps(dict(zip(keys, (data, [3, 4]), strict=True))))
    found = images("cifar10", tmp_path)
    assert found.train[0].shape == (4, 3, 32, 32) and found.train[1].tolist() == [3, 4, 3, 4]
    assert float(found.val[0][0, 0, 0, 0]) == pytest.approx((1 - MEAN[0]) / SPREAD[0])


def test_a_pickle_that_would_run_code(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(print))
    with pytest.raises(DataError, match=r"names builtins\.print"):
        images("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing(name, tmp_path):
    with pytest.raises(DataError, match=f"{name} is not here"):
        images(name, tmp_path)


def test_generated():
    found = images(seed=3, shape=(3, 8, 8))
    assert found.train[0].shape[1:] == (3, 8, 8)
    assert torch.equal(found.train[0], images(seed=3, shape=(3, 8, 8)).train[0])


def test_real(data_root):
    assert images("cifar10", data_root).val[0].shape == (1000, 3, 32, 32)
