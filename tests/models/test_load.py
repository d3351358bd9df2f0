"""Data sets by name."""

import pytest

from sparsify.errors import DataError
from sparsify.models import data, registry


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match=r"no data set 'coral'; one of synthetic, cora, .*ogbn-arxiv"):
        data.load("coral")


def test_root_that_is_no_folder(tmp_path):
    with pytest.raises(DataError, match="is no folder"):
        data.load("cora", tmp_path / "nothing")


def test_registry_names_the_same_sets():
    assert registry.GRAPHS == data.NAMES


def test_seed_reaches_the_generator():
    assert data.load("synthetic", seed=1).fingerprint != data.load("synthetic", seed=2).fingerprint
