"""Sizes that the data decides, of which the code of models asks something."""

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify import options
from sparsify.errors import CaptureError, VerificationError
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls, export
from sparsify.passes.module import capture_call
from sparsify.passes.module.check import require_gain

# Edges that are the same in each call are sorted once: torch's operators are no choice beside kernels.
STATIC = {**MESSAGES, "sparsify": [{**rule, "static": True} for rule in MESSAGES["sparsify"]]}

geometric = pytest.importorskip("torch_geometric.nn")


@pytest.fixture(autouse=True)
def untimed():
    """Neither schedules nor whole calls are timed."""
    with options.override(tune_seconds=0):
        yield


class Kept(nn.Module):
    """Messages of the edges between nodes whose first feature is above zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(7, 5)

    def forward(self, x, edge_index):
        rows = self.layer(x)
        edges = edge_index[:, x[edge_index[0], 0] > 0]
        if edges.numel() == 0:
            return rows.new_full(rows.shape, 3.0)
        return torch.zeros_like(rows).index_add(0, edges[1], rows[edges[0]])


def arguments(nodes, edges, least=-1.0):
    x, edge_index = graph(nodes, edges)
    x = x.double()
    x[:, 0] = x[:, 0].abs() * least
    return x, edge_index


def compare(sparse, model, given):
    found, wanted = sparse(*given), model(*given)
    torch.testing.assert_close(found, wanted)
    if wanted.requires_grad:
        torch.testing.assert_close(
            *(torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (found, wanted))
        )


def test_sizes_of_two_or_more_are_captured():
    model = Kept().double()
    sparse = apply(model, MESSAGES, arguments(20, 55, 1.0), strict=True)
    assert sparse.report.regions
    for given in (arguments(20, 55, 1.0), arguments(31, 90, 1.0)):
        compare(sparse, model, given)
    assert len(sparse.variants) == 1


def test_calls_with_none_run_the_source_model():
    model = Kept().double()
    sparse = apply(model, MESSAGES, arguments(20, 55, 1.0))
    with pytest.warns(RuntimeWarning, match="0 or 1 in a call; the source model runs"):
        compare(sparse, model, arguments(20, 55))
    compare(sparse, model, arguments(22, 55))
    compare(sparse, model, arguments(22, 55, 1.0))
    assert len(sparse.variants) == 1


def test_an_example_with_none_is_not_captured():
    model = Kept().double()
    with pytest.warns(RuntimeWarning, match="sizes that the data decides are 0 or 1"):
        sparse = apply(model, MESSAGES, arguments(20, 55))
    for given in (arguments(20, 55), arguments(20, 55, 1.0)):
        compare(sparse, model, given)
    with pytest.raises(CaptureError, match="sizes that the data decides are 0 or 1"):
        apply(model, MESSAGES, arguments(20, 55), strict=True)


def test_traces_do_not_end_in_assertions():
    model = Kept().double()
    sparse = apply(model, MESSAGES, arguments(20, 55, 1.0))
    compiled = torch.compile(sparse, backend="eager")
    torch.testing.assert_close(compiled(*arguments(20, 55, 1.0)), model(*arguments(20, 55, 1.0)))
    with pytest.warns(RuntimeWarning, match="0 or 1 in a call"):
        torch.testing.assert_close(compiled(*arguments(20, 55)), model(*arguments(20, 55)))


@pytest.mark.parametrize("times", [(0.2, 0.1), (0.1, 0.2)])
def test_the_source_model_runs_where_it_is_faster(times, monkeypatch):
    model = Kept().double()
    asked = []

    def seconds(timed):
        timed.run()
        asked.append(len(timed.targets))
        return times[len(asked) % 2 == 0]

    monkeypatch.setattr(require_gain.Timed, "seconds", seconds)
    is_slower = times[0] < times[1]
    words = "takes 100 ms as it is, and 200 ms in kernels; the source model runs"
    with (
        options.override(tune_seconds=0.01),
        pytest.warns(RuntimeWarning, match=words) if is_slower else nullcontext(),
    ):
        sparse = apply(model, STATIC, arguments(20, 55, 1.0))
    assert len(sparse.variants) == (not is_slower)
    assert set(asked) == {2}  # with gradients of a weight and a bias
    compare(sparse, model, arguments(31, 90, 1.0))


def test_the_source_model_runs_where_it_is_faster_than_what_verification_leaves(monkeypatch):
    model, whole, failures = Kept().double(), capture_call.verify, []

    def verify(module, variant, *rest):
        if variant.regions and not failures:
            failures.append(variant)
            raise VerificationError("output differs")
        return whole(module, variant, *rest)

    monkeypatch.setattr(capture_call, "verify", verify)
    monkeypatch.setattr(require_gain, "times_of", lambda *_: (1.0, 2.0))
    with options.override(tune_seconds=0.01), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sparse = apply(model, STATIC, arguments(20, 55, 1.0))
    assert failures and not sparse.variants
    assert any("in kernels; the source model runs" in str(warning.message) for warning in caught)
    compare(sparse, model, arguments(31, 90, 1.0))


class Pooling(nn.Module):
    """Nodes of a batch of graphs, the best of each kept."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.pool = geometric.GCNConv(7, 5), kind(5)
        self.after = geometric.GCNConv(5, 5)

    def forward(self, x, edge_index, batch):
        x, edge_index, _, batch, *_ = self.pool(self.before(x, edge_index), edge_index, None, batch)
        return geometric.global_mean_pool(self.after(x, edge_index), batch)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["TopKPooling", "SAGPooling"])
def test_pooling_of_nodes(kind):
    model = Pooling(getattr(geometric, kind)).double()

    def batch(*sizes):
        x, edge_index = graph(sum(sizes), 3 * sum(sizes))
        return x.double(), edge_index, torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

    sparse = apply(model, MESSAGES, batch(8, 9, 10), strict=True)
    assert sparse.report.regions
    for sizes in ((8, 9, 10), (12, 13), (6, 7, 8, 9)):
        compare(sparse, model, batch(*sizes))
    assert len(sparse.variants) == 1


def test_statistics_are_updated_once():
    """A graph that updates statistics before it finds that it is not for the data is not made."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x, edge_index, mask):
            x = self.norm(x)
            edges = edge_index[:, mask]
            if edges.numel() == 0:
                return x
            return x.new_zeros(x.shape).index_add(0, edges[1], x[edges[0]])

    torch.manual_seed(0)
    model = Masked().train()
    twin = copy.deepcopy(model)
    x, edges = torch.randn(9, 4), torch.randint(0, 9, (2, 30))
    some, none = torch.arange(30) < 20, torch.zeros(30, dtype=torch.bool)
    rule = {"targets": ["op:message_passing"], "role": "adjacency", "source": "given", "optional": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = apply(model, {"schema": 1, "name": "masked", "sparsify": [rule]}, (x, edges, some))
        for mask in (some, none, some):
            torch.testing.assert_close(sparse(x, edges, mask), twin(x, edges, mask), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(sparse.named_buffers()), dict(twin.named_buffers()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("asked, exports", [("numbers", 2), ("sizes", 5)])
def test_only_comparisons_of_sizes_are_retried_with_assumptions(asked, exports, monkeypatch):
    """Dimensions of inputs are dynamic, then fixed; assumptions about sizes lie between the two attempts."""

    class Asks(nn.Module):
        def forward(self, x):
            number = (x if asked == "numbers" else x > 0).sum().item()
            return x + 1 if number > 1000 else x - 1

    attempts = []
    monkeypatch.setattr(
        export, "export", lambda *given, real=export.export: attempts.append(1) or real(*given)
    )
    x = torch.randn(6, 3)
    with pytest.raises(CaptureError, match="cannot capture Asks"):
        export.capture(Asks(), calls.flatten(calls.signature(Asks()), (x,), {}))
    assert len(attempts) == exports
