"""Frozen weights of bfloat16 models stored in pairs, which an instruction multiplies, where that is fastest."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.plan.prepare.pair_numbers import PairView
from sparsify.compiler.schedule.cost.weight_format import Packing, pack_matrix
from sparsify.passes.choose import pack

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "given",
    "sparsify": [{"targets": ["param:*weight"], "role": "weight", "source": "given"}],
}
PAIRS = "i: dense, j/2: compressed(crd=int8), j%2: dense"
COLUMNS, HIDDEN, OUTPUTS = 63, 96, 40


def with_fast_pairs(*arguments: Any, **settings: Any) -> list[Packing]:
    """The formats, pairs first."""
    found = pack_matrix(*arguments, **settings)
    costs = [replace(one, us=1.0 if str(one.format) == PAIRS else 2.0) for one in found]
    return sorted(costs, key=lambda one: one.us)


@pytest.fixture
def has_instruction() -> Iterator[None]:
    """A CPU that multiplies pairs, where expected times decide alone."""
    sets = target.instructions() | {pack.PAIR_INSTRUCTIONS}
    with options.override(tune_seconds=0.0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "instructions", lambda: sets)
        patch.setattr(pack, "pack_matrix", with_fast_pairs)
        yield


def layers(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(COLUMNS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, OUTPUTS))
    for layer in (model[0], model[2]):
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.1
    return model.eval().to(dtype)


def example(rows: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rows)).to(dtype)


def formats(sparse: Any) -> set[str]:
    return {region.formats["W"] for region in sparse.report.regions}


def require_right(sparse: nn.Module, model: nn.Module) -> None:
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for rows in (33, 1, 7):
            x = example(rows)
            found = sparse(x)
            assert found.dtype == torch.bfloat16
            # Hidden rows are rounded, too.
            torch.testing.assert_close(found.double(), exact(x.double()), rtol=2**-6, atol=2**-8)


def test_weights_are_stored_in_pairs(has_instruction, tmp_path):
    model = layers()
    sparse = sparsify.apply(model, RECIPE, example(33))
    assert formats(sparse) == {PAIRS}
    kernels = [call.kernel for variant in sparse.variants for call in variant.regions]
    assert all(isinstance(kernel.steps[0], PairView) for kernel in kernels)
    assert "packed" in str(sparse.report) and "j/2: compressed" in str(sparse.report)
    require_right(sparse, model)
    sparsify.save(sparse, tmp_path / "saved", kernels=True)
    loaded = sparsify.load(tmp_path / "saved")
    x = example(33)
    with torch.no_grad():
        assert torch.equal(loaded(x), sparse(x))
    require_right(loaded, model)


def test_gradients_of_inputs(has_instruction):
    model = layers().requires_grad_(False)
    sparse = sparsify.apply(model, RECIPE, example(33))
    inputs = [example(33).requires_grad_() for _ in range(2)]
    for run, x in zip((sparse, model), inputs, strict=True):
        run(x).float().square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_numbers_of_other_dtypes_are_not_paired(has_instruction, dtype):
    sparse = sparsify.apply(layers(dtype), RECIPE, example(33, dtype))
    assert formats(sparse) and PAIRS not in formats(sparse)


def test_without_the_instruction_nothing_is_paired(has_instruction, monkeypatch):
    sets = target.instructions() - {pack.PAIR_INSTRUCTIONS}
    monkeypatch.setattr(target, "instructions", lambda: sets)
    sparse = sparsify.apply(layers(), RECIPE, example(33))
    assert formats(sparse) and PAIRS not in formats(sparse)


def test_rows_of_another_dtype_are_not_paired(has_instruction):
    recipe = {**RECIPE, "sparsify": [{**RECIPE["sparsify"][0], "dtype": "bfloat16"}]}
    sparse = sparsify.apply(layers(torch.float16), recipe, example(33, torch.float16))
    assert sparse.get_parameter("0.weight").dtype == torch.bfloat16
    assert formats(sparse) and PAIRS not in formats(sparse)
