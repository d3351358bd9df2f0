"""Inputs of models that run on no graph."""

from types import SimpleNamespace

import pytest
import torch

from sparsify.errors import SparsifyError
from sparsify.models import data, registry
from sparsify.models.samples import sample


def drawn(name, sizes, batch=None, **how):
    entry = registry.find(name)
    return sample(entry, entry.make(sizes), batch, None, 0, **how)


def test_pixels_are_mostly_zero():
    (x,), text = drawn("autoencoder", {"features": 300, "hidden": 8}, 50)
    assert text == "50 rows of 300 features"
    assert float(x.min()) >= 0 and float(x.max()) <= 1
    assert float((x != 0).float().mean()) == pytest.approx(0.19, abs=0.02)


def test_bags_name_rows_of_every_table():
    (numbers, indices), text = drawn("dlrm", {"rows": 30, "tables": 3, "columns": 4, "hidden": 8}, 7)
    assert (numbers.shape, indices.shape) == ((7, 13), (3, 7, 20))
    assert int(indices.min()) >= 0 and int(indices.max()) < 30
    assert text == "7 examples, 20 rows of each of 3 tables"
    again, _ = drawn("dlrm", {"rows": 30, "tables": 3, "columns": 4, "hidden": 8}, 7)
    assert torch.equal(again[1], indices)


@pytest.mark.parametrize(
    ("batch", "seq", "shape", "text"),
    [
        (None, None, (8, 128), "8 x 128 tokens"),
        (None, 64, (8, 64), "8 x 64 tokens"),
        (None, 512, (2, 512), "2 x 512 tokens (--batch 8 for more)"),
        (None, 4096, (1, 4096), "1 x 4096 tokens (--batch 8 for more)"),
        (3, 512, (3, 512), "3 x 512 tokens"),
    ],
)
def test_long_texts_are_few(batch, seq, shape, text):
    config = SimpleNamespace(max_position_embeddings=4096, vocab_size=9)
    (drawn,), found = sample(registry.find("bert"), SimpleNamespace(config=config), batch, seq, 0)
    assert (tuple(drawn.shape), found) == (shape, text)
    assert int(drawn.max()) < 9


def test_images_of_a_data_set(monkeypatch):
    monkeypatch.setattr(data, "mnist", lambda root: torch.arange(24.0).view(4, 6))
    (x,), text = drawn("autoencoder", {"features": 6}, 3, dataset="mnist")
    assert x.tolist() == torch.arange(18.0).view(3, 6).tolist()
    assert text == "3 images of 6 pixels"
    with pytest.raises(SparsifyError, match="mnist has 6 pixels, the model 784 features; features=6"):
        drawn("autoencoder", {}, 3, dataset="mnist")
    with pytest.raises(SparsifyError, match="--batch 5: mnist has 4 test images"):
        drawn("autoencoder", {"features": 6}, 5, dataset="mnist")
