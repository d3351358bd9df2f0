"""A weight that calls with one row and calls with many want in different formats has both, where that saves memory."""

import copy
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.schedule.cost.weight_format import SLICES, Packing, pack_matrix
from sparsify.passes.choose import pack
from sparsify.passes.choose.autotune import Winner
from sparsify.storage.tensor import SparseTensor

RULE: dict[str, Any] = {"targets": ["param:*weight"], "role": "weight", "source": "given"}
GIVEN: dict[str, Any] = {"schema": 1, "name": "given", "sparsify": [RULE]}
COMPACT: dict[str, Any] = {**GIVEN, "compile": {"memory": "compact"}}
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}
COLUMNS, OUTPUTS, MANY = 200, 160, 256


PANELS = "j/96: dense, i: dense, j%96: compressed(crd=int8)"
LISTS = "dense, compressed(crd=int16)"


def by_rows(mask: torch.Tensor, rows: int, *sizes: Any, **settings: Any) -> list[Packing]:
    """The formats, with costs that tell one row from many on every machine."""
    found = {str(one.format): one for one in pack_matrix(mask, rows, *sizes, **settings)}
    best = PANELS if rows > 1 else str(SLICES) if str(SLICES) in found else LISTS
    costs = [replace(one, us=1.0 if name == best else 10.0) for name, one in found.items()]
    return sorted(costs, key=lambda one: one.us)


@pytest.fixture(autouse=True, scope="module")
def untimed() -> Iterator[None]:
    """What is expected decides alone."""
    with options.override(tune_seconds=0.0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "pack_matrix", by_rows)
        yield


def layer(density: float = 0.1, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    linear = nn.Linear(COLUMNS, OUTPUTS)
    linear.weight.data *= torch.rand(OUTPUTS, COLUMNS) < density
    return nn.Sequential(linear, nn.ReLU()).eval()


def example(rows: int) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rows))


def both(model: nn.Module, first: int, second: int, recipe: dict[str, Any] = GIVEN) -> Any:
    """The sparse model after a capture for each number of rows."""
    sparse = sparsify.apply(model, recipe, example(first))
    sparse(example(second))
    assert len(sparse.variants) == 2
    return sparse


def formats(sparse: Any) -> list[str]:
    """Of the weight in each variant."""
    return [variant.report.regions[0].formats["W"] for variant in sparse.variants]


def require_right(sparse: Any, model: nn.Module) -> None:
    for rows in (1, 2, MANY, 1, 37):
        torch.testing.assert_close(sparse(example(rows)), model(example(rows)), **CLOSE)


def stored_bytes(weight: SparseTensor) -> int:
    return sum(array.nbytes for array in (weight.values(), *weight.pattern.arrays()))


@pytest.fixture(scope="module")
def applied(untimed: None) -> tuple[nn.Sequential, Any]:
    """A model and its sparse form, for tests that leave both as they are."""
    model = layer()
    return model, both(model, 1, MANY)


@pytest.mark.parametrize("first, second", [(1, MANY), (MANY, 1)])
def test_each_number_of_rows_has_its_format(first: int, second: int) -> None:
    model = layer()
    sparse = both(model, first, second)
    one, other = formats(sparse)
    assert one != other
    assert [one] == formats(sparsify.apply(model, GIVEN, example(first)))
    assert [other] == formats(sparsify.apply(model, GIVEN, example(second)))
    require_right(sparse, model)


def test_the_report_says_the_bytes_of_both(applied: Any) -> None:
    model, sparse = applied
    one, other = formats(sparse)
    (held,) = [p for p in sparse.parameters() if isinstance(p, SparseTensor)]
    ((structure, _),) = sparse.variants[1].regions[0].weights.values()
    beside = structure.second_formats.cached((held._vals, held._pattern))
    assert beside is not None
    assert str(beside.format) == other
    for variant in sparse.variants:
        (entry,) = variant.report.weights
        assert entry.format == f"{one}, and {other} beside"
        assert entry.bytes_before == model[0].weight.nbytes
        assert entry.bytes_after == stored_bytes(held) + stored_bytes(beside) < entry.bytes_before
        before, after = variant.report.parameter_bytes
        assert before - after == entry.bytes_before - entry.bytes_after


@pytest.mark.parametrize("density, recipe", [(0.45, GIVEN), (0.1, COMPACT)])
def test_there_is_one_format_where_memory_allows_no_other(density: float, recipe: dict[str, Any]) -> None:
    model = layer(density)
    sparse = both(model, 1, MANY, recipe)
    assert len(set(formats(sparse))) == 1
    assert "beside" not in sparse.report.weights[0].format
    require_right(sparse, model)


def test_a_further_format_that_is_measured_no_faster_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def alike(draft: Any, region: Any, name: str, found: Any, held: Any = None) -> Winner:
        others = tuple((str(one.format), 10.0) for one in found[1:])
        return Winner("weight format", (("torch", 1000.0), (str(found[0].format), 9.99), *others))

    sparse = sparsify.apply(layer(), GIVEN, example(1))
    monkeypatch.setattr(pack, "tune", alike)
    sparse(example(MANY))
    assert len(set(formats(sparse))) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("us, count", [(10.0, 1), (15.0, 2)])
def test_a_format_that_may_be_far_faster_is_timed(
    us: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 16 rows and 1024: expected to differ by less than is asked, by what was measured more, or not."""

    def near(mask: torch.Tensor, rows: int, *sizes: Any, **settings: Any) -> list[Packing]:
        best = PANELS if rows > 16 else LISTS
        found = [
            one for one in pack_matrix(mask, rows, *sizes, **settings) if str(one.format) in (PANELS, LISTS)
        ]
        costs = [replace(one, us=10.0 if str(one.format) == best else 12.0) for one in found]
        return sorted(costs, key=lambda one: one.us)

    def measured(draft: Any, region: Any, name: str, found: Any, held: Any = None) -> Winner:
        times = (str(found[0].format), 10.0), (str(found[-1].format), us)
        return Winner("weight format", (("torch", 1000.0), *times))

    monkeypatch.setattr(pack, "pack_matrix", near)
    model = layer()
    sparse = sparsify.apply(model, GIVEN, example(16), dynamic=())
    untimed = copy.deepcopy(sparse)
    untimed(example(1024))
    assert formats(untimed) == [LISTS, LISTS]
    monkeypatch.setattr(pack, "tune", measured)
    with options.override(tune_seconds=0.01):
        sparse(example(1024))
    assert formats(sparse) == [LISTS, PANELS][:count] * (3 - count)
    for rows in (16, 1024):
        torch.testing.assert_close(sparse(example(rows)), model(example(rows)), **CLOSE)


def test_gradients_and_states(applied: Any) -> None:
    model, sparse = applied
    for rows in (1, MANY):
        x, y = (example(rows).requires_grad_() for _ in range(2))
        sparse(x).square().sum().backward()
        model(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert torch.equal(sparse.state_dict()["0.weight"], model[0].weight)


def test_new_weights_are_seen_by_both() -> None:
    sparse, other = both(layer(), 1, MANY), layer(seed=1)
    sparse.load_state_dict(other.state_dict())
    require_right(sparse, other)
    (held,) = [p for p in sparse.parameters() if isinstance(p, SparseTensor)]
    with torch.no_grad():
        held.mul_(2)
        other[0].weight.mul_(2)
    require_right(sparse, other)


def test_copies(applied: Any) -> None:
    model, sparse = applied
    require_right(copy.deepcopy(sparse), model)
    loaded = pickle.loads(pickle.dumps(sparse))
    loaded(example(MANY))
    loaded(example(1))
    assert sorted(formats(loaded)) == sorted(formats(sparse))
    require_right(loaded, model)


def test_third_captures_share_what_is_there() -> None:
    model = layer()
    sparse = sparsify.apply(model, GIVEN, example(1), dynamic=())
    for rows in (MANY, MANY + 32):
        torch.testing.assert_close(sparse(example(rows)), model(example(rows)), **CLOSE)
    assert len(sparse.variants) == 3
    _, second, third = (variant.regions[0].weights for variant in sparse.variants)
    ((one, _), (other, _)) = (*second.values(), *third.values())
    assert one.second_formats is other.second_formats
    assert len(one.second_formats) == 1


def test_compiled_models_make_no_format_anew() -> None:
    model = layer()
    sparse = both(model, 1, MANY)
    ((structure, _),) = sparse.variants[1].regions[0].weights.values()
    before = structure.second_formats
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    for rows in (1, MANY):
        torch.testing.assert_close(compiled(example(rows)), model(example(rows)), **CLOSE)
    assert structure.second_formats is before


def test_threads_that_need_it_at_once() -> None:
    sparse, other = both(layer(), 1, MANY), layer(seed=1)
    sparse.load_state_dict(other.state_dict())
    expected = other(example(MANY))
    with ThreadPoolExecutor(4) as threads, torch.no_grad():
        for found in threads.map(lambda _: sparse(example(MANY)), range(8)):
            torch.testing.assert_close(found, expected, **CLOSE)
