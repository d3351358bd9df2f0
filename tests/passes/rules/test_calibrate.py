"""Rules that prune with calibration data, through `apply`."""

import warnings

import pytest
import torch
from torch import nn

import sparsify
from sparsify.errors import DataError, RecipeError
from sparsify.pruning.sparsegpt import sparsegpt
from sparsify.pruning.structure import Structure


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 8)).eval()


def recipe(method="sparsegpt", calibration=None, **how):
    how = how or {"sparsity": 0.5}
    rule = {"id": "all", "targets": ["param:*.weight"], "prune": {"method": method, **how}}
    extra = {} if calibration is None else {"calibration": calibration}
    return {"schema": 1, "name": "calibrated", "sparsify": [rule], **extra}


def batches(count=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 16, generator=generator) for _ in range(count)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
@pytest.mark.parametrize("how", [{"sparsity": 0.75}, {"pattern": "2:4"}])
def test_apply(method, how):
    net, data = model(), batches()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    sparse = sparsify.apply(net, recipe(method, **how), data[0], calibration=iter(data))
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    entry = sparse.report.calibration
    assert entry.samples == 32
    assert list(entry.layers) == ["0.weight", "3.weight"]
    assert all(kind == method and 0 < error < 1 for kind, error in entry.layers.values())
    assert [round(e.zeros, 6) for e in sparse.report.pruned] == [how.get("sparsity", 0.5)] * 2
    text = str(sparse.report)
    assert "calibration: 32 samples of 16" in text
    assert entry.digest[:16] in text
    assert sparse.report.to_dict()["calibration"]["digest"] == entry.digest
    state, masked = sparse.state_dict(), model()
    masked.load_state_dict(state)
    torch.testing.assert_close(sparse(data[1]), masked(data[1]), rtol=1e-4, atol=1e-5)
    again = sparsify.apply(model(), recipe(method, **how), data[0], calibration=data)
    assert all(torch.equal(again.state_dict()[name], state[name]) for name in state)


def test_the_first_layer_is_as_the_paper_has_it():
    net, data = model(), batches()
    sparse = sparsify.apply(net, recipe(), data[0], calibration=data)
    x = torch.cat(data)
    _, wanted = sparsegpt(net[0].weight, x.t() @ x, Structure(), 0.5)
    torch.testing.assert_close(sparse.state_dict()["0.weight"], wanted, rtol=1e-4, atol=1e-5)


def test_dropout_is_off_and_modes_stay():
    net, data = model().train(), batches()
    trained = sparsify.apply(net, recipe(), data[0], calibration=data, trainable=False, verify=False)
    served = sparsify.apply(model(), recipe(), data[0], calibration=data)
    assert trained.training
    assert trained.report.calibration == served.report.calibration


def test_the_part_of_the_data():
    entries = [
        sparsify.apply(
            model(), recipe(calibration=part), batches()[0], calibration=batches()
        ).report.calibration
        for part in (
            {"samples": 8},
            {"samples": 8, "seed": 0},
            {"samples": 8, "seed": 0, "split": "test"},
            {"samples": 8, "seed": 1},
        )
    ]
    assert [entry.samples for entry in entries] == [8] * 4
    assert len({entry.digest for entry in entries}) == 3
    assert entries[1].digest == entries[2].digest
    assert entries[2].split == "test"


def test_length_cuts_tokens():
    net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 16))
    tokens = torch.arange(40).view(4, 10) % 20
    found = sparsify.apply(net.eval(), recipe(calibration={"length": 6}), tokens, calibration=[tokens])
    short = sparsify.apply(net.eval(), recipe(), tokens, calibration=[tokens[:, :6]])
    assert found.report.calibration == short.report.calibration
    assert found.report.calibration.length == 6


def test_the_example_inputs_alone():
    with pytest.warns(RuntimeWarning, match="example inputs alone are the calibration data"):
        sparse = sparsify.apply(model(), recipe(), batches()[0])
    assert sparse.report.calibration.samples == 8


def test_more_samples_than_there_are():
    with pytest.warns(RuntimeWarning, match="asks for 99 calibration samples, the data has 32"):
        sparsify.apply(model(), recipe(calibration={"samples": 99}), batches()[0], calibration=batches())


def test_data_that_no_rule_uses():
    with pytest.warns(RuntimeWarning, match="is not used"):
        sparsify.apply(model(), recipe("magnitude"), batches()[0], calibration=batches())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "is empty"),
        (torch.randn(8, 16), r"calibration=\[x1, x2\]"),
        ([torch.randn(8, 15)], "fails for batch 1"),
        ([(torch.randn(8, 16), 3)], "batch 1 of the calibration data"),
        ([torch.full((8, 16), torch.inf)], "NaN"),
        ([torch.empty(0, 16)], "is empty"),
    ],
)
def test_bad_data(data, text):
    net = model()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(DataError, match=text):
        sparsify.apply(net, recipe(), batches()[0], calibration=data)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_no_data():
    with pytest.raises(RecipeError, match="needs calibration data"):
        sparsify.apply(model(), recipe())


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (recipe("wanda", sparsity=0.5, scope="global"), "scope: global"),
        (recipe("magnitude", {"samples": 3}), "no rule has `method: wanda`"),
        (recipe("wanda", {"samples": 0}), "samples"),
        (recipe("sparsegpt", pattern="2:5"), "groups of 5"),
    ],
)
def test_recipes_that_do_not_fit(how, text):
    with pytest.raises(RecipeError, match=text):
        sparsify.apply(model(), how, batches()[0], calibration=batches())


def test_tied_weights_are_refused_before_the_data_is_run():
    first, second = nn.Linear(16, 32), nn.Linear(16, 32)
    second.weight = first.weight

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.ModuleList([first, second])

        def forward(self, x):
            return self.both[0](x) + self.both[1](x)

    with pytest.raises(RecipeError, match="one parameter"):
        sparsify.apply(Tied().eval(), recipe(), batches()[0], calibration=batches())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule = recipe()
        rule["sparsify"][0]["ties"] = "share"
        sparse = sparsify.apply(Tied().eval(), rule, batches()[0], calibration=batches())
    assert sparse.report.pruned[0].zeros == 0.5


def test_a_saved_model_keeps_its_zeros(tmp_path):
    sparse = sparsify.apply(model(), recipe("wanda", sparsity=0.8), batches()[0], calibration=batches())
    sparsify.save(sparse, tmp_path / "saved")
    loaded = sparsify.load(tmp_path / "saved", model(), batches()[0])
    state = sparse.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    assert loaded.report.pruned == sparse.report.pruned


def test_batches_with_fewer_modes():
    net, data = model(), batches()
    text = r"batch 2 of the calibration data: input is \[16\].*the example inputs.*\[8, 16\]"
    with pytest.raises(DataError, match=text):
        sparsify.apply(net, recipe("wanda"), data[0], calibration=[data[0], data[1][0]])
