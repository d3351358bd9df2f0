"""Models that no graph holds whole run in the pieces that torch.compile finds."""

import copy
import cProfile
import logging
import pickle
import random
import threading
from typing import Any

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import Tensor, nn
from torch._dynamo import guards

import sparsify
from sparsify import options
from sparsify.errors import CaptureError, RecipeError, VerificationError
from sparsify.passes.dynamo import pieces
from sparsify.passes.module import piecewise
from sparsify.passes.module.check import verify
from sparsify.passes.module.check.silent_prints import SILENT

PRUNING = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:c1.lin.weight"], "prune": {"method": "magnitude", "sparsity": 0.8}}],
}


class Layer(nn.Module):
    """Sums over edges, in any dtype."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(features, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])


class Branching(nn.Module):
    """Two layers; between them the data decides in Python."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.c1, self.c2 = Layer(7, hidden), Layer(hidden, 3)
        self.norm = nn.BatchNorm1d(hidden)
        self.scale = 1.0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.c1(x, edge_index)).relu()
        largest = h.abs().max().item()
        if largest > 1:
            h = h / largest
        return self.c2(h, edge_index) * self.scale


def model(seed: int = 0, **how: Any) -> Branching:
    torch.manual_seed(seed)
    return Branching(**how)


def applied(source: nn.Module, recipe: Any = MESSAGES, call: Any = None, **how: Any) -> Any:
    with pytest.warns(RuntimeWarning, match="pieces that torch.compile finds run in kernels"):
        return sparsify.apply(source, recipe, graph() if call is None else call, **how)


@pytest.fixture(scope="module")
def shared() -> Any:
    """A model in evaluation mode and its sparse form, which tests leave as they are."""
    with options.override(tune_seconds=0):
        source = model().eval()
        return source, applied(source)


def gradients(run: Any, parameters: list[Tensor], *call: Tensor) -> tuple[Tensor, ...]:
    found = run(*call)
    weights = torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype).view_as(found)
    return found, *torch.autograd.grad((found * weights).sum(), parameters)


def test_pieces_run_in_kernels_and_are_reported(shared):
    source, sparse = shared
    x, edge_index = graph()
    with torch.no_grad():
        torch.testing.assert_close(sparse(x, edge_index), source(x, edge_index))
    first, last = sparse.report.pieces
    assert (first.regions, last.regions) == (1, 1)
    assert first.nodes > 3
    assert "test_piecewise.py:" in first.cut and "item" in first.cut and last.cut == ""
    text = str(sparse.report)
    assert "Pieces" in text and "why the graph broke" in text
    assert [region.name.partition(".")[0] for region in sparse.report.regions] == ["piece 1", "piece 2"]
    assert sparse.report.rules[0].matched
    assert sparse.report.to_dict()["pieces"][0]["regions"] == 1
    assert sparse.report.largest_error is not None


@pytest.mark.sampled(2)
def test_guards_of_pieces_are_not_timed(monkeypatch):
    """Dynamo flushes the caches of the CPU before it times guards; other compilations still do."""
    timer, timed = getattr(guards, pieces.GUARD_TIMER), []
    monkeypatch.setattr(guards, pieces.GUARD_TIMER, lambda *given: timed.append(1) or timer(*given))
    assert applied(model().eval()).report.pieces
    assert not timed
    torch.compile(torch.square, backend="eager")(torch.ones(2))
    assert timed


@pytest.mark.sampled(2)
def test_a_model_is_warned_of_once():
    def run() -> None:
        sparse = sparsify.apply(model().eval(), MESSAGES, graph())
        with torch.no_grad():
            sparse(*graph())
            sparse(*graph(nodes=31, edges=90))

    with pytest.warns(RuntimeWarning) as caught:
        run()
    assert len(caught) == 1, [str(one.message) for one in caught]
    assert "2 of the 2 pieces" in str(caught[0].message)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True])
def test_changed_graphs_agree_in_float64(training):
    source = model().double().train(training)
    x, edge_index = graph()
    sparse = applied(source, call=(x.double(), edge_index))
    exact = copy.deepcopy(source)
    kept = list(source.parameters())
    for seed, (nodes, edges) in enumerate([(20, 55), (33, 140), (12, 4), (50, 55)]):
        x, edge_index = graph(nodes=nodes, edges=edges, seed=seed)
        found = gradients(sparse, kept, x.double(), edge_index)
        wanted = gradients(exact, list(exact.parameters()), x.double(), edge_index)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dict(source.named_buffers()), dict(exact.named_buffers()))


@pytest.mark.sampled(2)
def test_apply_changes_no_buffers_and_draws_nothing():
    source = model().train()
    before, state = copy.deepcopy(dict(source.named_buffers())), torch.get_rng_state()
    applied(source)
    torch.testing.assert_close(dict(source.named_buffers()), before)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.sampled(2)
def test_calls_after_apply_find_their_pieces():
    sparse = applied(model().eval())
    compiler = sparse._captures.pieces.compiler
    with torch.no_grad():
        sparse(*graph())
        count = len(compiler.choices)
        sparse(*graph(nodes=40, edges=99))
        sparse(*graph(nodes=41, edges=98))
    assert len(compiler.choices) == count == 2


@pytest.mark.sampled(3)
def test_modes_follow_training_and_evaluation():
    source = model().train()
    sparse = applied(source)
    call = graph()
    twin = copy.deepcopy(source).eval()
    sparse.eval()
    with torch.no_grad():  # warned of already
        torch.testing.assert_close(sparse(*call), twin(*call))
    assert source.training and not sparse.training and len(sparse._captures.piecewise) == 2
    twin.train()
    sparse.train()
    torch.testing.assert_close(sparse(*call), twin(*call))
    torch.testing.assert_close(dict(source.named_buffers()), dict(twin.named_buffers()))


@pytest.mark.sampled(3)
def test_training_reaches_the_parameters_of_the_source_model():
    source = model().train()
    twin = copy.deepcopy(source)
    sparse = applied(source)
    assert [name for name, _ in sparse.named_parameters()] == [name for name, _ in source.named_parameters()]
    for one in (sparse, twin):
        optimizer = torch.optim.Adam(one.parameters(), lr=0.01)
        for seed in range(4):
            x, edge_index = graph(seed=seed)
            optimizer.zero_grad()
            one(x, edge_index).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(sparse.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(source.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", [MESSAGES, PRUNING], ids=["messages", "pruned"])
def test_states_are_loaded(recipe):
    sparse, other = applied(model().eval(), recipe), model(1).eval()
    with torch.no_grad():
        sparse(*graph())
        other.c1.lin.weight.mul_(sparse.state_dict()["c1.lin.weight"] != 0)
    sparse.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), other(*graph()))


@pytest.mark.sampled(3)
def test_attributes_and_parameters_that_are_replaced_count():
    source = model().eval()
    sparse = applied(source)
    source.scale = 2.0
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), source(*graph()))
    sparse.c2.lin.weight = nn.Parameter(torch.ones(3, 16))
    twin = copy.deepcopy(source)
    twin.c2.lin.weight = sparse.c2.lin.weight
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), twin(*graph()))
    lent = {name: torch.full_like(p, 0.1) for name, p in source.named_parameters()}
    with torch.no_grad():
        found = torch.func.functional_call(sparse, lent, graph())
        torch.testing.assert_close(found, torch.func.functional_call(source, lent, graph()))


@pytest.mark.sampled(2)
def test_attributes_that_a_call_sets_reach_the_source_model():
    class Counting(Branching):
        calls = 0

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            found = super().forward(x, edge_index)
            print(end="")
            self.calls = self.calls + 1
            return found

    source = Counting().eval()
    sparse = applied(source)
    assert source.calls == 0
    with torch.no_grad():
        for _ in range(3):
            sparse(*graph())
    assert source.calls == sparse.calls == 3


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Branching")
def test_copies_and_pickles_compute_by_pieces():
    source = model().eval()
    sparse = applied(source)
    for other in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse))):
        with torch.no_grad():
            torch.testing.assert_close(other(*graph()), source(*graph()))
            assert other._captures.piecewise
            other.c1.lin.weight.zero_()
    assert source.c1.lin.weight.abs().sum() > 0


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Branching")
def test_saved_models_compute_by_pieces(tmp_path):
    sparse = applied(model().eval(), PRUNING)
    sparsify.save(sparse, tmp_path / "model")
    loaded = sparsify.load(tmp_path / "model", model(3), graph())
    with torch.no_grad():
        torch.testing.assert_close(loaded(*graph()), sparse(*graph()))
    assert sum(piece.regions for piece in loaded.report.pieces) == 1


@pytest.mark.sampled(2)
def test_weights_are_pruned_before_pieces_are_captured():
    source = model().eval()
    sparse = applied(source, PRUNING)
    weight = sparse.state_dict()["c1.lin.weight"]
    assert (weight == 0).float().mean() == pytest.approx(0.8, abs=0.01)
    assert (source.c1.lin.weight != 0).all()
    assert [entry.name for entry in sparse.report.pruned] == ["c1.lin.weight"]
    twin = copy.deepcopy(source)
    twin.load_state_dict(sparse.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), twin(*graph()))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Branching")
def test_pruned_weights_keep_their_zeros_in_training():
    sparse = applied(model().train(), PRUNING)
    before = sparse.state_dict()["c1.lin.weight"] == 0
    optimizer = torch.optim.SGD(sparse.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        sparse(*graph()).square().mean().backward()
        optimizer.step()
    after = sparse.state_dict()["c1.lin.weight"]
    assert bool((after[before] == 0).all())


def test_strict_raises():
    with pytest.raises(CaptureError, match="cannot capture Branching"):
        sparsify.apply(model().eval(), MESSAGES, graph(), strict=True)


@pytest.mark.sampled(2)
def test_a_rule_that_matches_no_piece_is_reported():
    rules = [*MESSAGES["sparsify"], {"targets": ["op:softmax"], "format": "csr"}]
    with pytest.raises(RecipeError, match=r"rule 2 matches nothing.*in the pieces"):
        sparsify.apply(model().eval(), {**MESSAGES, "sparsify": rules}, graph())


@pytest.mark.sampled(2)
def test_errors_of_the_model_are_its_own():
    sparse = applied(model().eval())
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|size mismatch|shapes cannot be multiplied"):
        sparse(torch.randn(20, 9), graph()[1])
    with torch.no_grad():
        sparse(*graph())
    assert sparse._captures.piecewise


def test_models_without_regions_run_as_they_are():
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(7, 7)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.lin(x)
            return h * 2 if h.sum().item() > 0 else h

    source = Dense().eval()
    with pytest.warns(RuntimeWarning, match="the source model runs") as caught:
        sparse = sparsify.apply(source, "gcn", graph())
    assert not sparse.report.pieces and not sparse._captures.piecewise
    headline, whole, pieces = str(caught[0].message).splitlines()
    assert headline == "Dense: the source model runs"
    assert whole.startswith("  as a whole: torch.export cannot capture Dense: ")
    assert pieces.startswith("  in pieces: none of the ") and pieces.count("has a region") == 1
    assert [text.strip() for text in (whole, pieces)] == sparse.report.warnings
    torch.testing.assert_close(sparse(*graph()), source(*graph()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [True, False])
def test_buffers_that_refused_calls_replace_count(mode):
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(7, 7)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return self.lin(x) if x.sum().item() > -1e9 else x

    source, (x, _) = Counts().train(), graph()
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(source, "gcn", x)
    sparse.train(mode)
    begin = int(sparse.count)
    for calls in range(1, 4):
        torch.testing.assert_close(sparse(x), nn.functional.linear(x, source.lin.weight, source.lin.bias))
        assert int(sparse.count) == int(source.count) == begin + calls
    lent = {"lin.weight": torch.zeros(7, 7)}
    assert torch.equal(torch.func.functional_call(sparse, lent, x), source.lin.bias.expand(len(x), 7))


@pytest.mark.sampled(2)
def test_refused_calls_in_other_modes_follow_the_source_model():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.scale = nn.BatchNorm1d(7), 1.0

        def forward(self, x: Tensor) -> Tensor:
            self.last = x.sum().item()
            return self.norm(x) * self.scale if self.last > -1e9 else x

    source, (x, _) = Scaled().train(), graph()
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(source, "gcn", x)
    sparse.eval()
    twin = copy.deepcopy(source).eval()
    for scale in (1.0, 2.0):
        source.scale = twin.scale = scale
        for _ in range(2):
            torch.testing.assert_close(sparse(x), twin(x))
        assert source.last == twin.last
    source.norm.weight.data.fill_(3.0)
    twin.norm.weight.data.fill_(3.0)
    torch.testing.assert_close(sparse(x), twin(x))
    assert source.training


@pytest.mark.sampled(3)
def test_pieces_that_change_with_each_call_are_not_used():
    class Drawing(Branching):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            self.word = f"{self.word}."
            return super().forward(x + 0.0 * len(self.word), edge_index)

    Drawing.word = ""
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(Drawing().eval(), MESSAGES, graph())
    assert any("other pieces in each call" in text for text in sparse.report.warnings), sparse.report.warnings


@pytest.mark.sampled(3)
def test_slower_pieces_are_not_used(monkeypatch):
    times = iter([0.1, 0.1, *[0.1, 0.5] * 40])
    monkeypatch.setattr(pieces, "seconds", lambda run, parameters: 0.1)
    monkeypatch.setattr(piecewise, "seconds", lambda run, parameters: (run(), next(times))[1])
    with options.override(tune_seconds=0.01), pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(model().eval(), MESSAGES, graph())
    assert any("ms, the source model" in text for text in sparse.report.warnings), sparse.report.warnings


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", [0.0, 1e-3])
def test_differences_of_pieces_may_be_of_rounding(share, monkeypatch):
    """The bias before a normalisation has gradients of rounding alone; differences beyond it count."""

    def refused(*_: Any) -> float:
        raise VerificationError("gradient 1 differs")

    def scaled(outputs: Any, parameters: Any, like: Any = None) -> Any:
        found = pulled_back(outputs, parameters, like)
        if like is None or outputs is like or parameters[0].dtype is torch.float64:
            return found
        return tuple([one if one is None else one * (1 + share) for one in found])

    pulled_back = verify.gradients
    monkeypatch.setattr(piecewise, "compare_gradients", refused)
    monkeypatch.setattr(verify, "gradients", scaled)
    if not share:
        assert applied(model().train()).report.largest_error < 1e-4
        return
    limits = {"verify": {"rtol": 1e-6, "atol": 1e-6}}
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(model().train(), {**MESSAGES, **limits}, graph())
    assert any("gradient 1 differs" in text for text in sparse.report.warnings)


def test_where_dynamo_fails_the_source_model_runs(monkeypatch):
    source = model().eval()

    class Failing:
        callback = staticmethod(id)

        def __call__(self, model: nn.Module) -> Any:
            raise RuntimeError("no graphs today")

    monkeypatch.setattr(torch._dynamo, "optimize", lambda *args, **kwargs: Failing())
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(source, MESSAGES, graph())
    assert any("no graphs today" in text for text in sparse.report.warnings)
    torch.testing.assert_close(sparse(*graph()), source(*graph()))


def test_where_dynamo_fails_later_the_source_model_runs():
    source = model().eval()
    sparse = applied(source)
    with torch.no_grad():
        sparse(*graph())

    def failing(*args: Any) -> Any:
        raise AssertionError("an error of the compiler")

    (standing,) = sparse._captures.pieces.standing.values()
    standing.run = failing
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="an error of the compiler"):
        torch.testing.assert_close(sparse(*graph()), source(*graph()))
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), source(*graph()))
    assert not sparse._captures.piecewise


class Counting(Branching):
    """Counts its calls, in an attribute and in a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.count = self.count + 1
        found = super().forward(x, edge_index)
        self.note()
        return found

    @torch._dynamo.disable
    def note(self) -> None:
        self.calls += 1


@pytest.mark.sampled(2)
def test_a_call_that_dynamo_fails_in_counts_once(monkeypatch):
    torch.manual_seed(0)
    source = Counting().train()
    twin = copy.deepcopy(source)
    sparse = applied(source)

    def run(model: nn.Module, seed: int) -> None:
        found = gradients(model, [model.get_parameter("c1.lin.weight")], *graph(seed=seed))
        assert all(map(torch.is_tensor, found))

    for seed in range(2):
        run(sparse, seed), run(twin, seed)
    calls, whole = [0], pieces.Piece.__call__

    def failing(self: Any, *values: Any) -> Any:
        found = whole(self, *values)
        calls[0] += 1
        if calls[0] == 3:  # the statistics of the first piece are written
            raise AssertionError("an error of the compiler")
        return found

    monkeypatch.setattr(pieces.Piece, "__call__", failing)
    with pytest.warns(RuntimeWarning, match="an error of the compiler"):
        run(sparse, 2)
    run(twin, 2)
    assert calls[0] == 3
    assert source.calls == twin.calls == 3
    torch.testing.assert_close(sparse.state_dict(), twin.state_dict())
    assert twin.count == 3
    run(sparse, 3), run(twin, 3)
    torch.testing.assert_close(dict(source.named_buffers()), dict(twin.named_buffers()))


@pytest.mark.sampled(2)
def test_calls_that_the_model_refuses_leave_it_as_the_model_does():
    class Refusing(Counting):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            found = super().forward(x, edge_index)
            if x.max().item() > 1e6:
                raise ValueError("too large")
            return found

    source = Refusing().train()
    twin = copy.deepcopy(source)
    sparse = applied(source)
    x, edge_index = graph()
    for one in (sparse, twin):
        with pytest.raises(ValueError, match="too large"):
            one(x * 1e8, edge_index)
    assert source.calls == twin.calls == 1
    torch.testing.assert_close(dict(source.named_buffers()), dict(twin.named_buffers()))


@pytest.mark.sampled(2)
def test_calls_that_write_into_arguments_are_not_made_twice(monkeypatch):
    class Writing(Branching):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x.add_(1)
            return super().forward(x, edge_index)

    source = Writing().eval()
    sparse = applied(source)
    whole = pieces.Piece.__call__

    def failing(self: Any, *values: Any) -> Any:
        whole(self, *values)
        raise AssertionError("an error of the compiler")

    x, edge_index = graph()
    with torch.no_grad():
        sparse(x.clone(), edge_index)
        monkeypatch.setattr(pieces.Piece, "__call__", failing)
        with pytest.raises(
            CaptureError, match=r"written into parameters or arguments.*make the call once more"
        ):
            sparse(x.clone(), edge_index)
        torch.testing.assert_close(sparse(x.clone(), edge_index), source(x.clone(), edge_index))


class Printing(Branching):
    """Prints in each call; its middle piece sums over no edges."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.c1(x, edge_index)
        if h.sum().item() > -1e9:
            print("a line")
        h = self.norm(h).relu() * 2
        if h.sum().item() > -1e9:
            print("a line")
        return self.c2(h, edge_index)


@pytest.mark.sampled(2)
def test_apply_prints_once(capsys):
    source = Printing().eval()
    sparse = applied(source)
    assert capsys.readouterr().out == "a line\n" * 2
    with torch.no_grad():
        sparse(*graph())
    assert capsys.readouterr().out == "a line\n" * 2


def test_other_threads_print_while_a_model_is_captured(capsys):
    with SILENT:
        print("of the model")
        other = threading.Thread(target=print, args=("of another thread",))
        other.start()
        other.join()
    print("afterwards")
    assert capsys.readouterr().out == "of another thread\nafterwards\n"


@pytest.mark.sampled(2)
def test_pieces_that_scatter_nothing_are_not_captured(monkeypatch):
    made, usual = [], pieces.sparse_module
    monkeypatch.setattr(pieces, "sparse_module", lambda *args: (made.append(1), usual(*args))[1])
    sparse = applied(Printing().eval())
    assert [entry.regions for entry in sparse.report.pieces] == [1, 0, 0, 1]
    assert len(made) == 2


@pytest.mark.sampled(2)
def test_a_search_for_pieces_ends_in_time(monkeypatch):
    monkeypatch.setattr(pieces, "CAPTURING_S", 0.0)
    sparse = applied(model().eval())
    first, last = sparse.report.pieces
    assert first.regions == 1 and last.regions == 0 and "not captured: earlier pieces took" in last.note
    monkeypatch.setattr(pieces, "FINDING_S", 0.0)
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = sparsify.apply(model().eval(), MESSAGES, graph())
    assert any("not all found in 0 s" in text for text in sparse.report.warnings), sparse.report.warnings
    with torch.no_grad():
        sparse(*graph())


@pytest.mark.sampled(3)
def test_apply_runs_under_a_profiler():
    with cProfile.Profile():
        applied(model().eval())


@pytest.mark.sampled(2)
def test_long_lists_of_numbers_are_not_traced():
    class Sampling(Branching):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            drawn = random.sample(range(x.shape[0] * 100), 1500)
            print(end="")
            return super().forward(x, edge_index) + torch.tensor(drawn).sum() * 0

    source = Sampling().eval()
    sparse = applied(source)
    assert max(piece.nodes for piece in sparse.report.pieces) < 100
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), source(*graph()))


@pytest.mark.sampled(3)
def test_short_lists_are_between_pieces_and_others_compile_the_model_as_ever():
    class Counting(Branching):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.norm(self.c1(x, edge_index)).relu()
            largest = max(h.sum(0).tolist())
            if self.draws:
                largest += random.sample(range(1000), 300)[0] * 0
            print(end="")
            return self.c2(h / largest, edge_index)

    def graphs() -> str:
        found: list[Any] = []
        torch.compile(source, backend=lambda graph, _: found.append(graph) or graph)(*graph())
        return "".join(str(graph.graph) for graph in found)

    source = Counting().eval()
    source.draws = False
    sparse = applied(source)
    assert "relu" in graphs()
    assert any("tolist" in piece.cut for piece in sparse.report.pieces)
    assert sum(piece.regions > 0 for piece in sparse.report.pieces) == 2
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), source(*graph()))
    source.draws = True
    with pytest.warns(RuntimeWarning, match="torch.compile finds"):
        sparsify.apply(source, MESSAGES, graph())
    source.draws = False
    assert "relu" in graphs()


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Muon])
def test_pruned_weights_keep_their_zeros_where_the_source_model_trains(kind):
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).relu()
            if h.sum().item() > 1e9:
                print()
            return outside(self.b, h)

    rule = {
        "targets": "param:*weight",
        "types": ["Linear"],
        "prune": {"method": "magnitude", "sparsity": 0.8},
    }
    for pieces_of in (True, False):
        sparse = sparsify.apply(
            Between(), {"name": "pruned", "sparsify": [rule]}, (torch.randn(8, 16),), trainable=True
        )
        weights = [sparse.a.weight, sparse.b.weight]
        zeros = [weight.detach() == 0 for weight in weights]
        optimizer = kind(weights, lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            sparse(torch.randn(8, 16) if pieces_of else torch.randn(2, 8, 16)).square().mean().backward()
            optimizer.step()
        assert [int((weight[zero] != 0).sum()) for weight, zero in zip(weights, zeros, strict=True)] == [0, 0]


@torch._dynamo.disable
def outside(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


@pytest.mark.sampled(2)
def test_torch_logs_nothing_and_levels_stay(monkeypatch):
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logs = [logging.getLogger(name) for name in ("torch._dynamo", "torch._subclasses.fake_tensor")]
    for log in logs:
        monkeypatch.setattr(log, "handlers", [*log.handlers, handler])
    levels = [log.level for log in logs]
    torch._dynamo.reset()
    sparse = applied(model().eval())
    x, edges = graph()
    with torch.no_grad(), pytest.raises(Exception, match="shapes"):
        sparse(x[:, :4], edges)
    assert not said
    assert levels == [log.level for log in logs]


@pytest.mark.sampled(2)
def test_threads(shared):
    source, sparse = shared
    calls = [graph(nodes=20 + n, edges=60 + n, seed=n) for n in range(4)]
    with torch.no_grad():
        wanted = [source(*call) for call in calls]
        found: list[Any] = [None] * 4

        def run(at: int) -> None:
            with torch.no_grad():
                found[at] = sparse(*calls[at])

        threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    torch.testing.assert_close(found, wanted)


@pytest.mark.sampled(3)
def test_conversions_capture_anew():
    source = model().eval()
    sparse = applied(source).double()
    assert not sparse._captures.piecewise
    x, edge_index = graph()
    with torch.no_grad():
        torch.testing.assert_close(sparse(x.double(), edge_index), source(x.double(), edge_index))
    assert sparse._captures.piecewise
