"""Weights of convolutions are held packed: bytes, places in images, narrow values, copies, states, modes."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.passes.operands.convolution_operands import PLACED
from sparsify.passes.operands.sliding_window import Grid, packed_bytes, packed_format
from sparsify.storage.tensor import SparseTensor

RULE: dict[str, Any] = {
    "targets": ["param:*.weight"],
    "types": ["Conv2d"],
    "role": "weight",
    "prune": {"method": "magnitude", "sparsity": 0.9},
}
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def untimed():
    """What torch does faster is packed too: here matters what is held."""
    with options.override(tune_seconds=0):
        yield


def recipe(memory="fast", **changes):
    return {
        "schema": 1,
        "name": "pruned",
        "sparsify": [{**RULE, **changes}],
        "compile": {"memory": memory},
    }


def layers():
    """A 1x1 convolution with its normalisation, one with windows, one whose windows are apart."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 24, 1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 8, 3, stride=2, padding=1),
    )
    model(images(4, seed=7))  # statistics that are not 0 and 1
    return model.eval()


class Pyramid(nn.Module):
    """One convolution over images of three sizes, as the heads of detectors have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Conv2d(16, 24, 3, padding=1)

    def forward(self, *levels):
        return [self.head(level) for level in levels]


def images(count=2, extent=9, seed=1):
    return torch.randn(count, 16, extent, extent, generator=torch.Generator().manual_seed(seed))


PACKED = ("0.weight", "3.weight", "5.weight")


@pytest.fixture(scope="module")
def applied(untimed):
    """A sparse model, for tests that leave it as it is."""
    return sparsify.apply(layers(), recipe(), images())


def test_weights_are_held_packed(applied):
    assert all(isinstance(applied.get_parameter(name), SparseTensor) for name in PACKED)
    assert applied.get_parameter("3.weight").shape == (24, 24, 3, 3)
    with torch.no_grad():
        for count, extent in ((2, 9), (3, 9), (2, 12)):
            x = images(count, extent)
            torch.testing.assert_close(applied(x), applied.original(x), **CLOSE)
    assert applied.state_dict()["3.weight"].count_nonzero() == applied.get_parameter("3.weight").nnz


def test_bytes_are_what_the_report_says(applied):
    found = {entry.name: entry for entry in applied.report.weights}
    assert set(found) == set(PACKED)
    for name, entry in found.items():
        weight = applied.get_parameter(name)
        arrays = [weight._vals, *weight._pattern.arrays()]
        own = sum(array.nbytes for array in arrays)
        assert own == packed_bytes(weight.shape, weight.nnz, 4)
        beside = 4 * weight.nnz if name != "5.weight" else 8 * weight.nnz + 4 * (len(weight) + 1)
        assert entry.bytes_after == own + beside < entry.bytes_before == 4 * weight.numel()
        assert entry.format == f"{packed_format(weight.shape)}, and places in images 9x9 beside"
    before, after = applied.report.parameter_bytes
    assert before - after == sum(e.bytes_before - e.bytes_after for e in found.values())


def test_values_are_shared_and_places_among_variants():
    sparse = sparsify.apply(layers(), recipe(), images(), dynamic=())
    with torch.no_grad():
        sparse(images(5))
    assert len(sparse.variants) == 2
    first, second = ([region.layout.placed for region in variant.regions] for variant in sparse.variants)
    assert all(mine is theirs for mine, theirs in zip(first, second, strict=True))
    for placed, name in zip(first, PACKED, strict=True):
        ((key, operand),) = [(entry.key, entry.result) for entry in placed.memory.entries]
        grid = key[-1]
        weight = sparse.get_parameter(name)
        assert (
            (operand._vals.data_ptr() == weight._vals.data_ptr()) == grid.is_ordered == (name != "5.weight")
        )


def test_places_of_other_images_are_kept_for_the_latest():
    sparse = sparsify.apply(layers(), recipe(), images())
    with torch.no_grad():
        for extent in range(9, 9 + 2 * PLACED):
            sparse(images(2, extent))
    assert [len(region.layout.placed.memory) for region in sparse.variants[0].regions] == [PLACED] * 3


def test_a_weight_that_is_read_at_three_sizes_has_places_for_all(monkeypatch):
    model, sizes = Pyramid().eval(), [images(1, extent) for extent in (7, 9, 11)]
    sparse = sparsify.apply(model, recipe(), tuple(sizes), dynamic=())
    placed = {region.layout.placed for region in sparse.variants[0].regions}
    assert [len(one.memory) for one in placed] == [3]
    assert "places in images 7x7, 9x9, 11x11 beside" in sparse.report.weights[0].format
    monkeypatch.setattr(Grid, "matrix", None)  # nothing is listed again
    with torch.no_grad():
        for found, expected in zip(sparse(*sizes), sparse.original(*sizes), strict=True):
            torch.testing.assert_close(found, expected, **CLOSE)


def test_compact_memory_lists_places_in_each_call():
    x = images()
    sparse = sparsify.apply(layers(), recipe("compact"), x)
    fast = sparsify.apply(layers(), recipe(), x)
    for entry, other in zip(sparse.report.weights, fast.report.weights, strict=True):
        weight = sparse.get_parameter(entry.name)
        assert entry.bytes_after == packed_bytes(weight.shape, weight.nnz, 4) < other.bytes_after
        assert "beside" not in entry.format
    assert not any(len(region.layout.placed.memory) for region in sparse.variants[0].regions)
    assert all("listed in each call" in region.notes[1] for region in sparse.report.regions)
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), fast(x))


def test_places_are_listed_in_each_call_where_all_would_be_larger_than_the_dense_weight():
    """Of 38 % of the entries each takes 8 bytes, and 12 with its places, a dense one 4 of all."""
    wide = {**RULE["prune"], "sparsity": 0.62}
    x = torch.randn(1, 256, 4, 4)
    sparse = sparsify.apply(nn.Sequential(nn.Conv2d(256, 256, 3)).eval(), recipe(prune=wide), x)
    (entry,), (region,) = sparse.report.weights, sparse.report.regions
    assert "listed in each call" in region.notes[1]
    assert entry.bytes_after < entry.bytes_before
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x), **CLOSE)


def test_few_places_are_kept_although_the_dense_weight_is_smaller():
    wide = {**RULE["prune"], "sparsity": 0.62}
    sparse = sparsify.apply(nn.Sequential(nn.Conv2d(16, 16, 3)).eval(), recipe(prune=wide), images())
    assert "listed in each call" not in sparse.report.regions[0].notes[1]
    assert [len(region.layout.placed.memory) for region in sparse.variants[0].regions] == [1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16"])
def test_values_of_fewer_bytes(dtype):
    x = images()
    sparse, fast = (sparsify.apply(layers(), r, x) for r in (recipe(dtype=dtype), recipe()))
    assert {sparse.get_parameter(name).dtype for name in PACKED} == {getattr(torch, dtype)}
    for entry, other in zip(sparse.report.weights, fast.report.weights, strict=True):
        assert entry.bytes_after < other.bytes_after
        assert dtype in entry.format
    assert {entry.name for entry in sparse.report.roundings} == set(PACKED)
    assert sparse.state_dict()["0.weight"].dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x), **CLOSE)
        assert not torch.equal(sparse(x), fast(x))
    given = x.clone().requires_grad_()
    other = x.clone().requires_grad_()
    (mine,) = torch.autograd.grad(sparse(given).square().sum(), given)
    (theirs,) = torch.autograd.grad(sparse.original(other).square().sum(), other)
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


class Free(nn.Module):
    """A convolution whose weight is no module's for convolutions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16, 3, 3))

    def forward(self, x):
        return torch.nn.functional.conv2d(x, self.weight)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_weights_that_are_not_rounded_stay_dense():
    x = images()
    sparse = sparsify.apply(nn.Sequential(Free()).eval(), recipe(dtype="int8", types=[]), x)
    assert [entry.reason for entry in sparse.report.dense] == [
        "its weight is not rounded to int8: those of modules for convolutions are"
    ]


@pytest.mark.filterwarnings("ignore:torch.nn.functional.conv2d:RuntimeWarning")
def test_in_place_the_model_gives_up_its_dense_weights():
    model, x = layers(), images()
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(), x, inplace=True)
        assert model[3].weight is sparse.get_parameter("3.weight")
        assert isinstance(model[3].weight, SparseTensor)
        torch.testing.assert_close(model(x), sparse(x), **CLOSE)


def test_copies_states_and_files(applied, tmp_path):
    x, state = images(), applied.state_dict()
    with torch.no_grad():
        expected = applied(x)
        for twin in (copy.deepcopy(applied), pickle.loads(pickle.dumps(applied))):
            torch.testing.assert_close(twin(x), expected)
            assert isinstance(twin.get_parameter("0.weight"), SparseTensor)
        twin.load_state_dict({name: value.flip(0) for name, value in state.items()})
        assert isinstance(twin.get_parameter("0.weight"), SparseTensor)
        torch.testing.assert_close(twin(x), twin.original(x), **CLOSE)
        assert not torch.allclose(twin(x), expected)
        torch.testing.assert_close(applied(x), expected)
        loaded = sparsify.load(sparsify.save(applied, tmp_path / "model"), layers(), x)
        torch.testing.assert_close(loaded(x), expected, **CLOSE)
        torch.testing.assert_close(copy.deepcopy(applied).double()(x.double()).float(), expected, **CLOSE)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_training_makes_weights_dense_again():
    x = images()
    sparse = sparsify.apply(layers(), recipe(), x)
    placed = [region.layout.placed for region in sparse.variants[0].regions]
    assert all(len(one.memory) for one in placed)
    sparse.train()
    assert not any(len(one.memory) for one in placed)
    assert not isinstance(sparse.get_parameter("3.weight"), SparseTensor)
    sparse(x).square().sum().backward()
    weight = sparse.get_parameter("3.weight")
    assert 0 < weight.grad.count_nonzero() < weight.numel()
    assert not weight.grad[weight == 0].any()
    sparse.eval()
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x), **CLOSE)


def test_statistics_of_a_normalisation_that_the_model_goes_on_training():
    model, x = layers(), images()
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(), x)
        for _ in range(3):
            before = sparse(x)
            sparse._source.train()(x)  # torch changes the statistics, and not their versions
            sparse._source.eval()
            assert not torch.allclose(sparse(x), before, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(sparse(x), sparse.original(x), **CLOSE)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_graphs(applied):
    x = images()
    with torch.no_grad():
        expected = applied(x)
        torch.testing.assert_close(torch.compile(applied, fullgraph=True, backend="aot_eager")(x), expected)
        torch.testing.assert_close(torch.export.export(applied, (x,)).module()(x), expected)


@pytest.mark.parametrize("extents", [(9, 9), (7, 11)])
def test_images_without_a_batch(extents):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(16, *extents)
    sparse = sparsify.apply(model, recipe(), x, strict=True)
    with torch.no_grad():
        for given in (x, torch.randn(16, extents[1], 8)):
            torch.testing.assert_close(sparse(given), sparse.original(given), **CLOSE)
    given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    sparse(given).square().sum().backward()
    sparse.original(other).square().sum().backward()
    torch.testing.assert_close(given.grad, other.grad, **CLOSE)


class Viewed(nn.Module):
    """Two convolutions, the second read by a view that is legal where channels are neighbours alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 1), nn.Linear(16, 3)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return y, self.last(y.permute(0, 2, 3, 1).view(-1, 16))


def test_channels_that_are_neighbours_stay_neighbours():
    torch.manual_seed(0)
    last = torch.channels_last
    x, model = images().to(memory_format=last), Viewed().to(memory_format=last).eval()
    sparse = sparsify.apply(model, recipe(), x)
    assert [region.layout is not None for region in sparse.variants[0].regions] == [True, True]
    assert sum("permute" in str(node.target) for node in sparse.graph.nodes) == 3  # one call laid out anew
    found, wanted = sparse(x), sparse.original(x)
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert found[0].stride() == wanted[0].stride()
    sum(part.sum() for part in found).backward()
    with torch.no_grad():
        torch.testing.assert_close(
            sparse(images()), sparse.original(x.contiguous().to(memory_format=last)), **CLOSE
        )
