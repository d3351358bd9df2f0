"""Runs over several processes that torchrun starts."""

import json

import pytest
import torch.distributed as dist

from sparsify import recipe as recipes
from sparsify.errors import SparsifyError
from sparsify.runner.request import resolve
from sparsify.runner.sharded import Processes, ShardedResult, run_sharded, written


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
def test_processes_have_the_losses_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.setenv("SPARSIFY_TUNE_SECONDS", "0")
    result = run_sharded(resolve("gcn", overrides={"epochs": "1", "hidden": "8"}), 2)
    assert result.difference < 1e-5 and result.exit_status == 0
    assert (result.one.count, result.several.count) == (1, 2)
    assert result.several.regions == 2 and result.several.sent_bytes > 0
    assert "2 processes, 1 thread" in str(result)
    assert result.to_dict()["several"]["losses"] == result.several.losses


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_requests_are_plain_data(model: str) -> None:
    """A process reads the recipe and the arguments that the request has."""
    request = resolve(model, overrides={"epochs": "3", "hidden": "8"}, seed=4)
    found = json.loads(json.dumps(written(request, 7)))
    assert recipes.load(found["recipe"]).model_dump() == request.recipe.model_dump()
    assert (found["model"], found["arguments"]) == (model, request.arguments)
    assert (found["training"], found["seed"], found["classes"]) == ({"epochs": 3}, 4, 7)


@pytest.mark.parametrize(
    "model, count, message",
    [
        ("mlp", 2, "--nproc with mlp, which takes no edge_index; gcn, sage"),
        ("gcn-matmul", 2, "--nproc with gcn-matmul, which takes no edge_index"),
        ("gcn", 1, "--nproc 1; 2 or more"),
    ],
)
def test_refusals(model: str, count: int, message: str) -> None:
    with pytest.raises(SparsifyError, match=message):
        run_sharded(resolve(model), count)


def test_other_losses_are_a_failure() -> None:
    one = Processes(1, 2, 4.0, 4.0, 0, 1 << 20, 2, [1.0, 0.5], 0.9)
    other = Processes(2, 1, 2.0, 2.0, 8, 1 << 20, 2, [1.0, 0.4], 0.9)
    result = ShardedResult(model="gcn", recipe="gcn", graph="cora", one=one, several=other)
    assert result.exit_status == 1
    assert "2.00x; losses of 2 steps differ by 2.0e-01" in str(result)
    other.losses[1] = float("nan")
    assert result.exit_status == 1
