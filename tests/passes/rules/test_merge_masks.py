"""Masked weights of other libraries become the stored patterns of parameters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.utils import parametrize, prune

import sparsify
from sparsify import recipe as recipes
from sparsify.errors import RecipeError
from sparsify.passes.rules.merge_masks import merge_masks
from sparsify.storage.subclass.trained_masks import entries
from sparsify.training import mask_of

GIVEN: dict[str, Any] = {
    "schema": 1,
    "name": "given",
    "sparsify": [{"targets": ["param:*.weight"], "source": "given"}],
}


def model(width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


def by_torch(layers: nn.Sequential) -> None:
    for at in (0, 2):
        prune.l1_unstructured(layers[at], "weight", 0.9)


def by_steps(layers: nn.Sequential) -> None:
    """A `PruningContainer` of two methods."""
    for at in (0, 2):
        prune.random_unstructured(layers[at], "weight", 0.5)
        prune.l1_unstructured(layers[at], "weight", 0.8)


def by_rows(layers: nn.Sequential) -> None:
    for at in (0, 2):
        prune.ln_structured(layers[at], "weight", 0.9, n=2, dim=0)


def globally(layers: nn.Sequential) -> None:
    prune.global_unstructured(
        [(layers[0], "weight"), (layers[2], "weight")], prune.L1Unstructured, amount=0.9
    )


def by_sparsifier(layers: nn.Sequential) -> None:
    found = WeightNormSparsifier(sparsity_level=0.9, sparse_block_shape=(1, 1), zeros_per_block=1)
    found.prepare(layers, [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}])
    found.step()


class Mask(nn.Module):
    """A parametrization of a user's."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mask


def by_parametrizations(layers: nn.Sequential) -> None:
    for at in (0, 2):
        for _ in range(2):
            mask = torch.rand_like(layers[at].weight) < 0.3
            parametrize.register_parametrization(layers[at], "weight", Mask(mask))


WAYS = [by_torch, by_steps, by_rows, globally, by_sparsifier, by_parametrizations]


def expected_masks(layers: nn.Sequential) -> dict[str, torch.Tensor]:
    """Where the weights of the layers are not 0, which random originals are not."""
    with torch.no_grad():
        layers(layers[2].bias.new_zeros(1, layers[0].in_features))  # hooks compute the weights
        return {f"{at}.weight": layers[at].weight != 0 for at in (0, 2)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_mask_is_the_pattern_of_a_frozen_weight(way: Callable[[nn.Sequential], None]):
    layers = model()
    way(layers)
    layers.eval()
    x, names = torch.randn(64, 256), list(layers.state_dict())
    masks, expected = expected_masks(layers), layers(x)
    sparse = sparsify.apply(layers, GIVEN, x)
    torch.testing.assert_close(sparse(x), expected, rtol=1e-4, atol=1e-5)
    assert sorted(sparse.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    for name, mask in masks.items():
        assert torch.equal(sparse.state_dict()[name] != 0, mask)
    assert "0.weight stores 0." in sparse.report.rules[0].note
    assert list(layers.state_dict()) == names  # the model keeps its masks
    torch.testing.assert_close(layers(x), expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", [by_torch, by_rows, by_sparsifier], ids=lambda way: way.__name__)
def test_training_is_that_of_the_masked_model(way: Callable[[nn.Sequential], None]):
    layers, given = (model().double() for _ in range(2))
    for one in (layers, given):
        torch.manual_seed(1)
        way(one)
    x = torch.randn(16, 256, dtype=torch.float64)
    masks = expected_masks(layers)
    sparse = sparsify.apply(given.train(), GIVEN, x)
    for own in (sparse, layers):
        optimizer = torch.optim.SGD(own.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            own(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(sparse(x), layers(x), rtol=1e-9, atol=1e-12)
    for name, mask in masks.items():
        assert torch.equal(mask_of(sparse.get_parameter(name)), mask)


def with_kept_zeros() -> tuple[nn.Sequential, torch.Tensor]:
    """Layers that keep an entry of 0, and the mask of the first."""
    layers = model()
    with torch.no_grad():
        layers[0].weight[0, :7] = 0
    mask = torch.rand(512, 256) < 0.1
    mask[0, :7] = True
    prune.custom_from_mask(layers[0], "weight", mask)
    return layers, mask


@pytest.mark.parametrize("method", ["given", "constant"])
def test_kept_entries_that_are_0_train(method: str):
    layers, mask = with_kept_zeros()
    x = torch.randn(64, 256)
    rule = {"targets": ["param:0.weight"], **({"prune": {"method": method}} if method == "constant" else {})}
    sparse = sparsify.apply(layers.train(), {"schema": 1, "name": "x", "sparsify": [rule]}, x)
    for own in (sparse, copy.deepcopy(sparse)):
        assert torch.equal(mask_of(own.get_parameter("0.weight")), mask)
        own(x).square().mean().backward()
        torch.optim.SGD(own.parameters(), 0.1).step()
        found = own.state_dict()["0.weight"].to_dense()
        assert found[0, :7].count_nonzero() == 7
        assert not found[~mask].any()


def test_weights_that_train_faster_dense_keep_their_masks():
    layers, mask = nn.Sequential(nn.Linear(8, 8)), torch.rand(8, 8) < 0.5
    mask[0, 0] = True
    with torch.no_grad():
        layers[0].weight[0, 0] = 0
    prune.custom_from_mask(layers[0], "weight", mask)
    found = merge_masks(layers, recipes.load(GIVEN))
    assert torch.equal(entries(found[0].weight), mask)
    found(torch.randn(4, 8)).sum().backward()
    assert torch.equal(found[0].weight.grad != 0, mask)


def test_masks_that_no_rule_names_stay():
    layers = model()
    by_torch(layers)
    prune.l1_unstructured(layers[0], "bias", 0.5)
    rule = {"targets": ["param:*"], "ignore": ["param:2.weight", "param:*bias*"]}
    x = torch.randn(64, 256)
    sparse = sparsify.apply(layers.eval(), {"schema": 1, "name": "x", "sparsify": [rule]}, x)
    torch.testing.assert_close(sparse(x), layers(x), rtol=1e-4, atol=1e-5)
    names = {"0.weight", "0.bias_orig", "0.bias_mask", "2.weight_orig", "2.weight_mask", "2.bias"}
    assert set(sparse.state_dict()) == names
    assert merge_masks(layers, recipes.load("gcn")) is layers


def test_pruning_goes_on_from_a_mask():
    layers = model()
    by_torch(layers)
    rule = {
        "targets": ["param:*.weight"],
        "types": ["Linear"],
        "prune": {"method": "magnitude", "sparsity": 0.95},
    }
    sparse = sparsify.apply(
        layers.eval(), {"schema": 1, "name": "x", "sparsify": [rule]}, torch.randn(64, 256)
    )
    for at in (0, 2):
        kept = sparse.state_dict()[f"{at}.weight"] != 0
        assert int(kept.sum()) == round(0.05 * kept.numel())
        assert not (kept & (layers[at].weight_mask == 0)).any()


def test_a_pruner_goes_on_from_a_mask():
    layers = model(32)
    by_torch(layers)
    rule = {
        "targets": ["param:*.weight"],
        "prune": {"method": "rigl", "sparsity": 0.9},
        "schedule": {"end": 4, "every": 2},
    }
    x = torch.randn(8, 32)
    sparse = sparsify.apply(layers.train(), {"schema": 1, "name": "x", "sparsify": [rule]}, x)
    optimizer = torch.optim.SGD(sparse.parameters(), 0.1)
    pruner = sparsify.Pruner(sparse, optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        sparse(x).square().mean().backward()
        optimizer.step()
        pruner.step()
    served = pruner.finish(x)
    assert int(served.state_dict()["0.weight"].count_nonzero()) == round(0.1 * 32 * 64)


def test_in_place_the_model_gives_up_its_masks():
    layers = model()
    by_torch(layers)
    by_sparsifier(other := model())
    x = torch.randn(64, 256)
    for given in (layers, other):
        expected = given.eval()(x)
        sparse = sparsify.apply(given, GIVEN, x, inplace=True)
        assert sorted(given.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert not given[0]._forward_pre_hooks
        assert type(given[0]) is nn.Linear
        torch.testing.assert_close(sparse(x), expected, rtol=1e-4, atol=1e-5)


def test_copies_and_compiled_models_are_those_of_the_merged_one(tmp_path):
    layers = model()
    by_sparsifier(layers)
    x = torch.randn(64, 256)
    sparse = sparsify.apply(layers.eval(), GIVEN, x)
    expected = layers(x)
    torch.testing.assert_close(copy.deepcopy(sparse)(x), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(sparse)(x), expected, rtol=1e-4, atol=1e-5)
    sparsify.save(sparse, tmp_path / "saved")
    loaded = sparsify.load(tmp_path / "saved", model().eval(), x)
    torch.testing.assert_close(loaded(x), expected, rtol=1e-4, atol=1e-5)


def test_masks_of_recurrent_layers():
    layer = nn.LSTM(32, 64, batch_first=True)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        prune.random_unstructured(layer, name, 0.97)
    rule = {"targets": ["param:weight_*"]}
    x = torch.randn(4, 5, 32)
    layer.eval()
    sparse = sparsify.apply(layer, {"schema": 1, "name": "x", "sparsify": [rule]}, x)
    torch.testing.assert_close(sparse(x)[0], layer(x)[0], rtol=1e-4, atol=1e-5)
    assert sparse.state_dict()["weight_hh_l0"].count_nonzero() == 256 * 64 - round(0.97 * 256 * 64)


def test_other_hooks_and_parametrizations_stay():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    parametrize.register_parametrization(layers[0], "bias", Mask(torch.ones(8)))
    parametrize.register_parametrization(layers[0], "weight", Mask(torch.eye(8)))
    parametrize.register_parametrization(layers[1], "weight", Mask(torch.eye(8)))
    parametrize.register_parametrization(layers[1], "weight", Doubled())
    prune.identity(layers[2], "weight")
    layers[2].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    x = torch.randn(2, 8)
    expected = layers(x)
    found = merge_masks(layers, recipes.load(GIVEN))
    names = dict(found.named_parameters())
    assert {"0.weight", "0.parametrizations.bias.original", "1.parametrizations.weight.original"} <= set(
        names
    )
    assert {"2.weight"} <= set(names)
    torch.testing.assert_close(found(x), expected)
    torch.testing.assert_close(layers(x), expected)
    assert set(dict(layers.named_parameters())) > {"0.parametrizations.weight.original", "2.weight_orig"}


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def wrong_shape(layer: nn.Linear) -> None:
    layer.weight_mask = torch.ones(8)


def not_a_number(layer: nn.Linear) -> None:
    layer.weight_mask[1, 2] = torch.nan


def soft(layer: nn.Linear) -> None:
    layer.weight_mask[1, 2] = 0.5


def lost_mask(layer: nn.Linear) -> None:
    del layer._buffers["weight_mask"]


def lost_original(layer: nn.Linear) -> None:
    del layer._parameters["weight_orig"]


def masked_nan(layer: nn.Linear) -> None:
    layer.weight_mask[1, 2] = 0
    layer.weight_orig.data[1, 2] = torch.inf


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (wrong_shape, r"0.weight_mask is \[8\], 0.weight_orig \[8, 8\]"),
        (not_a_number, r"0.weight_mask is nan at \[1, 2\]"),
        (soft, r"0.weight_mask is 0.5 at \[1, 2\]"),
        (lost_mask, "0.weight has 0.weight_orig and no 0.weight_mask"),
        (lost_original, "0.weight has 0.weight_mask and no 0.weight_orig"),
        (masked_nan, r"0.weight_orig is inf at \[1, 2\], outside of its mask"),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_masks_that_fit_no_weight_are_errors(change: Callable[[nn.Linear], None], text: str):
    layers = nn.Sequential(nn.Linear(8, 8))
    prune.random_unstructured(layers[0], "weight", 0.5)
    change(layers[0])
    with pytest.raises(RecipeError, match=text):
        sparsify.apply(layers, GIVEN, torch.randn(2, 8))


def test_a_parametrization_with_a_mask_of_another_shape():
    layers = nn.Sequential(nn.Linear(8, 8))
    by_sparsifier_of(layers)
    layers[0].parametrizations.weight[0].mask = torch.ones(3)
    with pytest.raises(RecipeError, match=r"weight.0.mask is \[3\]"):
        sparsify.apply(layers, GIVEN, torch.randn(2, 8))


def by_sparsifier_of(layers: nn.Sequential) -> None:
    found = WeightNormSparsifier(sparsity_level=0.5, sparse_block_shape=(1, 1), zeros_per_block=1)
    found.prepare(layers, [{"tensor_fqn": "0.weight"}])
    found.step()


def test_tied_originals_ask_for_untie():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    layers[1].weight = layers[0].weight
    prune.random_unstructured(layers[0], "weight", 0.5)
    with pytest.raises(RecipeError, match=r"0.weight, 1.weight are one parameter.*ties: untie"):
        merge_masks(layers, recipes.load(GIVEN))
    untied = {
        **GIVEN,
        "sparsify": [{"targets": "param:*.weight", "prune": {"method": "constant"}, "ties": "untie"}],
    }
    found = merge_masks(layers, recipes.load(untied))
    x = torch.randn(2, 8)
    torch.testing.assert_close(found(x), layers(x))
    assert found[0].weight is not found[1].weight
    assert found[1].weight is layers[1].weight


def test_equal_masks_of_one_parameter_stay_one():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    layers[1].weight = layers[0].weight
    mask = torch.rand(8, 8) < 0.5
    for layer in layers:
        prune.custom_from_mask(layer, "weight", mask)
    found = merge_masks(layers, recipes.load(GIVEN))
    assert found[0].weight is found[1].weight
    x = torch.randn(2, 8)
    torch.testing.assert_close(found(x), layers(x))


@pytest.mark.sampled(2)
def test_plain_zeros_are_masks_in_training():
    layers = model()
    by_torch(layers)
    for at in (0, 2):
        prune.remove(layers[at], "weight")
    masks = expected_masks(layers)
    x = torch.randn(16, 256)
    sparse = sparsify.apply(layers.train(), GIVEN, x)
    optimizer = torch.optim.AdamW(sparse.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        sparse(x).square().mean().backward()
        optimizer.step()
    for name, mask in masks.items():
        assert torch.equal(sparse.get_parameter(name) != 0, mask)
