"""Checkpoints with masks of other libraries as plain states."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.utils import prune

import sparsify
from sparsify.errors import SparsifyError


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def pruned() -> tuple[nn.Sequential, WeightNormSparsifier]:
    """Layers under masks of two libraries; the second keeps its own in the state of the sparsifier."""
    found = layers()
    prune.random_unstructured(found[0], "weight", 0.5)
    prune.random_unstructured(found[0], "bias", 0.5)
    sparsifier = WeightNormSparsifier(sparsity_level=0.5, sparse_block_shape=(1, 1), zeros_per_block=1)
    sparsifier.prepare(found, [{"tensor_fqn": "2.weight"}])
    sparsifier.step()
    return found, sparsifier


def test_a_merged_state_is_that_of_the_plain_model():
    (given, sparsifier), plain, x = pruned(), layers(), torch.randn(3, 8)
    state = given.state_dict()
    names = list(state)
    masks = {name: told["mask"] for name, told in sparsifier.state_dict()["state"].items()}
    merged = sparsify.merge_masks(state, masks)
    plain.load_state_dict(merged)
    assert torch.equal(plain(x), given(x))
    assert int((plain[0].weight == 0).sum()) == 32
    assert int((plain[2].weight == 0).sum()) == 16
    assert "2.parametrizations.weight.original" in sparsify.merge_masks(state)
    assert list(state) == names
    assert list(sparsify.merge_masks(merged)) == list(merged)


def test_several_parametrizations_are_one_mask():
    mask = torch.eye(2)
    found = sparsify.merge_masks(
        {
            "parametrizations.weight.original": torch.full((2, 2), 3.0),
            "parametrizations.weight.0.mask": mask,
            "parametrizations.weight.1.mask": mask.flip(0).logical_not(),
        }
    )
    assert found.keys() == {"weight"}
    assert torch.equal(found["weight"], 3 * mask)


def test_names_that_are_no_masks_stay():
    ones = torch.ones(2)
    state = {
        "attention.mask": ones,
        "token_mask": ones,
        "conv.weight_orig": ones,  # of torch.nn.utils.spectral_norm
        "conv.weight_u": ones,
        "parametrizations.weight.original": ones,
        "parametrizations.weight.0._u": ones,
        "fc.weight": ones,
        "fc.weight_mask": ones,
        "version": 3,
    }
    found = sparsify.merge_masks(state)
    assert list(found) == list(state)
    assert all(found[name] is value for name, value in state.items())


WEIGHT = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a.weight_orig": WEIGHT}, "has a.weight_orig and no a.weight_mask"),
        ({"a.weight_mask": WEIGHT}, "has a.weight_mask and no a.weight_orig"),
        (
            {"weight_orig": WEIGHT, "weight_mask": torch.ones(2)},
            r"weight_mask is \[2\], weight_orig \[2, 2\]",
        ),
        ({"weight_orig": WEIGHT, "weight_mask": 2 * WEIGHT}, r"weight_mask is 2 at \[0, 0\]"),
        ({"weight_orig": WEIGHT, "weight_mask": WEIGHT * torch.nan}, r"weight_mask is nan at \[0, 0\]"),
        ({"weight_orig": WEIGHT * torch.nan, "weight_mask": 0 * WEIGHT}, "weight_orig is nan at"),
        ({"weight_orig": WEIGHT, "weight_mask": WEIGHT, "weight": WEIGHT}, "has weight and weight_orig"),
        ({"weight": WEIGHT, "weight_orig": WEIGHT, "weight_mask": WEIGHT}, "has weight and weight_orig"),
        ({"weight_orig": WEIGHT, "weight_mask": WEIGHT + 0j}, "weight_mask is torch.complex64"),
        ({"weight_orig": 3, "weight_mask": WEIGHT}, "weight_orig is a int"),
        ({"weight_orig": WEIGHT, "weight_mask": None}, "weight_mask is a NoneType"),
        (layers(), "merge_masks of a Sequential"),
    ],
)
def test_states_that_have_no_meaning(state: Any, text: str):
    with pytest.raises(SparsifyError, match=text):
        sparsify.merge_masks(state)


def test_masks_for_no_weight():
    with pytest.raises(SparsifyError, match=r"no weight fc.wieght for a mask; did you mean 'fc.weight'"):
        sparsify.merge_masks({"fc.weight": WEIGHT}, {"fc.wieght": WEIGHT})
    with pytest.raises(SparsifyError, match=r"the mask of fc.weight is \[2\]"):
        sparsify.merge_masks({"fc.weight": WEIGHT}, {"fc.weight": torch.ones(2)})
