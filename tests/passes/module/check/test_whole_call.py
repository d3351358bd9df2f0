"""Whole calls against those of the source model: what loses is undone region by region."""

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.kernel.least_time import Least
from sparsify.passes.choose import autotune
from sparsify.passes.module.check import whole_call

X = torch.randn(64, 192, generator=torch.Generator().manual_seed(0))
RULE = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.95}}


def recipe(**more):
    return {"schema": 1, "name": "pruned", "sparsify": [RULE], **more}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192)).eval()


KERNEL, TORCH, ONEDNN = [9.0, 1.0, *[5.0] * 9], [1.0, 9.0], [9.0, 1.0]


@pytest.fixture(params=[TORCH], ids=["torch"])
def formats(request, monkeypatch):
    """Every weight is packed, however busy the machine is; what is undone takes torch's product, or oneDNN's."""

    def race(calls, seconds):
        return [told(us) for us in (request.param if len(calls) == 2 else KERNEL)[: len(calls)]]

    monkeypatch.setattr(autotune, "race", race)
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, timed, *_, **__: timed())
    with options.override(tune_seconds=0.01):
        yield


def told(us):
    least = Least(autotune.AGREEING, autotune.APART)
    for _ in range(autotune.AGREEING):
        least.add(us)
    return least


def race_of(*turns):
    """Times of the source model and of the sparse one, for one capture after the other."""
    left = list(turns)
    return lambda calls, seconds, is_warm: [told(us) for us in left.pop(0)]


def test_a_faster_call_has_its_times_in_the_report(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((4000.0, 1000.0)))
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert len(sparse.report.regions) == 2
    assert sparse.report.whole_call_us == (4000.0, 1000.0)
    assert "a call by apply: 4 ms of the dense model in torch, 1 ms now" in str(sparse.report)


def test_a_region_that_loses_within_the_call_is_undone(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((1000.0, 1500.0), (1000.0, 900.0)))
    monkeypatch.setattr(
        whole_call,
        "slower_regions",
        lambda kernels, run: [(kernels[1], 800.0, 300.0)],
    )
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    (region,), (entry,) = sparse.report.regions, sparse.report.dense
    assert region.scopes == ["0", "1"] and entry.scope.startswith("2")
    assert "in it the kernel takes 800 us, torch's operators 300" in entry.reason and entry.chosen
    assert sparse.report.whole_call_us == (1000.0, 900.0)
    torch.testing.assert_close(sparse(X), sparse.original(X))


@pytest.mark.parametrize("formats", [ONEDNN], indirect=True)
def test_what_is_undone_takes_the_product_of_a_library_that_is_faster(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((1000.0, 1500.0), (1000.0, 900.0)))
    monkeypatch.setattr(whole_call, "slower_regions", lambda kernels, run: [(kernels[1], 800.0, 300.0)])
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    first, second = sparse.report.regions
    assert "compressed" in first.formats["W"] and second.formats["W"] == "packed by oneDNN"
    assert any("in it the kernel takes 800 us" in note for note in second.notes)
    torch.testing.assert_close(sparse(X), sparse.original(X))


def test_a_call_that_goes_on_losing_has_no_kernels(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((1000.0, 1500.0), (1000.0, 1500.0)))
    monkeypatch.setattr(whole_call, "slower_regions", lambda kernels, run: [(kernels[0], 2.0, 1.0)])
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert sparse.report.regions == [] and len(sparse.report.dense) == 2
    assert all("with kernels, that of the source model 1000" in entry.reason for entry in sparse.report.dense)
    torch.testing.assert_close(sparse(X), sparse.original(X))


def test_times_within_a_call_are_those_of_kernels_and_of_operators(model, formats, monkeypatch):
    monkeypatch.setattr(whole_call, "race", race_of((1000.0, 1500.0), (1000.0, 900.0)))
    seen = {}

    def medians(regions, run, own=whole_call.medians):
        found = own(regions, run)
        seen[regions[0].library is None] = found
        return [2.0, 1.0] if regions[0].library is None else [1.0, 2.0]

    monkeypatch.setattr(whole_call, "medians", medians)
    sparse = sparsify.apply(model, recipe(), X, trainable=False)
    assert all(us > 0 for times in seen.values() for us in times) and set(seen) == {True, False}
    assert [region.scopes[0] for region in sparse.report.regions] == ["2"]
    torch.testing.assert_close(sparse(X), sparse.original(X))


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
