"""Operators over rows of several processes: what has no rule is refused, in one process as in many."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sparsify
from sparsify.errors import (
    CaptureError,
    DataError,
    ProcessError,
    RecipeError,
    SparsifyError,
    UnsupportedOperatorError,
)
from sparsify.scale import processes
from sparsify.scale.halo import HaloPlan, halo_exchange, halo_reduce, register
from sparsify.scale.partition import partition
from sparsify.scale.placement import Placement
from sparsify.scale.shard import ShardedModule

from .graph_models import ByHand, write_graph

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")


class Step(nn.Module):
    """A function of features, sources and targets as a model."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.function(x, edge_index[0], edge_index[1])


class Scaled(nn.Module):
    """A model with an argument that all processes have."""

    def forward(self, x: Tensor, edge_index: Tensor, scale: Tensor) -> Tensor:
        return x * scale


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in one part."""
    place = tmp_path_factory.mktemp("graph")
    write_graph(place / "graph.pt")
    partition(place / "graph.pt", 1, "range", place / "parts")
    return place


def sharded(function: Callable[[Tensor, Tensor, Tensor], Tensor], folder: Path) -> ShardedModule:
    return sparsify.shard(Step(function), graph=folder / "parts")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x, s, t: x.cumsum(0), "takes some rows by their local numbers"),
        (lambda x, s, t: x[:5], "takes some rows by their local numbers"),
        (lambda x, s, t: x[3], "selects a row by its local number"),
        (lambda x, s, t: x @ x.T, "multiplies rows of all processes"),
        (lambda x, s, t: x[: len(x)], "fixes a number of rows"),
        (lambda x, s, t: x.prod(0), "in another way than by sums"),
        (lambda x, s, t: x.sort(0).values, "has no rule"),
        (lambda x, s, t: x[s.flip(0)], "takes some rows"),
        (lambda x, s, t: x + torch.arange(x.shape[0]).view(-1, 1), "reads numbers of nodes as values"),
        (lambda x, s, t: torch.where(s == 3, 1.0, 0.0), "reads numbers of nodes as values"),
        (lambda x, s, t: x * torch.rand(8), "draws numbers"),
        (lambda x, s, t: torch.rand_like(x), "draws numbers"),
        (lambda x, s, t: torch.eye(x.shape[0]), "has no rule"),
        (lambda x, s, t: x.reshape(-1), "joins or splits the mode of the rows"),
        (lambda x, s, t: torch.full((3,), float(1)) * s.shape[0], "computes with a number of local rows"),
        (lambda x, s, t: x.new_zeros(x.shape[0], 8).index_reduce(0, s, x[t], "amax"), "reduces at sources"),
        (lambda x, s, t: torch.cat([x[s], x])[: s.shape[0]], "takes some|with a number of local"),
        (lambda x, s, t: torch.ones(x.shape[0] + 1).sum() * x, "computes with a number of local rows"),
        (lambda x, s, t: x * torch.ones(1).expand(x.shape[0] + 3).sum(), "computes with a number of local rows"),
        (lambda x, s, t: x.T.roll(1), "takes some rows by their local numbers"),
        (lambda x, s, t: torch.cat([x[s], x]) + torch.cat([x, x[s]]), "lie in different ways"),
        (lambda x, s, t: nn.functional.batch_norm(x[x.sum(1) > 0], None, None, training=True), "number of local"),
    ],
)  # fmt: skip
def test_refusals(function: Callable[[Tensor, Tensor, Tensor], Tensor], message: str, folder: Path) -> None:
    part = sharded(function, folder)
    with pytest.raises((UnsupportedOperatorError, CaptureError), match=message):
        part(part.data.x, part.data.edge_index)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, s, t: torch.stack([x, x * 2], 1).permute(1, 0, 2).transpose(0, 1).flatten(1),
        lambda x, s, t: x.new_zeros(x.shape[0], 8).index_add_(0, t, x[s])[:, 2:5].std(1, keepdim=True),
        lambda x, s, t: x.T @ x,
        lambda x, s, t: torch.matmul(x, torch.ones(3, 8, 2, dtype=x.dtype)).sum(1),
        lambda x, s, t: x.split(4, 1)[1].mean(),
        lambda x, s, t: x[(x > 0).any(1)].sum(0),
        lambda x, s, t: x.view(-1, 2, 4).transpose(0, 1)[:, s].logsumexp(2),
        lambda x, s, t: x.roll(1, 1) + torch.ones(x.shape[0] + s.shape[0]).sum() * 0,
        lambda x, s, t: x[torch.stack([s, t]).repeat(2, 1)[3]] - x[torch.stack([s, t]).repeat(2, 1)[2]],
        lambda x, s, t: nn.functional.embedding((x[:, 0] > 0).long(), torch.ones(2, 3)),
    ],
)
def test_supported(function: Callable[[Tensor, Tensor, Tensor], Tensor], folder: Path) -> None:
    part = sharded(function, folder)
    given = part.data.x, part.data.edge_index
    torch.testing.assert_close(part(*given), part.source(*given))


def test_module_is_the_model(folder: Path) -> None:
    model = ByHand().double()
    part = sparsify.shard(model, graph=folder / "parts")
    assert part.state_dict().keys() == model.state_dict().keys()
    assert next(part.parameters()) is next(model.parameters())
    part.eval()
    assert not model.norm.training
    data = part.data
    with pytest.raises(DataError, match="no sparse adjacency"):
        part(data.x, torch.eye(3).to_sparse(), data.edge_weight)
    rule = {"targets": ["param:into.weight"], "prune": {"method": "magnitude", "sparsity": 0.5}}
    with pytest.raises(RecipeError, match=r"shard: rule param:into.weight of mine makes zeros by itself"):
        sparsify.shard(model, {"schema": 1, "name": "mine", "sparsify": [rule]}, graph=folder / "parts")


def test_kernels_run_between_exchanges(folder: Path) -> None:
    model = ByHand().double()
    part = sparsify.shard(model, "gcn", graph=folder / "parts", strict=True)
    data = part.data
    out = part(data.x, data.edge_index, data.edge_weight)
    torch.testing.assert_close(out, model(data.x, data.edge_index, data.edge_weight))
    assert len(part.report.regions) == 2


def test_exchanges_of_kernels_are_those_of_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ByHand().double()
    told = iter([["halo_exchange"], []])
    monkeypatch.setattr("sparsify.scale.kernels.made_exchanges", lambda module, tensors: next(told))
    part = sparsify.shard(model, "gcn", graph=folder / "parts")
    data = part.data
    with pytest.warns(RuntimeWarning, match="torch's operators run"):
        out = part(data.x, data.edge_index, data.edge_weight)
    torch.testing.assert_close(out, model(data.x, data.edge_index, data.edge_weight))


class Dropped(nn.Module):
    """Dropout of messages, along edges of which some are left out and loops added."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        kept = edge_index[:, edge_index[0] != edge_index[1]]
        loops = torch.arange(x.shape[0]).view(1, -1).repeat(2, 1)
        source, target = torch.cat([kept, loops], 1)
        return torch.zeros_like(x).index_add_(0, target, torch.dropout(x[source], 0.5, self.training))


def test_dropout_along_edges_does_not_depend_on_parts(folder: Path) -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        part = sparsify.shard(Dropped(), graph=folder / "parts")
        x = part.data.x.clone().requires_grad_()
        out = part(x, part.data.edge_index)
        out.sum().backward()
        found.append((out, x.grad))
    torch.testing.assert_close(found[0], found[1])
    plain = Dropped().eval()(part.data.x, part.data.edge_index)
    assert not torch.allclose(found[0][0], plain)
    # The gradient has the zeros of the forward pass: messages are linear in x.
    torch.testing.assert_close((found[0][1] * part.data.x).sum(), found[0][0].sum())


class Named(nn.Module):
    """A model with a module named as an attribute of `ShardedModule`, a buffer and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.part = nn.Linear(8, 4).double(), nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(1, dtype=torch.float64))
        self.heads = 3

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.part(self.data(x)) + self.shift


def test_model_that_changes(folder: Path) -> None:
    model = Named()
    part = sparsify.shard(model, graph=folder / "parts")
    given = part.data.x, part.data.edge_index
    assert part.heads == 3 and len(part.part.rows) == len(given[0])
    with pytest.raises(AttributeError, match="nothing"):
        part.nothing  # noqa: B018
    assert not torch.equal(part(*given), part(*given))
    model.part.eval()  # one module's mode alone
    torch.testing.assert_close(part(*given), model(*given))
    model.data.weight = nn.Parameter(torch.ones(4, 8, dtype=torch.float64))
    torch.testing.assert_close(part(*given), model(*given))
    part(*given).sum().backward()
    assert model.data.weight.grad is not None
    model.shift = torch.full((1,), 5.0, dtype=torch.float64)
    torch.testing.assert_close(part(*given), model(*given))
    model.shift = torch.full((4,), 6.0, dtype=torch.float64)  # another shape: captured again
    torch.testing.assert_close(part(*given), model(*given))
    model.load_state_dict({name: tensor * 2 for name, tensor in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(part(*given), model(*given))


def test_new_contents_of_what_all_processes_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = sparsify.shard(Scaled(), graph=folder / "parts")
    x, edge_index = part.data.x, part.data.edge_index
    for scale in (2.0, 3.0):
        torch.testing.assert_close(part(x, edge_index, torch.tensor([scale])), x * scale)
    monkeypatch.setattr(processes, "agree", lambda what, mine: [mine, {**mine, "scale": 0}])
    with pytest.raises(DataError, match="scale is not the same in all processes"):
        part(x, edge_index, torch.tensor([4.0]))


def test_fixed_number_of_rows(folder: Path) -> None:
    part = sharded(lambda x, s, t: x + torch.ones(60, 1), folder)
    with pytest.raises((CaptureError, UnsupportedOperatorError)):
        part(part.data.x, part.data.edge_index)
    part = sharded(lambda x, s, t: x * (2 if x.shape[0] > 70 else 3), folder)
    with pytest.raises(CaptureError, match="computes differently for graphs of this size"):
        part(part.data.x, part.data.edge_index)


@pytest.mark.sampled(2)
def test_operators_and_their_adjoints(folder: Path) -> None:
    assert sharded(lambda x, s, t: x, folder)
    plan = register(HaloPlan(3, 0, torch.empty(0, dtype=torch.int64), (0,), (0,)))
    x = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    for operator in (halo_exchange, halo_reduce, torch.ops.sparsify.all_reduce_sum):
        assert torch.autograd.gradcheck(lambda value, op=operator: op(value, plan), (x,))
        torch.library.opcheck(operator, (x, plan))


def test_processes_that_cannot_meet(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no readable meta.json"):
        sparsify.shard(ByHand(), graph=tmp_path)
    partition(folder / "graph.pt", 2, "range", tmp_path / "two")
    with pytest.raises(ProcessError, match="has 2 parts, and 1 process runs; torchrun --nproc-per-node 2"):
        sparsify.shard(ByHand(), graph=tmp_path / "two")
    with pytest.raises(SparsifyError, match="overlap="):
        sparsify.shard(ByHand().eval(), graph=tmp_path / "two", memory="1GB", overlap=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ProcessError, match=f"port {port} is in use; torchrun --master-port"):
            sparsify.shard(ByHand(), graph=folder / "parts")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(
            ProcessError, match=r"process 1 did not meet the others at 127.0.0.1.*GLOO_SOCKET_IFNAME"
        ):
            sparsify.shard(ByHand(), graph=tmp_path / "two", timeout_s=1)


def test_placement_as_text() -> None:
    assert (
        str(Placement("edges", 1, ("column", "own")))
        == "edges along mode 1, local numbers of column and own rows"
    )
    assert str(Placement()) == "all of it in each process"
