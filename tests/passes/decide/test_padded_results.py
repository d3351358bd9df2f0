"""Tests of `sparsify.passes.decide.padded_results`: results of convolutions inside the images of the next ones."""

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.passes.apply import apply
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.decide.padded_results import NOTE, OUTSIDE
from sparsify.passes.rules.prune import prune
from sparsify.runtime.padded_memory import PaddedMemory
from tests.passes.decide.test_convolution import RECIPE


@pytest.fixture(autouse=True)
def untimed():
    """What torch does faster becomes a kernel too: here matters what it computes."""
    with options.override(tune_seconds=0):
        yield


class Residual(nn.Module):
    """Blocks with residual sums."""

    def __init__(self, kernel=3, padding=1, stride=1, channels=4):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(channels, channels, kernel, padding=padding) for _ in range(4))
        self.last = nn.Conv2d(channels, 5, kernel, stride, padding)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for at in (0, 2):
            x = torch.relu(self.inner[at + 1](torch.relu(self.inner[at](x))) + x)
        return self.last(x)


class Branches(nn.Module):
    """A result that two convolutions with other windows read."""

    def __init__(self, second):
        super().__init__()
        self.first, self.one = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.other = second

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.one(x) + self.other(x)


class Shown(nn.Module):
    """A model that returns an inner result, too."""

    def __init__(self):
        super().__init__()
        self.first, self.one = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return x, self.one(x)


def applied(model, shape=(2, 3, 9, 16)):
    """The model with zeros, the sparse model, and images."""
    torch.manual_seed(0)
    model, x = model.double().eval().requires_grad_(False), torch.randn(shape, dtype=torch.float64)
    sparse = apply(model, RECIPE, x, trainable=False)
    return prune(copy.deepcopy(model), sparse._request.recipe).eval(), sparse, x


def writing(sparse):
    """Whether each region writes its result inside padded images, in the order of the graph."""
    return [NOTE in region.notes for region in sparse.report.regions]


def test_residual_networks_copy_the_first_images_alone(monkeypatch):
    exact, sparse, x = applied(Residual())
    assert writing(sparse) == [True, True, True, True, True, False]
    copied, whole = [], PaddedMemory.copied

    def noted(memory, images, places):
        copied.append(tuple(images.shape))
        return whole(memory, images, places)

    monkeypatch.setattr(PaddedMemory, "copied", noted)
    with torch.no_grad():
        found = sparse(x)
    assert copied == [tuple(x.shape)]
    torch.testing.assert_close(found, exact(x))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [(1, 3, 9, 16), (2, 3, 9, 16), (5, 3, 9, 16), (2, 3, 12, 24), (3, 3, 8, 40)])
def test_images_of_all_sizes(size):
    exact, sparse, _ = applied(Residual())
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(size, dtype=torch.float64)
            torch.testing.assert_close(sparse(x), exact(x))


def test_calls_do_not_share_memory():
    exact, sparse, _ = applied(Residual())
    images = [torch.randn(2, 3, 9, 16, dtype=torch.float64) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(torch.no_grad()(sparse), images))
    for x, result in zip(images, found, strict=True):
        torch.testing.assert_close(result, exact(x))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "expected", "reasons"),
    [
        (Branches(nn.Conv2d(4, 4, 3, padding=1)), [True, False, False], []),
        (
            Branches(nn.Conv2d(4, 4, 5, padding=2)),
            [False, False, False],
            ["convolutions with different windows read it"],
        ),
        (
            Branches(nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(4, 4, 1))),
            [False, False, False],
            ["avg_pool2d reads it, too"],
        ),
        (Shown(), [False, False], ["the model returns it"]),
        (
            Residual(stride=2),
            [True, True, True, True, False, False],
            ["a convolution with a stride, or without padding, reads it"],
        ),
        (Residual(kernel=1, padding=0), [False] * 6, []),
    ],
    ids=["equal windows", "other windows", "another reader", "an output", "a stride", "pointwise"],
)
def test_readers_decide(model, expected, reasons):
    exact, sparse, x = applied(model)
    assert writing(sparse) == expected
    notes = [note for region in sparse.report.regions for note in region.notes]
    assert [note.removeprefix(OUTSIDE) for note in notes if note.startswith(OUTSIDE)] == reasons
    with torch.no_grad():
        found, wanted = sparse(x), exact(x)
    torch.testing.assert_close(found, wanted)
    assert all(tensor.is_contiguous() for tensor in (found if isinstance(found, tuple) else (found,)))


@pytest.mark.parametrize(("width", "is_inside"), [(16, True), (9, False)])
def test_pointwise_convolutions_with_rows_of_whole_vectors(width, is_inside):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1)
    )
    exact, sparse, x = applied(model, (2, 3, 5, width))
    assert writing(sparse) == [is_inside, False, False]
    assert ("y" in sparse.report.regions[0].einsum) == is_inside
    with torch.no_grad():
        for given in (x, torch.randn(3, 3, 7, 11, dtype=torch.float64)):
            torch.testing.assert_close(sparse(given), exact(given))


def test_without_vectors():
    with options.override(vector_bytes=0):
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 5, 3, padding=1))
        exact, sparse, x = applied(model)
        assert writing(sparse) == [True, False]
        with torch.no_grad():
            for given in (x, torch.randn(3, 3, 7, 11, dtype=torch.float64), x):
                torch.testing.assert_close(sparse(given), exact(given))


def living_regions():
    """The number of regions in the process."""
    gc.collect()
    return sum(type(one) is RegionCall for one in gc.get_objects())


def test_dropped_models_free_their_regions():
    before = living_regions()
    _, sparse, x = applied(Residual())
    with torch.no_grad():
        sparse(x)
    assert living_regions() >= before + 6
    del sparse
    assert living_regions() <= before


def test_gradients_of_images():
    exact, sparse, x = applied(Residual())
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = sparse(one), exact(other)
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.sampled(2)
def test_compiled_models():
    exact, sparse, x = applied(Residual())
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(sparse)(x), exact(x))


def test_a_saved_model_keeps_images_padded(tmp_path, monkeypatch):
    exact, sparse, x = applied(Residual())
    other = torch.randn(2, 3, 12, 24, dtype=torch.float64)
    with torch.no_grad():
        sparse(other)
    sparsify.save(sparse, tmp_path / "model", kernels=True)
    loaded = sparsify.load(tmp_path / "model")
    copied = []
    whole = PaddedMemory.copied
    monkeypatch.setattr(
        PaddedMemory,
        "copied",
        lambda memory, images, places: copied.append(1) or whole(memory, images, places),
    )
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), exact(x))
        assert len(copied) == 1
        torch.testing.assert_close(loaded(other), exact(other))
