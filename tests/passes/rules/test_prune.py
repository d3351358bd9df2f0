"""Rules that prune: a copy of the weights gets zeros, the model keeps its own."""

from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import recipe as recipes
from sparsify.errors import RecipeError
from sparsify.passes.rules.prune import prune


def recipe(**rule: Any) -> dict[str, Any]:
    given = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}, **rule}
    return {"schema": 1, "name": "pruned", "sparsify": [given]}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).eval()


def pruned(given: nn.Module, **rule: Any) -> nn.Module:
    return prune(given, recipes.load(recipe(**rule)))


def test_applied_models_run_pruned_weights():
    dense = model()
    before = dense[0].weight.clone()
    x = torch.randn(64, 256)
    sparse = sparsify.apply(dense, recipe(), x)
    assert torch.equal(dense[0].weight, before)
    assert "0.weight packed: 10.0% stored" in sparse.report.regions[0].notes[0]
    expected = pruned(dense)(x)
    torch.testing.assert_close(sparse(x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(sparse(x), dense(x), atol=1e-3)
    assert int(sparse.state_dict()["0.weight"].count_nonzero()) == round(0.1 * 256 * 256)


def test_what_no_rule_prunes_is_shared():
    dense = model()
    found = pruned(dense, ignore=["param:2.*"])
    assert found[2].weight is dense[2].weight
    assert found[0].bias is dense[0].bias
    assert found[0].weight is not dense[0].weight
    assert prune(dense, recipes.load(recipe(prune=None, source="given"))) is dense


def test_types_select_modules():
    assert pruned(model(), types=["Conv2d"])[0].weight.count_nonzero() == 256 * 256


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
def test_whole_rows(method):
    dense, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(72, 6)).eval(),
        torch.randn(16, 3, 5, 5),
    )
    given = recipe(prune={"method": method, "pattern": "row", "sparsity": 0.5})
    sparse = sparsify.apply(dense, given, x, calibration=[(x,)] if method == "wanda" else None)
    for name, weight in sparse.state_dict().items():
        if name.endswith("weight"):
            shares = (weight != 0).flatten(1).float().mean(1)
            assert shares.sort().values.tolist() == [0.0] * (len(shares) // 2) + [1.0] * (len(shares) // 2)
    assert torch.isfinite(sparse(x)).all()


def tied() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[1].weight = layers[0].weight
    return layers


def test_ties():
    shared = pruned(tied(), ties="share")
    assert shared[0].weight is shared[1].weight
    apart = pruned(tied(), ties="untie")
    assert apart[1].weight.count_nonzero() == 16
    with pytest.raises(RecipeError, match=r"0\.weight, 1\.weight are one parameter"):
        pruned(tied())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"method": "movement", "sparsity": 0.5}, "`method: movement` changes masks over steps"),
        ({"method": "magnitude"}, "needs `sparsity`"),
        ({"method": "magnitude", "pattern": "1:3"}, "do not divide"),
    ],
)
def test_what_is_refused(how, words):
    with pytest.raises(RecipeError, match=words):
        pruned(model(), prune=how)


def test_a_linear_layer_behind_flattened_images():
    """The shape guard of the capture says that the flattened extents of the images are the mode of the weight."""
    dense = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 256)).eval()
    x = torch.randn(8, 1, 28, 28)
    sparse = sparsify.apply(dense, recipe(targets=["param:3.weight"]), x)
    assert any("3.weight packed" in note for region in sparse.report.regions for note in region.notes)
    expected = pruned(dense, targets=["param:3.weight"])
    torch.testing.assert_close(sparse(x[:5]), expected(x[:5]), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="8x2500 and 2704x256"):
        sparse(torch.randn(8, 1, 27, 27))


@pytest.mark.parametrize(
    "prune_by, kept",
    [
        ({"method": "threshold", "threshold": 0.03}, lambda w: w.abs() >= 0.03),
        ({"method": "topk", "keep": 5}, lambda w: sparsify.sparsifiers.TopK(5).mask(w)),
        ({"method": "topk", "keep": 2, "dim": "out"}, lambda w: sparsify.sparsifiers.TopK(2, 0).mask(w)),
    ],
    ids=["threshold", "topk", "topk of outputs"],
)
def test_zeros_that_follow_from_the_weights(prune_by, kept):
    given = model()
    found = pruned(given, prune=prune_by)
    for at in (0, 2):
        weight = given[at].weight.detach()
        assert torch.equal(found[at].weight.detach(), torch.where(kept(weight), weight, 0))
