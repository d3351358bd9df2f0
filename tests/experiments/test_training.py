"""Every kind of row of training steps at a tiny size: right gradients, a table."""

import pytest
import torch

from experiments.foundation.command import table
from experiments.training import command, steps
from sparsify.bench.harness import WrongResultError
from sparsify.bench.place import Place

TINY = Place(None, 0.05)


@pytest.mark.parametrize("name", ["step-90", "adamw-90", "gradient-90", "grid-50-256-768"])
def test_row(name):
    row = command.run_row(name, TINY, quick=True)
    assert row["name"] == name
    assert all(contender["median_us"] > 0 for contender in row["contenders"])
    assert name in table([row])


def test_encoder():
    pytest.importorskip("transformers", reason="transformers is not installed")
    row = command.run_row("bert-layer-90", Place(None, 0.1), quick=True)
    assert [c["name"] for c in row["contenders"]] == ["sparsify", "torch", "torch bfloat16"]


def test_wrong_gradients_are_not_timed():
    right, wrong = torch.ones(2, dtype=torch.float64), torch.tensor([1.0, 1.1])
    with pytest.raises(WrongResultError, match=r"row: w of us differs from float64 by 0\.1"):
        steps._require("row", "us", {"w": (wrong, right)})


def test_gradients_of_nothing_are_measured_by_the_others():
    noise, nothing = torch.full((2,), 1e-9), torch.zeros(2, dtype=torch.float64)
    one = torch.ones(2)
    steps._require("row", "us", {"w": (one, one.double()), "key.bias": (noise, nothing)})
