"""Weights that train dense at first become sparse parameters once kernels are faster, without another training."""

import copy

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify import SparseTensor, options
from sparsify.passes.module.check import require_gain

RECIPE = {
    "schema": 1,
    "name": "gmp",
    "sparsify": [
        {
            "id": "weights",
            "targets": "param:*.weight",
            "prune": {"method": "gmp", "sparsity": 0.9},
            "schedule": {"end": 10, "every": 2},
        }
    ],
}
X = torch.randn(24, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 32)).double().train()


class Run:
    """A training of a model under the recipe, in kernels where that is faster."""

    def __init__(self, *, is_applied: bool = True) -> None:
        with options.override(tune_seconds=0.001):
            self.model = sparsify.apply(model(), RECIPE, X) if is_applied else model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        recipe = None if is_applied else RECIPE
        self.pruner = sparsify.Pruner(self.model, self.optimizer, recipe)
        self.kinds: list[bool] = []

    def step(self) -> float:
        """The loss of a step."""
        self.optimizer.zero_grad()
        with options.override(tune_seconds=0.001):
            loss = (self.model(X) - X).square().mean()
        loss.backward()
        self.optimizer.step()
        self.pruner.step()
        self.kinds.append(all(isinstance(weight, SparseTensor) for weight in self.weights()))
        return loss.item()

    def weights(self) -> list[Tensor]:
        """The pruned ones."""
        return [p for name, p in self.model.named_parameters() if name.endswith("weight")]


@pytest.fixture
def turns(monkeypatch) -> list[float]:
    """The times of steps in kernels, of dense ones, one after the other; the last one again and again."""
    times = [1.5]
    monkeypatch.setattr(
        require_gain, "times_of", lambda *_: (1.0, times.pop(0) if len(times) > 1 else times[0])
    )
    return times


@pytest.mark.sampled(2)
def test_weights_turn_to_kernels_once_they_are_faster(turns) -> None:
    run, plain = Run(), Run(is_applied=False)
    held = run.weights()
    turns[:] = [1.1, 0.5]
    found, wanted = ([one.step() for _ in range(14)] for one in (run, plain))
    assert found == pytest.approx(wanted, rel=1e-10)
    # 44 % of the entries are gone after 2 steps; 71 % after 4, where kernels are slower; 84 % after 6.
    assert run.kinds == [False] * 6 + [True] * 8
    assert not any(new is old for new, old in zip(run.weights(), held, strict=True))
    state = run.optimizer.state[run.model[0].weight]
    assert isinstance(state["exp_avg"], SparseTensor)
    assert state["exp_avg"].nnz == run.model[0].weight.nnz == round(0.1 * 32 * 48)
    assert len(run.optimizer.state) == 4
    assert len(run.model.variants) == 1 and run.model.report.regions
    for name, weight in plain.model.named_parameters():
        other = run.model.get_parameter(name).detach()
        torch.testing.assert_close(
            other.to_dense() if isinstance(other, SparseTensor) else other, weight.detach()
        )
    served = run.pruner.finish(X)
    torch.testing.assert_close(served(X), run.model.eval()(X))


def test_weights_whose_kernels_are_slower_stay_as_they_are(turns) -> None:
    run = Run()
    held, variants = run.weights(), run.model.variants
    for _ in range(14):
        run.step()
    assert not any(run.kinds)
    assert all(new is old for new, old in zip(run.weights(), held, strict=True))
    assert all(new is old for new, old in zip(run.model.variants, variants, strict=True))
    assert run.pruner._turn_at < 0.25
    assert not run.weights()[0].detach()[~run.pruner.masks["0.weight"]].any()


def test_optimizers_of_whole_matrices_keep_dense_weights(turns) -> None:
    run = Run()
    run.optimizer = torch.optim.LBFGS(run.model.parameters(), lr=0.01)
    run.pruner = sparsify.Pruner(run.model, run.optimizer)
    turns[:] = [0.5]
    for _ in range(8):
        (run.model(X) - X).square().mean().backward()
        run.optimizer.step(lambda: 0.0)
        run.pruner.step()
    assert run.model._pending is None
    assert not any(isinstance(weight, SparseTensor) for weight in run.weights())


def test_a_resumed_run_goes_on_in_kernels(turns) -> None:
    run = Run()
    turns[:] = [0.5]
    for _ in range(6):
        run.step()
    assert run.kinds[-1]
    parts = (run.model, run.optimizer, run.pruner)
    states = [copy.deepcopy(part.state_dict()) for part in parts]
    wanted = [run.step() for _ in range(6)]
    turns[:] = [1.5]
    again = Run()
    for part, state in zip((again.model, again.optimizer, again.pruner), states, strict=True):
        part.load_state_dict(state)
    assert [again.step() for _ in range(6)] == wanted
    assert again.kinds == [True] * 6


@pytest.mark.parametrize("tune_seconds", [0.0, 0.001])
def test_a_share_decides_in_place_of_times(turns, tune_seconds) -> None:
    with options.override(tune_seconds=tune_seconds):
        run = Run()
        run.pruner = sparsify.Pruner(run.model, run.optimizer, sparse_below=0.2)
        for _ in range(14):
            run.step()
    assert run.kinds == [False] * 6 + [True] * 8  # 84 % of the entries are gone after 6 steps
    assert run.pruner.sparse_since == 7
    assert run.pruner.state_dict()["sparse_since"] == 7


@pytest.mark.parametrize("share", [1.5, -0.1, "half", True])
def test_a_share_that_is_none(share) -> None:
    run = Run(is_applied=False)
    with pytest.raises(
        sparsify.SparsifyError, match=r"sparse_below=.*the share of entries, 0.3 for 70 % zeros"
    ):
        sparsify.Pruner(run.model, run.optimizer, RECIPE, sparse_below=share)
