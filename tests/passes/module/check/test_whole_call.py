"""Whole calls against those of the source model: what loses is undone region by region."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import sparsify
from sparsify import options
from sparsify.compiler.kernel.least_time import Least
from sparsify.passes.choose import autotune
from sparsify.passes.module import capture_call
from sparsify.passes.module.check import whole_call

X = torch.randn(64, 192, generator=torch.Generator().manual_seed(0))
RULE = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.95}}


def recipe(**more):
    return {"schema": 1, "name": "pruned", "sparsify": [RULE], **more}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192)).eval()


TORCH, ONEDNN = [1.0, 9.0], [9.0, 1.0]


@pytest.fixture(params=[TORCH], ids=["torch"])
def formats(request, monkeypatch):
    """Every weight is packed, however busy the machine is; what is undone takes torch's product, or oneDNN's."""
    torch_us, onednn_us = request.param

    def race(calls, seconds):
        if len(calls) == 2:
            return [told(torch_us), told(onednn_us)]
        return [told(us) for us in (torch_us, 0.5, *[0.9] * (len(calls) - 4), onednn_us, 20.0)]

    monkeypatch.setattr(autotune, "race", race)
    monkeypatch.setattr(whole_call, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, timed, *_, **__: timed())
    with options.override(tune_seconds=0.01):
        yield


def told(us):
    least = Least(autotune.AGREEING, autotune.APART)
    for _ in range(autotune.AGREEING):
        least.add(us)
    return least


def race_of(*turns):
    """Times of the dense model and of the sparse one, for one comparison after the other."""
    left = list(turns)

    def race(calls, seconds, is_warm):
        for call in calls:
            call()
        return [told(us) for us in left.pop(0)]

    race.left = left
    return race


def gains(*pairs):
    """Times within a call, of all regions."""
    return lambda whole: [
        whole_call.Gain(region, *pair) for region, pair in zip(whole.kernels, pairs, strict=True)
    ]


def test_a_faster_call_has_its_times_in_the_report(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((4000.0, 1000.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert len(sparse.report.regions) == 2
    assert sparse.report.whole_call_us == sparse.report.to_dict()["whole_call_us"] == (4000.0, 1000.0)
    assert "a call by apply: 4 ms of the dense model in torch, 1 ms now" in str(sparse.report)


def test_a_region_that_loses_within_the_call_is_undone(model, formats, monkeypatch):
    race = race_of((1000.0, 1500.0), (1000.0, 900.0), (1000.0, 900.0))
    monkeypatch.setattr(whole_call, "race", race)
    monkeypatch.setattr(whole_call, "gains_of", gains((100.0, 200.0), (800.0, 300.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    (region,), (entry,) = sparse.report.regions, sparse.report.dense
    assert region.scopes == ["0", "1"] and entry.scope.startswith("2")
    assert "in it the kernel takes 800 us, torch's operators 300" in entry.reason and entry.chosen
    assert sparse.report.whole_call_us == (1000.0, 900.0) and not race.left
    assert sparse.report.whole_call.undone == ["2"]
    assert "undone, as kernels lost within the call: 2" in str(sparse.report)
    torch.testing.assert_close(sparse(X), sparse.original(X))


def test_a_second_draft_takes_the_graph_of_the_first_one(model, formats, monkeypatch):
    graphs = []

    def capture(*args, own=capture_call.capture, **settings):
        captured = own(*args, **settings)
        graphs.append((captured.graph, str(captured.graph)))
        return captured

    monkeypatch.setattr(capture_call, "capture", capture)
    monkeypatch.setattr(whole_call, "race", race_of((1000.0, 1500.0), (1000.0, 900.0), (1000.0, 900.0)))
    monkeypatch.setattr(whole_call, "gains_of", gains((100.0, 200.0), (800.0, 300.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    ((graph, text),) = graphs
    assert len(sparse.report.whole_call.undone) == 1 and str(graph) == text


@pytest.mark.parametrize("formats", [ONEDNN], indirect=True)
def test_what_is_undone_takes_the_product_of_a_library_that_is_faster(model, formats, monkeypatch):
    race = race_of((1000.0, 1500.0), (1000.0, 900.0), (1000.0, 900.0), (1000.0, 900.0))
    monkeypatch.setattr(whole_call, "race", race)
    monkeypatch.setattr(whole_call, "gains_of", gains((100.0, 200.0), (800.0, 300.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    first, second = sparse.report.regions
    assert "compressed" in first.formats["W"] and second.formats["W"] == "packed by oneDNN"
    assert any("in it the kernel takes 800 us, oneDNN 300" in note for note in second.notes)
    torch.testing.assert_close(sparse(X), sparse.original(X))


def test_a_call_that_goes_on_losing_has_no_kernels(model, formats, monkeypatch):
    race = race_of((1000.0, 1500.0), (1000.0, 900.0), (1000.0, 1400.0))
    monkeypatch.setattr(whole_call, "race", race)
    monkeypatch.setattr(whole_call, "gains_of", gains((2.0, 1.0), (1.0, 2.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert sparse.report.regions == [] and len(sparse.report.dense) == 2 and not race.left
    reasons = [entry.reason for entry in sparse.report.dense]
    assert all("with kernels, that of the dense model in torch 1000" in reason for reason in reasons)
    assert sparse.report.whole_call.undone == ["0, 1", "2"] and sparse.report.whole_call.is_dense
    assert (
        "1 ms of the dense model in torch, 1.4 ms with kernels, which were all undone"
        in sparse.report.text(400)
    )
    torch.testing.assert_close(sparse(X), sparse.original(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("formats", [ONEDNN], indirect=True)
def test_a_call_that_loses_against_packed_weights_has_no_kernels(model, formats, monkeypatch):
    """The source model in torch is slower than kernels, the same model with weights packed by oneDNN is faster."""
    race = race_of((1000.0, 700.0), (500.0, 700.0))
    monkeypatch.setattr(whole_call, "race", race)
    monkeypatch.setattr(whole_call, "gains_of", gains((2.0, 1.0), (2.0, 1.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert [region.formats["W"] for region in sparse.report.regions] == ["packed by oneDNN"] * 2
    entry = sparse.report.whole_call
    assert entry.library == "oneDNN" and (entry.dense_us, entry.own_us) == (500.0, 700.0) and not race.left
    torch.testing.assert_close(sparse(X), sparse.original(X))


@pytest.mark.parametrize("formats", [ONEDNN], indirect=True)
def test_calls_twice_as_fast_as_torch_pack_no_weights(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((1000.0, 490.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert sparse.report.whole_call.library == "torch" and len(sparse.report.regions) == 2


def test_regions_of_least_gain_are_undone_until_the_call_wins(formats, monkeypatch):
    """First the region that loses, then half of the others, in the order of gains."""
    torch.manual_seed(0)
    deep = nn.Sequential(*(nn.Linear(192, 192) for _ in range(6))).eval()
    race = race_of((1000.0, 1500.0), (1000.0, 1300.0), (1000.0, 900.0), (1000.0, 900.0))
    monkeypatch.setattr(whole_call, "race", race)
    us = [(10.0, 90.0), (50.0, 40.0), (10.0, 20.0), (10.0, 80.0), (10.0, 30.0), (10.0, 70.0)]
    monkeypatch.setattr(whole_call, "gains_of", gains(*us))
    sparse = sparsify.apply(deep, recipe(), X, trainable=False)
    assert [region.scopes for region in sparse.report.regions] == [["0"], ["3"]]
    assert sorted(sparse.report.whole_call.undone) == ["1", "2", "4", "5"] and not race.left
    torch.testing.assert_close(sparse(X), sparse.original(X))


def test_regions_are_all_undone_once_the_time_budget_is_spent(formats, monkeypatch):
    torch.manual_seed(0)
    deep = nn.Sequential(*(nn.Linear(192, 192) for _ in range(6))).eval()
    race = race_of((1000.0, 1500.0), (1000.0, 1300.0))
    monkeypatch.setattr(whole_call, "race", race)
    monkeypatch.setattr(whole_call, "gains_of", gains(*[(10.0, 90.0)] * 6))
    clock = iter([0.0, 0.0, 0.0, 0.0, 100.0])
    monkeypatch.setattr(whole_call, "perf_counter", lambda: next(clock))
    sparse = sparsify.apply(deep, recipe(), X, trainable=False)
    assert sparse.report.regions == [] and not race.left and next(clock, None) is None


@pytest.mark.parametrize("formats", [TORCH, ONEDNN], indirect=True, ids=["torch", "onednn"])
def test_times_within_a_call_are_those_of_kernels_and_of_dense_forms(model, formats, monkeypatch):
    times = (1000.0, 1500.0), (1000.0, 900.0), (1000.0, 900.0), (1000.0, 900.0)
    monkeypatch.setattr(whole_call, "race", race_of(*times))
    seen = {}

    def medians(regions, run, own=whole_call.medians):
        found = own(regions, run)
        is_kernel = regions[0].library is None
        seen[is_kernel] = found, run()
        return [2.0, 1.0] if is_kernel else [1.0, 2.0]

    monkeypatch.setattr(whole_call, "medians", medians)
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert all(us > 0 for found, _ in seen.values() for us in found) and set(seen) == {True, False}
    torch.testing.assert_close(seen[True][1], seen[False][1])
    assert "compressed" in sparse.report.regions[-1].formats["W"]
    assert sparse.report.whole_call.undone == ["0, 1"]
    torch.testing.assert_close(sparse(X), sparse.original(X))


def test_convolutions_are_compared_in_their_fastest_form(monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()).eval()
    net[1].running_mean.uniform_()
    images = torch.randn(2, 16, 12, 12)
    race = race_of((1000.0, 700.0), (500.0, 700.0))
    seen = {}

    def noted(calls, seconds, is_warm):
        found = [call() for call in calls]
        seen[len(race.left)] = found
        return race(calls, seconds, is_warm)

    times = {"kernel": 1.0, "torch": 9.0, "rows": 3.0, "channels": 2.0, "as it is": 1.0}

    def timed(kind, candidates, *_):
        return autotune.Winner(kind, tuple([(one.name, times.get(one.name, 5.0)) for one in candidates]))

    monkeypatch.setattr(whole_call, "race", noted)
    monkeypatch.setattr(autotune, "compare", timed)
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, timed, *_, **__: timed())
    with options.override(tune_seconds=0.01):
        sparse = sparsify.apply(net, recipe(), images, trainable=False)
    assert sparse.report.regions == [] and sparse.report.whole_call.library == "oneDNN"
    assert sparse.report.whole_call_us == (500.0, 700.0) and not race.left
    for found in seen.values():
        for result in found:
            torch.testing.assert_close(pytree.tree_leaves(result)[0], net_result(sparse, images))


def net_result(sparse, images):
    with torch.no_grad():
        return sparse.original(images)


@pytest.mark.parametrize("more", [{"compile": {"memory": "compact"}}, {"compile": {"backends": ["own"]}}])
def test_kernels_that_a_recipe_asks_for_are_not_timed_against_the_model(model, formats, monkeypatch, more):
    monkeypatch.setattr(whole_call, "race", race_of())
    sparse = sparsify.apply(model, recipe(**more), X, trainable=False)
    assert len(sparse.report.regions) == 2 and sparse.report.whole_call_us is None


def test_calls_are_timed_after_their_first_ones_and_print_nothing(formats, monkeypatch, capsys):
    class Printing(nn.Sequential):
        """Prints in each call, and counts calls."""

        def forward(self, x):
            print("called")
            return super().forward(x)

    firsts = []

    def race(calls, seconds, is_warm):
        firsts.append(is_warm)
        for call in calls:
            call()
        return [told(us) for us in (4000.0, 1000.0)]

    monkeypatch.setattr(whole_call, "race", race)
    torch.manual_seed(0)
    net = Printing(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192)).eval()
    with options.override(tune_seconds=0):
        sparsify.apply(net, recipe(), X, trainable=False, verify=False)
    once = capsys.readouterr().out.count("called")
    sparsify.apply(net, recipe(), X, trainable=False, verify=False)
    assert firsts == [False], "calls shorter than a second run once before they are timed"
    assert capsys.readouterr().out.count("called") == once


def test_turns_that_disagree_undo_nothing_unless_all_are_far_slower(model, formats, monkeypatch):
    def disturbed(calls, seconds, is_warm):
        found = [Least(autotune.AGREEING, autotune.APART) for _ in calls]
        for least, us in zip(found, (1000.0, 1400.0), strict=True):
            least.add(us)
        return found

    monkeypatch.setattr(whole_call, "race", disturbed)
    assert len(sparsify.apply(model, recipe(), X, trainable=False).report.regions) == 2
