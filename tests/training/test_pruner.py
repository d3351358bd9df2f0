"""Masks over a training: as asked after each step, the same in two runs, and after a stop."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsify
from sparsify.errors import SparsifyError
from tests.fork_server import run_ranks
from tests.training.processes import leave_together

STEPS = 12


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8)).double()


def recipe(method, **how):
    rule = {
        "id": "weights",
        "targets": "param:*.weight",
        "prune": {"method": method, "sparsity": 0.75, **how},
        "schedule": {"end": 9, "every": 3},
    }
    return {"name": "x", "sparsify": [rule]}


class Run:
    """A training of `STEPS` steps."""

    def __init__(self, method, **how):
        self.model = model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.pruner = sparsify.Pruner(self.model, self.optimizer, recipe(method, **how))

    def step(self, at):
        torch.manual_seed(100 + at)
        x, y = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
        for part in range(2):  # accumulated
            nn.functional.mse_loss(self.model(x[part]), y[part]).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pruner.step()
        return self

    def zeros(self):
        weights = [self.model[0].weight, self.model[3].weight]
        return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


METHODS = [
    ("gmp", {}),
    ("movement", {}),
    ("gradient", {}),
    ("set", {"scope": "erk"}),
    ("rigl", {"scope": "erk"}),
]


@pytest.mark.parametrize("method, how", METHODS)
def test_zeros_are_as_asked_after_each_step(method, how):
    run = Run(method, **how)
    for at in range(STEPS):
        run.step(at)
        for name, mask in run.pruner.masks.items():
            assert not run.model.get_parameter(name)[~mask].any()
        wanted = run.pruner.rules[0].plans[0].schedule.target((at + 1) // 3 * 3)
        total = sum(mask.numel() for mask in run.pruner.masks.values())
        kept = sum(int(mask.sum()) for mask in run.pruner.masks.values())
        assert kept == pytest.approx(total * (1 - wanted), abs=1)
    assert [update.step for update in run.pruner.report] == [3, 6, 9]
    assert run.zeros() == pytest.approx(0.75, abs=0.01)
    assert run.pruner.report[0].churn > 0


@pytest.mark.parametrize("method, how", METHODS)
def test_a_run_that_stops_equals_one_that_does_not(method, how):
    whole, first, second = Run(method, **how), Run(method, **how), Run(method, **how)
    for at in range(STEPS):
        whole.step(at)
    for at in range(4):
        first.step(at)
    state = copy.deepcopy([first.model.state_dict(), first.optimizer.state_dict(), first.pruner.state_dict()])
    for part, loaded in zip((second.model, second.optimizer, second.pruner), state, strict=True):
        part.load_state_dict(loaded)
    for at in range(4, STEPS):
        second.step(at)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [update.step for update in second.pruner.report] == [3, 6, 9]


def test_rigl_reads_the_dense_gradient_of_the_step():
    run = Run("rigl")
    for at in range(2):
        run.step(at)
    expected = copy.deepcopy(run.model)
    found = {}
    run.optimizer.register_step_pre_hook(lambda *_: found.update(run.pruner._gradients.gradients))
    run.step(2)
    torch.manual_seed(102)
    x, y = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    for part in range(2):
        nn.functional.mse_loss(expected(x[part]), y[part]).backward()
    for name in ("0.weight", "3.weight"):
        torch.testing.assert_close(found[name], expected.get_parameter(name).grad, rtol=1e-12, atol=1e-12)
        grown = run.pruner.masks[name]
        assert grown.any()
    assert not run.pruner._gradients.gradients


def test_finish_has_the_same_masks():
    run = Run("rigl")
    for at in range(STEPS):
        run.step(at)
    x = torch.randn(5, 16, dtype=torch.float64)
    served = run.pruner.finish(x)
    torch.testing.assert_close(served(x), run.model.eval()(x))
    weights = served.state_dict()
    for name, mask in run.pruner.masks.items():
        assert not weights[name][~mask].any()


def test_errors_change_nothing():
    dense = model()
    before = copy.deepcopy(dense.state_dict())
    other = torch.optim.SGD(model().parameters(), 0.1)
    with pytest.raises(SparsifyError, match=r"no optimizer trains 0\.weight"):
        sparsify.Pruner(dense, other, recipe("gmp"))
    own = torch.optim.SGD(dense.parameters(), 0.1)
    with pytest.raises(SparsifyError, match="without a recipe"):
        sparsify.Pruner(dense, own)
    with pytest.raises(SparsifyError, match="do not divide"):
        sparsify.Pruner(dense, own, {"name": "x", "sparsify": [
            {"targets": "param:*.weight", "prune": {"method": "magnitude", "pattern": "2:5"}}]})  # fmt: skip
    wrong = recipe("gmp")
    wrong["sparsify"][0]["targets"] = "param:nothing"
    with pytest.raises(SparsifyError, match="the rule weights matches no weight"):
        sparsify.Pruner(dense, own, wrong)
    pruner = sparsify.Pruner(dense, own, recipe("gmp"))
    state = pruner.state_dict()
    state["masks"] = {"0.weight": state["masks"]["0.weight"]}
    with pytest.raises(SparsifyError, match=r"masks of other weights: 3\.weight"):
        pruner.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["rigl", "set", "gmp"])
def test_masks_of_an_applied_model_reach_its_kernels(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).train()
    x = torch.randn(64, 256)
    applied = sparsify.apply(net, recipe(method), x)
    optimizer = torch.optim.AdamW(applied.parameters(), lr=1e-3)
    pruner = sparsify.Pruner(applied, optimizer)
    variants = len(applied.variants)
    for _ in range(STEPS):
        (applied(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()
    dense = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    for name, value in applied.named_parameters():
        found = value.detach().to_dense() if isinstance(value, sparsify.SparseTensor) else value.detach()
        dense.get_parameter(name).data.copy_(found)
        if name in pruner.masks:
            assert not found[~pruner.masks[name]].any()
    torch.testing.assert_close(applied(x), dense(x), rtol=1e-4, atol=1e-5)
    assert len(applied.variants) == variants
    assert [update.step for update in pruner.report] == [3, 6, 9]
    assert pruner.report[-1].actual == pytest.approx(0.75, abs=1e-5)
    torch.testing.assert_close(pruner.finish(x)(x), dense(x), rtol=1e-4, atol=1e-5)


def test_frozen_weights_have_no_schedule():
    net = model().eval()
    applied = sparsify.apply(net, recipe("rigl"), torch.randn(5, 16, dtype=torch.float64))
    with pytest.raises(SparsifyError, match="the weights of the rule weights do not train"):
        sparsify.Pruner(applied, torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1))


def rank_of_two(rank, file, results):
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    run = Run("rigl")
    for at in range(4):
        torch.manual_seed(100 * at + rank)
        x = torch.randn(5, 16, dtype=torch.float64)
        run.model(x).square().mean().backward()
        for parameter in run.model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.pruner.step()
    torch.save(run.pruner.masks, f"{results}{rank}.pt")
    leave_together(rank, Path(results).parent)


@pytest.mark.sampled(3)
def test_two_processes_have_the_same_masks(tmp_path):
    run_ranks(rank_of_two, (str(tmp_path / "group"), str(tmp_path / "masks")), 2)
    first, second = (torch.load(tmp_path / f"masks{rank}.pt") for rank in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


class Shared(nn.Module):
    """A weight that two kernels read, one of them behind an activation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(24, 24), nn.Linear(24, 8)

    def forward(self, x):
        return self.last(self.first(self.first(x).tanh()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_read_twice", [False, True])
def test_dense_gradients_of_kernels_are_those_of_the_dense_model(is_read_twice, monkeypatch):
    net = Shared().double().train() if is_read_twice else model().train()
    x = torch.randn(6, net.first.in_features if is_read_twice else 16, dtype=torch.float64)
    asked = recipe("rigl")
    asked["sparsify"][0]["schedule"] = {"end": 9, "every": 1}
    applied = sparsify.apply(net, asked, x)
    pruner = sparsify.Pruner(applied, torch.optim.SGD(applied.parameters(), 0.1))
    collected = []
    monkeypatch.setattr(pruner._gradients, "_collect", lambda *args: collected.append(args))
    twin = copy.deepcopy(net)
    for name, value in pruner._dense_weights().items():
        twin.get_parameter(name).data = value
    for _ in range(2):  # accumulated
        for one in (applied, twin):
            torch.manual_seed(3)
            one(x).square().sum().backward()
    pruner._gradients.settle()
    assert not collected
    assert sorted(pruner._gradients.gradients) == sorted(pruner.masks)
    for name, gradient in pruner._gradients.gradients.items():
        torch.testing.assert_close(gradient, twin.get_parameter(name).grad)
        assert gradient[~pruner.masks[name]].any()


@pytest.mark.parametrize("way", ["kernels", "masks", "reentrant"])
def test_passes_for_the_gradients_of_inputs_are_no_gradients_of_weights(way, monkeypatch):
    """`torch.autograd.grad(loss, x)` before, between and after the passes of training adds nothing."""
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).double().train()
    x = torch.randn(6, 16, dtype=torch.float64)
    asked = recipe("rigl")
    asked["sparsify"][0]["schedule"] = {"end": 9, "every": 1}
    found = sparsify.apply(net, asked, x) if way == "kernels" else copy.deepcopy(net)
    pruner = sparsify.Pruner(
        found, torch.optim.SGD(found.parameters(), 0.1), None if way == "kernels" else asked
    )
    if way == "kernels":
        monkeypatch.setattr(pruner._gradients, "_collect", None)
    twin = copy.deepcopy(net)
    for name, value in pruner._dense_weights().items():
        twin.get_parameter(name).data = value

    def loss(one, given):
        if way == "reentrant":
            result = torch.utils.checkpoint.checkpoint(one, given, use_reentrant=True)
        else:
            result = one(given)
        return result.square().sum()

    def probe():
        given = x.clone().requires_grad_()
        torch.autograd.grad(found(given).square().sum(), given)

    probe()
    pruner._gradients.settle()
    assert not pruner._gradients.gradients
    for _ in range(2):
        for one in (found, twin):
            loss(one, x.clone().requires_grad_()).backward()
        probe()
    pruner._gradients.settle()
    for name in pruner.masks:
        torch.testing.assert_close(pruner._gradients.gradients[name], twin.get_parameter(name).grad)
    part = "0.weight"  # another loss asks for one weight
    torch.autograd.grad(found(x).square().sum(), found.get_parameter(part))
    monkeypatch.undo()
    pruner._gradients.settle()
    torch.testing.assert_close(pruner._gradients.gradients[part], 1.5 * twin.get_parameter(part).grad)
    torch.testing.assert_close(pruner._gradients.gradients["2.weight"], twin.get_parameter("2.weight").grad)


def test_dense_gradients_of_weights_that_torch_reads_come_from_the_source_model(monkeypatch):
    net = model().train()
    x = torch.randn(6, 16, dtype=torch.float64)
    asked = recipe("rigl")
    asked["sparsify"][0]["schedule"] = {"end": 9, "every": 1}
    applied = sparsify.apply(net, asked, x)
    pruner = sparsify.Pruner(applied, torch.optim.SGD(applied.parameters(), 0.1))
    monkeypatch.setattr("sparsify.compiler.kernel.transforms.autograd._give_dense", lambda *_: None)
    twin = copy.deepcopy(net)
    for name, value in pruner._dense_weights().items():
        twin.get_parameter(name).data = value
    for one in (applied, twin):
        torch.manual_seed(3)
        one(x).square().sum().backward()
    pruner._gradients.settle()
    for name, gradient in pruner._gradients.gradients.items():
        torch.testing.assert_close(gradient, twin.get_parameter(name).grad)


def test_what_is_no_optimizer_and_no_state():
    model = nn.Linear(8, 8)
    rule = {"targets": "param:weight", "prune": {"method": "gmp", "sparsity": 0.75}, "schedule": {"end": 1}}
    asked = {"name": "x", "sparsify": [rule]}
    for given in (None, [], [3]):
        with pytest.raises(SparsifyError, match="as its optimizer"):
            sparsify.Pruner(model, given, asked)
    pruner = sparsify.Pruner(model, torch.optim.SGD(model.parameters(), 0.1), asked)
    for state in ({}, None, {"masks": 3}):
        with pytest.raises(SparsifyError, match="is no state of a Pruner"):
            pruner.load_state_dict(state)


@pytest.mark.parametrize(
    "part, value, text",
    [
        ("step", None, "has 'step', which is missing here"),
        ("seed", None, "has 'seed', which is missing here"),
        ("statistics", [], "has 'statistics', which is a list here"),
        ("report", [{"stage": 3}], "other entries"),
        ("masks", {"0.weight": 1, "3.weight": 1}, r"the mask of 0\.weight is int"),
        ("turn_masks", 7, "are not the bits of its masks"),
        ("turn_masks", {"0.weight": torch.zeros(1, dtype=torch.uint8)}, "are not the bits of its masks"),
    ],
)
def test_a_state_with_a_wrong_part_changes_nothing(part, value, text):
    run = Run("gmp")
    for at in range(4):
        run.step(at)
    state = Run("gmp").pruner.state_dict()
    if value is None:
        del state[part]
    else:
        state[part] = value
    weights, masks = copy.deepcopy(run.model.state_dict()), dict(run.pruner.masks)
    with pytest.raises(SparsifyError, match=text):
        run.pruner.load_state_dict(state)
    assert run.pruner.at == 4 and all(run.pruner.masks[name] is mask for name, mask in masks.items())
    assert all(torch.equal(value, weights[name]) for name, value in run.model.state_dict().items())


def test_single_entries_in_blocks_of_sparse_parameters_are_refused_at_once():
    rule = {
        "targets": ["param:0.weight"],
        "format": "bcsr(4, 4)",
        "prune": {"method": "gmp", "sparsity": 0.9},
        "schedule": {"kind": "cubic", "from": 0.0, "start": 0, "end": 40, "every": 4},
    }
    asked = {"schema": 1, "name": "blocks", "sparsify": [rule]}
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).train()
    sparse = sparsify.apply(copy.deepcopy(dense), asked, (torch.randn(4, 16),))
    optimizer = torch.optim.SGD(sparse.parameters(), 0.1)
    with pytest.raises(SparsifyError, match="prune whole blocks"):
        sparsify.Pruner(sparse, optimizer)
    rule["prune"]["pattern"] = {"block": [4, 4]}
    sparse = sparsify.apply(dense, asked, (torch.randn(4, 16),))
    sparsify.Pruner(sparse, torch.optim.SGD(sparse.parameters(), 0.1))


def test_a_format_that_cannot_hold_the_masks_is_refused_at_once():
    asked, dense = recipe("gmp"), model()
    asked["sparsify"][0]["format"] = "nm(2, 4)"
    optimizer = torch.optim.SGD(dense.parameters(), 0.1)
    with pytest.raises(SparsifyError, match="cannot hold the masks of this rule"):
        sparsify.Pruner(dense, optimizer, asked)
    asked["sparsify"][0]["prune"]["pattern"] = "2:4"
    del asked["sparsify"][0]["prune"]["sparsity"]
    sparsify.Pruner(dense, optimizer, asked)


@pytest.mark.parametrize(
    "key, value, text",
    [
        ("format", "crs", "no format is called 'crs'; did you mean csr"),
        ("dtype", "int8", r"`dtype: int8` stores param:0\.weight rounded.*train with `dtype: same`"),
        ("dtype", "bfloat16", r"`dtype: bfloat16` stores param:0\.weight rounded"),
    ],
)
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_recipe_that_finish_cannot_apply_is_refused_at_once(key, value, text, is_applied):
    asked, dense = recipe("gmp"), model()
    asked["sparsify"][0][key] = value
    before = copy.deepcopy(dense.state_dict())
    found = sparsify.apply(dense, asked) if is_applied else dense  # captured at the first call
    optimizer = torch.optim.SGD(found.parameters(), 0.1)
    with pytest.raises(SparsifyError, match=text):
        sparsify.Pruner(found, optimizer, None if is_applied else asked)
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())
