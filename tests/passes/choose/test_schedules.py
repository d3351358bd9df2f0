"""Schedules of regions timed beside the expected ones: what won runs, is found again, and can be switched off."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, graph

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.least_time import Least
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.errors import UnsupportedProgramError
from sparsify.passes.choose import autotune, schedules


@pytest.fixture
def model() -> TwoLayers:
    torch.manual_seed(0)
    return TwoLayers(HandWritten, hidden=32, classes=32).eval()


def raced(monkeypatch: pytest.MonkeyPatch, *times: float, agreeing: int = 1) -> list[int]:
    """Contenders take these times, the last ones the last of them; how many there were in each race."""
    counts: list[int] = []

    def race(calls: Any, seconds: float) -> list[Least]:
        counts.append(len(calls))
        first = calls[0]()
        for call in calls[1:]:
            torch.testing.assert_close(call(), first, rtol=1e-4, atol=1e-5)
        return [Least(agreeing, 0.0, [times[min(n, len(times) - 1)]]) for n in range(len(calls))]

    monkeypatch.setattr(autotune, "race", race)
    time_from(monkeypatch, 0.0)
    return counts


def time_from(monkeypatch: pytest.MonkeyPatch, least_us: float) -> None:
    """Schedules of kernels that are expected to take as many microseconds are timed."""
    threshold = replace(autotune.THRESHOLDS["schedule"], least_us=least_us)
    monkeypatch.setitem(autotune.THRESHOLDS, "schedule", threshold)


def steps(module: Any) -> list[GeneratedStep]:
    (variant,) = module.variants
    return [step for region in variant.regions for step in region.kernel.generated]


def test_the_winner_runs_and_is_found_again(model, monkeypatch, tmp_path):
    x, edge_index = graph()
    counts = raced(monkeypatch, 10.0, 5.0)
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        first = sparsify.apply(model, MESSAGES, (x, edge_index))
        assert len(counts) == len(steps(first)) > 0
        assert min(counts) > 1
        with torch.no_grad():
            torch.testing.assert_close(first(x, edge_index), model(x, edge_index), rtol=1e-4, atol=1e-5)
        chosen = [str(step.stages.schedule) for step in steps(first)]
        monkeypatch.setattr(schedules, "candidates", lambda *_: pytest.fail("timed again"))
        second = sparsify.apply(model, MESSAGES, (x, edge_index))
    assert [str(step.stages.schedule) for step in steps(second)] == chosen
    notes = [note for region in first.report.regions for note in region.notes if "timed" in note]
    assert all("5 us, the expected one 10: " in note for note in notes)
    assert all(any(note.endswith(text) for note in notes) for text in chosen)
    assert notes == [n for region in second.report.regions for n in region.notes if "timed" in n]


@pytest.mark.parametrize(
    ("us", "agreeing", "told"),
    [(9.9, 1, "none faster than the expected one, 10 us"), (5.0, 2, "other work disturbed it")],
)
def test_what_is_not_faster_by_more_than_chance_stays(model, monkeypatch, tmp_path, us, agreeing, told):
    raced(monkeypatch, 10.0, us, agreeing=agreeing)
    with options.override(tune_seconds=0.0, cache_dir=tmp_path):
        expected = [str(s.stages.schedule) for s in steps(sparsify.apply(model, MESSAGES, graph()))]
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        sparse = sparsify.apply(model, MESSAGES, graph())
    assert [str(step.stages.schedule) for step in steps(sparse)] == expected
    notes = [note for region in sparse.report.regions for note in region.notes]
    assert any(told in note for note in notes)


def test_what_cannot_be_timed_is_said(model, monkeypatch, tmp_path):
    def missing(draft: Any, node: Any) -> Any:
        raise UnsupportedProgramError("the example has no such operand")

    raced(monkeypatch, 10.0, 5.0)
    monkeypatch.setattr(schedules, "example", missing)
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        sparse = sparsify.apply(model, MESSAGES, graph())
    notes = [note for region in sparse.report.regions for note in region.notes]
    told = "not timed, the expected one stays: the example has no such operand"
    assert sum(told in note for note in notes) == len(steps(sparse)) > 0


@pytest.mark.parametrize(("seconds", "least_us"), [(0.0, 0.0), (1.0, 1e9)])
def test_nothing_is_timed_where_it_is_switched_off_or_small(model, monkeypatch, tmp_path, seconds, least_us):
    monkeypatch.setattr(autotune, "race", lambda *_: pytest.fail("timed"))
    time_from(monkeypatch, least_us)
    with options.override(tune_seconds=seconds, cache_dir=tmp_path):
        sparsify.apply(model, MESSAGES, graph(), verify=False)


@pytest.mark.sampled(2)
def test_the_report_says_that_threads_share_a_hub() -> None:
    """Of 17,000 nodes that all have an edge to node 7, rows of 128 columns."""
    model = TwoLayers(HandWritten, hidden=128, classes=128).eval()
    nodes = torch.arange(17_000)
    edge_index = torch.stack(
        [torch.cat([nodes, nodes]), torch.cat([torch.full_like(nodes, 7), nodes.flip(0)])]
    )
    x = torch.randn(17_000, graph()[0].shape[1], generator=torch.Generator().manual_seed(0))
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(model, MESSAGES, (x, edge_index))
    notes = [note for region in sparse.report.regions for note in region.notes]
    assert any("all threads share each row of more than 8,192" in note for note in notes), notes
    assert any("hubs 8192" in str(step.stages.schedule) for step in steps(sparse))
    with torch.no_grad():
        found, wanted = sparse(x, edge_index), model(x, edge_index)
    # Node 7 sums 17,000 rows, which cancel in the next layer.
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["csr", "csc"])
def test_the_best_of_a_search_are_timed(format):
    """A product at the entries of two matrices has no template; CSC is read as a transposed copy."""
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.rand(200, 200, generator=generator) for _ in range(2)]
    A, B = (sparsify.tensor(m * (m < 0.3), f) for m, f in zip(matrices, ("csr", format), strict=True))
    P = torch.rand(200, 300, generator=generator)
    text = "Y[i,j] = A[i,j] * B[i,j] * sum(k, P[i,k] * P[j,k])"
    with options.override(vector_bytes=32):
        kernel = evaluate_kernel(text, A=A, B=B, P=P)
        (step,) = kernel.generated
        sizes = sizes_of(kernel.program, (A, B, P)).shared(kernel.program)
        usual = Schedule.parse("order i, j; precompute w at j in register; parallel i dynamic A")
        found = schedules.compiled(step, usual, sizes)
    assert set(step.sizes_as_read(sizes).stored) >= set(step.program.inputs) - {"P"}
    assert step.stages.schedule in found
    assert "lanes_w = w over ki" in str(step.stages.schedule)
