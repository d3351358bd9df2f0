"""Models and graphs of the tests, and their training in one process or several."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim

NODES = 60
STEPS = 10


class TwoLayers(nn.Module):
    """Two layers of torch-geometric."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(8, 16), layer(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor, *weights: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x, edge_index, *weights)), edge_index, *weights)


class ByHand(nn.Module):
    """Messages by `index_add_` in both directions, a mean over all nodes, edge data, a norm and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        source, target = edge_index
        message = self.into(x)[source] * edge_weight.view(-1, 1)
        summed = torch.zeros(x.shape[0], 4, dtype=x.dtype).index_add_(0, target, message)
        back = torch.zeros(x.shape[0], 4, dtype=x.dtype).index_add_(0, source, summed[target])
        return self.norm(summed).softmax(-1) + torch.tanh(back - back.mean(0)) * summed.sum(0) / x.shape[0]


class Normalised(nn.Module):
    """A batch norm in training, and a softmax, maxima, minima and variances over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(8, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        x = self.norm(self.into(x))
        messages = torch.nn.functional.batch_norm(x[source] * x[target], None, None, training=True)
        summed = torch.zeros_like(x).index_add_(0, target, messages / 10)
        spread = summed.var(0) + summed.std(0, keepdim=True, unbiased=False)
        weight = self.last(summed).softmax(0) + summed.log_softmax(0) / 60 + summed.logsumexp(0)
        return weight * spread + summed.amax(0) - summed.amin(0, keepdim=True) + x


class Pooled(nn.Module):
    """A readout over all nodes, and one by clusters whose numbers are a feature."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layer, self.last = layer(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor, cluster: Tensor) -> Tensor:
        hidden = torch.relu(self.layer(x, edge_index))
        pooled = torch.zeros(3, 16, dtype=x.dtype).index_add_(0, cluster, hidden)
        return self.last(pooled) + self.last(hidden.mean(0)) + hidden.sum() / x.shape[0]


def model(name: str, dtype: torch.dtype) -> nn.Module:
    """A model by name, with equal parameters in every process."""
    torch.manual_seed(0)
    if name == "hand":  # needs no other library
        return ByHand().to(dtype)
    if name == "norm":
        return Normalised().to(dtype)
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    made = {
        "gcn": lambda: TwoLayers(GCNConv),
        "weighted": lambda: TwoLayers(GCNConv),
        "sage": lambda: TwoLayers(SAGEConv),
        "gin": lambda: TwoLayers(
            lambda a, b: GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU()), train_eps=True)
        ),
        "gat": lambda: TwoLayers(lambda a, b: GATConv(a, b // 2, heads=2)),
        "pooled": lambda: Pooled(SAGEConv),
    }
    return made[name]().to(dtype)


NAMES = ("gcn", "weighted", "sage", "gin", "gat", "hand", "norm", "pooled")


def arguments(name: str, data: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What a model is called with."""
    more = {"weighted": ("edge_weight",), "hand": ("edge_weight",), "pooled": ("cluster",)}.get(name, ())
    found = [getattr(data, key) for key in ("x", "edge_index", *more)]
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in found)


def write_graph(path: Path) -> dict[str, Tensor]:
    """A random graph with self loops, equal edges, and nodes without edges."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, NODES - 5, (2, 200), generator=generator)
    edge_index = torch.cat([edges, edges[:, :3], torch.tensor([[3, 9], [3, 9]])], 1)
    data = {
        "edge_index": edge_index,
        "x": torch.randn(NODES, 8, generator=generator, dtype=torch.float64),
        "y": torch.randn(NODES, 4, generator=generator, dtype=torch.float64),
        "cluster": torch.randint(0, 3, (NODES,), generator=generator),
        "train_mask": torch.rand(NODES, generator=generator) < 0.5,
        "edge_weight": torch.rand(edge_index.shape[1], generator=generator, dtype=torch.float64),
    }
    torch.save(data, path)
    return data


def train(
    net: nn.Module, given: tuple[Tensor, ...], loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Outputs before, gradients of the first step, parameters after ten steps of AdamW."""
    optimizer = optim.AdamW(net.parameters(), 0.01)
    first = net(*given).detach()
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(net(*given)).backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        optimizer.step()
    after = {name: p.detach().clone() for name, p in (*net.named_parameters(), *net.named_buffers())}
    return first, gradients, after


class Dropped(nn.Module):
    """Messages with dropout of rows and along edges."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 4).double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        x = torch.dropout(self.into(x), 0.3, self.training)
        return torch.zeros_like(x).index_add_(0, target, torch.dropout(x[source], 0.3, self.training))


def steps(part: Any, optimizer: optim.Optimizer, count: int) -> Tensor:
    """The outputs of the last of some steps of AdamW, in the order of the whole graph."""
    for _ in range(count):
        optimizer.zero_grad()
        out = part(part.data.x, part.data.edge_index)
        (out - part.data.y).square().sum().backward()
        optimizer.step()
    found: Tensor = part.whole(out)
    return found


def losses(name: str, data: Any, count: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The loss of a model: squares at the nodes of a mask, over their number in the whole graph."""
    if name == "pooled":
        return lambda out: out.square().sum()
    mask, wanted = data.train_mask, data.y.to(dtype)
    return lambda out: (out[mask] - wanted[mask]).square().sum() / count
