"""Embeddings of bags in their sparse form: found, and equal to torch's in float64, results and gradients."""

import pytest
import torch
from torch import nn

from sparsify import options
from sparsify.errors import InvalidTensorError
from sparsify.passes.apply import apply
from sparsify.passes.choose import torch_operator
from sparsify.passes.choose.autotune import Winner

ROWS, COLUMNS = 12, 6
RULE = {"targets": ["op:embedding_bag"], "source": "given"}
RECIPE = {"schema": 1, "name": "bags", "sparsify": [RULE], "compile": {"backends": ["own"]}}
ANY = RECIPE | {"compile": {}}


@pytest.fixture(scope="module", autouse=True)
def untimed():
    """Nothing is timed, and torch is no backend: kernels run also where they lose."""
    with options.override(tune_seconds=0):
        yield


class Bags(nn.Module):
    """A table, and something behind it whose gradient differs from entry to entry."""

    def __init__(self, **how):
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, COLUMNS, **how)

    def forward(self, indices, offsets=None, weights=None):
        return torch.sin(self.table(indices, offsets, weights))


class Unequal(Bags):
    """One mode of `indices` less than the table wants, and a weight that the model computes."""

    def forward(self, indices, scores):
        return torch.sin(self.table(indices, per_sample_weights=scores.sigmoid()))


def drawn(count, seed=0):
    return torch.randint(0, ROWS, (count,), generator=torch.Generator().manual_seed(seed))


# Bags of several sizes, some empty, and rows that are named twice.
VECTORS = [
    (torch.cat([drawn(15), torch.tensor([3, 3, 5, 3])]), torch.tensor([0, 4, 4, 9, 15])),
    (torch.cat([drawn(7, 1), torch.tensor([2, 2])]), torch.tensor([0, 0, 6])),
]
MATRICES = [(drawn(20).view(5, 4),), (drawn(21).view(3, 7),)]
ENDS = [(VECTORS[0][0], torch.tensor([0, 4, 4, 9, 19])), (VECTORS[1][0], torch.tensor([0, 0, 9]))]
INT32 = [tuple(part.int() for part in call) for call in VECTORS]
ALL_PADDING = [(torch.tensor([3, 3, 1, 3, 2, 4]), torch.tensor([0, 2, 2, 5])), VECTORS[1]]
WEIGHTED = [(i, o, torch.rand(len(i)) + 0.1) for i, o in VECTORS]
CASES = {
    "sum": ({"mode": "sum"}, VECTORS),
    "mean": ({"mode": "mean"}, VECTORS),
    "max": ({"mode": "max"}, VECTORS),
    "matrix, sum": ({"mode": "sum"}, MATRICES),
    "matrix, max": ({"mode": "max"}, MATRICES),
    "last offset": ({"mode": "mean", "include_last_offset": True}, ENDS),
    "int32": ({"mode": "mean"}, INT32),
    "weights": ({"mode": "sum"}, WEIGHTED),
    "padding, sum": ({"mode": "sum", "padding_idx": 3}, ALL_PADDING),
    "padding, mean": ({"mode": "mean", "padding_idx": -9}, ALL_PADDING),
    "padding, max": ({"mode": "max", "padding_idx": 3}, ALL_PADDING),
    "padding, weights": ({"mode": "sum", "padding_idx": 3}, WEIGHTED),
}


def made(how, kind=Bags):
    torch.manual_seed(0)
    model = kind(**how).eval()
    nn.init.normal_(model.table.weight)  # a row of padding that is not zero would be noticed
    return model


def gradients(result, parameters):
    factor = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)
    return torch.autograd.grad((result * factor).sum(), parameters)


def compared(model, sparse, arguments):
    """Asserts that results and gradients are those of the model in float64."""
    exact = type(model)(**HOW[model]).double()
    exact.load_state_dict(model.state_dict())
    given = [a.clone().requires_grad_() if a.is_floating_point() else a for a in arguments]
    wide = [a.detach().double().requires_grad_() if a.is_floating_point() else a for a in arguments]
    found, wanted = sparse(*given), exact(*wide)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)  # of some float32 sums
    own = [p for p in (*sparse.parameters(), *given) if p.requires_grad]
    other = [p for p in (*exact.parameters(), *wide) if p.requires_grad]
    for one, expected in zip(gradients(found, own), gradients(wanted, other), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-6)


HOW = {}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_bags(name):
    how, (first, second) = CASES[name]
    model = made(how)
    HOW[model] = how
    sparse = apply(model, RECIPE, first, strict=True)
    assert len(sparse.report.regions) == 1
    compared(model, sparse, first)
    compared(model, sparse, second)
    assert len(sparse.variants) == 1
    assert not sparse.report.warnings


def test_weights_that_the_model_computes():
    model = made({"mode": "sum"}, Unequal)
    HOW[model] = {"mode": "sum"}
    arguments = [(MATRICES[n][0], torch.randn(MATRICES[n][0].shape)) for n in range(2)]
    sparse = apply(model, RECIPE, arguments[0], strict=True)
    for given in arguments:
        compared(model, sparse, given)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_tables_in_half_precision(mode):
    model = made({"mode": mode, "dtype": torch.bfloat16})
    sparse = apply(model, RECIPE, VECTORS[0], strict=True)
    assert len(sparse.report.regions) == 1
    expected = Bags(mode=mode).double()
    expected.load_state_dict(model.state_dict())
    found = sparse(*VECTORS[1])
    torch.testing.assert_close(found.double(), expected(*VECTORS[1]), rtol=1e-2, atol=1e-2)  # rounded once


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([1, ROWS, 2], [0, 1], "an index of a bag is 12, the table has 12 rows"),
        ([1, -1, 2], [0, 1], "an index of a bag is -1"),
        ([1, 2, 3], [0, 2, 1], "the offsets of bags do not ascend"),
        ([1, 2, 3], [1, 2], "the offsets of bags begin with 1"),
        ([1, 2, 3], [0, 4], "the offsets of bags end with 4, there are 3 indices"),
    ],
)
def test_mistakes(indices, offsets, message):
    sparse = apply(made({"mode": "sum"}), RECIPE, VECTORS[0])
    with pytest.raises(InvalidTensorError, match=message):
        sparse(torch.tensor(indices), torch.tensor(offsets))


def test_the_last_offset_is_the_number_of_indices():
    sparse = apply(made({"mode": "sum", "include_last_offset": True}), RECIPE, ENDS[0])
    with pytest.raises(InvalidTensorError, match="end with 2, there are 3 indices"):
        sparse(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2]))


def test_no_bags_and_no_indices():
    how = {"mode": "max"}
    sparse = apply(made(how), RECIPE, VECTORS[0])
    empty = torch.tensor([], dtype=torch.int64)
    assert torch.equal(sparse(empty, torch.tensor([0, 0])), torch.zeros(2, COLUMNS))
    assert sparse(empty, empty).shape == (0, COLUMNS)


@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"mode": "sum", "sparse": True}, "sparse=True asks for gradients as torch's sparse tensors"),
        ({"mode": "sum", "scale_grad_by_freq": True}, "that no derivative of the result is"),
    ],
    ids=str,
)
def test_what_stays_as_it_is(how, reason):
    sparse = apply(Bags(**how).eval(), RECIPE, VECTORS[0])
    assert [(entry.op, reason in entry.reason) for entry in sparse.report.dense] == [("embedding_bag", True)]


@pytest.mark.parametrize("us", [90.0, 110.0])
def test_the_faster_one_runs(us, monkeypatch):
    found = Winner("operator", (("kernel", us), ("torch", 100.0)))
    monkeypatch.setattr(torch_operator, "outcome", lambda draft, region, site: found)
    with options.override(tune_seconds=1):
        sparse = apply(made({"mode": "sum"}), ANY, VECTORS[0])
    if us < 100:
        assert sparse.report.regions[0].notes[0] == "timed 90 us, torch's 100"
    else:
        assert not sparse.report.regions
        assert sparse.report.dense[0].reason == "torch's embedding_bag is faster: timed 110 us, torch's 100"


@pytest.mark.parametrize("training", [False, True])
def test_what_is_timed(training):
    model = made({"mode": "max"}).train(training)
    with options.override(tune_seconds=0.02):
        sparse = apply(model, ANY, VECTORS[0])
    notes = [note for region in sparse.report.regions for note in region.notes]
    texts = [*notes, *(entry.reason for entry in sparse.report.dense)]
    assert any("us, torch's" in text for text in texts)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_kernels_where_nothing_is_timed(mode):
    sparse = apply(made({"mode": mode}), ANY, VECTORS[0])
    assert sparse.report.regions and not sparse.report.dense


def test_largest_entries_of_many_rows_are_a_kernel():
    table = nn.EmbeddingBag(1000, 64, mode="max").eval()
    sparse = apply(table, ANY, (torch.randint(0, 1000, (8000,)), torch.arange(0, 8000, 16)))
    assert "embedding_bag" in sparse.report.regions[0].nodes
