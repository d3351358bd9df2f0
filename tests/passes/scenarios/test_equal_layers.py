"""Equal layers are decided once: contests and kernels of four equal layers are those of one."""

from collections import Counter

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.passes.choose import autotune, torch_operator
from sparsify.passes.module import capture_call

RULE = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.95}}
RECIPE = {"schema": 1, "name": "pruned", "sparsify": [RULE]}


def linear() -> list[nn.Module]:
    return [nn.Linear(256, 256), nn.ReLU()]


def convolution() -> list[nn.Module]:
    return [nn.Conv2d(16, 16, 3), nn.ReLU(), nn.ZeroPad2d(1)]


def compared(monkeypatch, folder, layers, x) -> Counter[str]:
    """The comparisons by kind that `apply` makes for some layers, without times from earlier models."""
    torch.manual_seed(0)
    kinds: Counter[str] = Counter()

    def compare(kind, *arguments, own=autotune.compare):
        kinds[kind] += 1
        return own(kind, *arguments)

    with monkeypatch.context() as patch, options.override(cache_dir=folder, tune_seconds=0.01):
        patch.setattr(autotune, "compare", compare)
        patch.setattr(capture_call, "require_faster_call", lambda *_: None)
        sparsify.apply(nn.Sequential(*layers).eval(), RECIPE, x, trainable=False)
    return kinds


@pytest.mark.parametrize(
    ("layer", "shape", "kind"),
    [(linear, (64, 256), "weight format"), (convolution, (2, 16, 14, 14), "operator")],
)
def test_four_equal_layers_are_compared_once(monkeypatch, tmp_path, layer, shape, kind):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    one = compared(monkeypatch, tmp_path / "one", layer(), x)
    four = compared(monkeypatch, tmp_path / "four", [part for _ in range(4) for part in layer()], x)
    assert one[kind] == 1 and four[kind] == 1


def test_kernels_of_contested_regions_are_built_at_once(monkeypatch, tmp_path):
    built = []

    def prepare_all(wanted, own=torch_operator.prepare_all):
        built.append(len(wanted))
        return own(wanted)

    monkeypatch.setattr(torch_operator, "prepare_all", prepare_all)
    layers = [*convolution(), *convolution(), nn.Conv2d(16, 32, 3)]
    kinds = compared(monkeypatch, tmp_path, layers, torch.ones(2, 16, 14, 14))
    assert built == [kinds["operator"]] == [2]
