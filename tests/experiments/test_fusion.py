"""Rows of attention at a tiny size: right results, a table."""

import pytest
import torch

from experiments.foundation.command import table
from experiments.fusion import command
from experiments.fusion.masks import bigbird, window
from sparsify.bench.place import Place

TINY = Place(None, 0.02)


@pytest.mark.parametrize("name", ["attention-window-4096-64", "attention-one-head-1024-16"])
def test_row(name):
    row = command.run_row(name, TINY, quick=True)
    assert all(c["error"] is not None and c["median_us"] > 0 for c in row["contenders"])
    assert row["name"] in table([row])


def test_patterns():
    kept = bigbird(64)
    assert bool(kept[0].all()) and bool(kept[:, -1].all())
    assert set(kept[2:-2].sum(1).tolist()) <= {7, 8} and 0.12 < float(kept.float().mean()) < 0.16
    assert torch.equal(kept, bigbird(64)) and not torch.equal(kept, bigbird(64, seed=1))
    assert bool(bigbird(4).all())
    assert window(9, 2).sum(1).tolist() == [3, 4, 5, 5, 5, 5, 5, 4, 3]


def test_names_begin_with_the_rows():
    assert {"attention-1024-16", "attention-4096-64", "attention-1024-64"} <= command.CASES.keys()
