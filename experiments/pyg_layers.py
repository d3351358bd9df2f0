"""Layers of torch-geometric in usual configurations: captures, correctness on other graphs, and speed.

In: `python -m experiments.pyg_layers "GAT*" --nodes 20000 --edges 100000`. Out: a line for each configuration and mode,
`GATConv train  regions 2  captures 1  error 2e-07 (torch 2e-07)  gradients 5e-07 (4e-07)  3.1x`.

Errors are the largest differences from the model in float64, relative to its largest value, over three graphs of
different sizes. All timed calls share one graph.
"""

import argparse
import copy
import csv
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparsify import apply

FEATURES: Final = 32
CLASSES: Final = 16
RELATIONS: Final = 3
GRAPHS: Final = 25  # nodes of each graph of a batch
RECIPE: Final = {
    "schema": 1,
    "name": "layers",
    "sparsify": [{"targets": ["op:message_passing"], "format": "csr", "optional": True}],
}
DEGREES: Final = (1, 5, 20, 60, 100, 80, 40, 10, 3, 1)
TIMED: Final = 5

Inputs = dict[str, Any]
Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """A model, and the names of its inputs: keys of `inputs`."""

    make: Make
    names: tuple[str, ...]


@dataclass
class Found:
    """Result of a configuration in one mode: regions, captures, errors and speedup."""

    name: str
    mode: str
    regions: int = 0
    captures: int = 0
    error: float = 0.0
    torch_error: float = 0.0
    gradient_error: float = 0.0
    torch_gradient_error: float = 0.0
    speed: float = 0.0
    note: str = ""

    @property
    def is_right(self) -> bool:
        """Whether errors against float64 are at most about ten times the errors of torch."""
        limit = 10 * self.torch_error + 1e-5
        return self.error <= limit and self.gradient_error <= 10 * self.torch_gradient_error + 1e-3

    def __str__(self) -> str:
        return (
            f"{self.name:24s} {self.mode:5s}  regions {self.regions:2d}  captures {self.captures}  "
            f"error {self.error:.0e} (torch {self.torch_error:.0e})  "
            f"gradients {self.gradient_error:.0e} ({self.torch_gradient_error:.0e})  {self.speed:.2f}x"
            f"{'' if self.is_right else '  WRONG'}{'  ' + self.note if self.note else ''}"
        )


class Layers(nn.Module):
    """Layers in sequence with relu between consecutive layers; each layer reads all further arguments."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *rest: Any) -> Any:
        """Node features after the last layer."""
        for number, layer in enumerate(self.layers):
            x = layer(x.relu() if number else x, *rest)
        return x


class Using(nn.Module):
    """A function of modules and arguments."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *arguments: Any) -> Any:
        """Result of the function."""
        return self.function(self, *arguments)


def layers() -> Any:
    """Module of torch-geometric's layers."""
    import torch_geometric.nn

    return torch_geometric.nn


def perceptron(features: int, out: int) -> nn.Sequential:
    """Two linear layers with relu between."""
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, out))


def inputs(nodes: int, edges: int) -> Inputs:
    """All inputs of configurations for a graph with `nodes` nodes and `edges` edges; deterministic."""
    draws = torch.Generator().manual_seed(nodes)
    graphs = max(2, nodes // GRAPHS)

    def whole(limit: int, count: int) -> Tensor:
        return torch.randint(0, limit, (count,), generator=draws)

    batch = whole(graphs, nodes).sort().values
    batch[-1] = graphs - 1
    return {
        "x": 0.5 * torch.randn(nodes, FEATURES, generator=draws),
        "steps": 0.5 * torch.randn(3, nodes, FEATURES, generator=draws),
        "edge_index": torch.stack([whole(nodes, edges), whole(nodes, edges)]),
        "edge_weight": torch.rand(edges, generator=draws) + 0.1,
        "edge_attr": torch.randn(edges, 8, generator=draws),
        "edge_type": whole(RELATIONS, edges),
        "pseudo": torch.rand(edges, 3, generator=draws),
        "pos": torch.randn(nodes, 3, generator=draws),
        "hyperedges": torch.stack([whole(nodes, edges), whole(nodes // 4, edges)]),
        "batch": batch,
        "graphs": graphs,
    }


EDGES: Final = ("x", "edge_index")


def two(kind: str, *more: str, of: Sequence[str] = EDGES, width: int = FEATURES, **how: Any) -> Case:
    """Two layers of one kind; `width` is the number of input channels of the second layer."""

    def make() -> nn.Module:
        layer = getattr(layers(), kind)
        return Layers(layer(FEATURES, FEATURES, **how), layer(width, CLASSES, **how))

    return Case(make, (*of, *more))


def wrapped(kind: str, *more: str, parts: int = 1, extra: int = 0, **how: Any) -> Case:
    """Two layers of one kind around perceptrons."""

    def make() -> nn.Module:
        layer = getattr(layers(), kind)
        made = [layer(perceptron(parts * FEATURES + extra, out), **how) for out in (FEATURES, CLASSES)]
        return Layers(*made)

    return Case(make, (*EDGES, *more))


def using(function: Callable[..., Any], *names: str, **modules: Callable[[Any], nn.Module]) -> Case:
    """A function of modules; each module is made from torch-geometric's layers."""
    return Case(
        lambda: Using(function, **{name: make(layers()) for name, make in modules.items()}), names or EDGES
    )


def typed(make: Callable[[Any, Any], nn.Module]) -> Case:
    """A layer over nodes of two types and the edges between the types in both directions."""
    edges = [("u", "to", "v"), ("v", "from", "u")]

    def function(self: Any, x: Tensor, edge_index: Tensor) -> Any:
        found = self.layer(
            {"u": x, "v": 2 * x}, dict(zip(edges, (edge_index, edge_index.flip(0)), strict=True))
        )
        return found["u"], found["v"]

    return using(function, layer=lambda of: make(of, (["u", "v"], edges)))


def hetero(of: Any, metadata: Any) -> nn.Module:
    """A layer for each type of edges."""
    first, second = metadata[1]
    kinds = {first: of.SAGEConv((FEATURES, FEATURES), CLASSES)}
    kinds[second] = of.GATConv((FEATURES, FEATURES), CLASSES, add_self_loops=False)
    made: nn.Module = of.HeteroConv(kinds)
    return made


def kept_nodes(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """A layer over the nodes selected by a pooling layer, and the mean of each graph."""
    x, edge_index, _, batch, *_ = self.pool(self.before(x, edge_index), edge_index, None, batch)
    found: Tensor = layers().global_mean_pool(self.after(x, edge_index), batch)
    return found


def padded(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """Padded batch of node features, one row of nodes per graph."""
    from torch_geometric.utils import to_dense_batch

    rows, is_node = to_dense_batch(self.before(x, edge_index), batch)
    found: Tensor = self.head(rows) * is_node[..., None]
    return found


def weighed(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """Sum over the nodes of each graph, weighted by a softmax."""
    from torch_geometric.utils import softmax

    found: Tensor = layers().global_add_pool(
        softmax(self.score(self.before(x, edge_index)), batch) * x, batch
    )
    return found


def pooled(how: str, *count: str) -> Case:
    """A row for each graph of a batch; the number of graphs is computed from the batch, or given."""

    def function(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor, *size: int) -> Any:
        rows = self.before(x, edge_index).relu()
        return self.head(getattr(layers(), f"global_{how}_pool")(rows, batch, *size))

    return using(function, *EDGES, "batch", *count, before=gcn, head=lambda of: nn.Linear(FEATURES, 4))


def gcn(of: Any) -> nn.Module:
    """A GCN layer with equal numbers of input and output features."""
    made: nn.Module = of.GCNConv(FEATURES, FEATURES)
    return made


def by_hand(is_included: bool) -> Case:
    """Mean of neighbours by torch's operators."""

    def function(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = self.head(x)
        places = edge_index[1][:, None].expand(-1, CLASSES)
        found: Tensor = torch.ones_like(rows).scatter_reduce(
            0, places, rows[edge_index[0]], "mean", include_self=is_included
        )
        return found

    return using(function, head=lambda of: nn.Linear(FEATURES, CLASSES))


def principal() -> nn.Module:
    """Two PNA layers with four aggregations and three scalers each."""
    kinds = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    of = layers().PNAConv
    return Layers(*(of(FEATURES, out, *kinds, torch.tensor(DEGREES)) for out in (FEATURES, CLASSES)))


_HEADS: Final[dict[str, Any]] = {"heads": 4, "width": 4 * FEATURES}
_POOL: Final = (*EDGES, "batch")
_STEPS: Final = ("steps", "edge_index")
_FLAT: Final = ("x", "pos", "edge_index")
CASES: Final = {
    "GCNConv": two("GCNConv"),
    "GCNConv, weights": two("GCNConv", "edge_weight"),
    "GCNConv, steps": two("GCNConv", of=_STEPS),
    "GATConv": two("GATConv", **_HEADS),
    "GATConv, edges": two("GATConv", "edge_attr", edge_dim=8, **_HEADS),
    "GATv2Conv": two("GATv2Conv", **_HEADS),
    "TransformerConv": two("TransformerConv", **_HEADS),
    "TransformerConv, edges": two("TransformerConv", "edge_attr", edge_dim=8, **_HEADS),
    "SAGEConv": two("SAGEConv"),
    "SAGEConv, max": two("SAGEConv", aggr="max"),
    "SAGEConv, steps": two("SAGEConv", of=_STEPS),
    "GINConv": wrapped("GINConv"),
    "GINEConv": wrapped("GINEConv", "edge_attr", edge_dim=8),
    "PNAConv": Case(principal, EDGES),
    "APPNP": using(
        lambda self, x, e: self.layer(self.head(x), e),
        head=lambda of: nn.Linear(FEATURES, CLASSES), layer=lambda of: of.APPNP(5, 0.1),
    ),
    "SGConv": two("SGConv", K=2),
    "SSGConv": two("SSGConv", alpha=0.1, K=2),
    "ChebConv": two("ChebConv", K=3),
    "ChebConv, steps": two("ChebConv", of=_STEPS, K=3),
    "TAGConv": two("TAGConv"),
    "MixHopConv": two("MixHopConv", width=3 * FEATURES),
    "ARMAConv": two("ARMAConv", num_stacks=2, num_layers=2),
    "RGCNConv": two("RGCNConv", "edge_type", num_relations=RELATIONS),
    "RGCNConv, bases": two("RGCNConv", "edge_type", num_relations=RELATIONS, num_bases=2),
    "FastRGCNConv": two("FastRGCNConv", "edge_type", num_relations=RELATIONS),
    "GCN2Conv": using(lambda self, x, e: self.layer(x, x, e), layer=lambda of: of.GCN2Conv(FEATURES, 0.1, 0.5, 1)),
    "FAConv": using(lambda self, x, e: self.layer(x, x, e), layer=lambda of: of.FAConv(FEATURES)),
    "AGNNConv": using(lambda self, x, e: self.layer(x, e), layer=lambda of: of.AGNNConv()),
    "GatedGraphConv": using(lambda self, x, e: self.layer(x, e), layer=lambda of: of.GatedGraphConv(FEATURES, 2)),
    "EdgeConv": wrapped("EdgeConv", parts=2),
    "ResGatedGraphConv": two("ResGatedGraphConv"),
    "CGConv": using(lambda self, x, e: self.layer(x, e), layer=lambda of: of.CGConv(FEATURES)),
    "FiLMConv": two("FiLMConv"),
    "LEConv": two("LEConv"),
    "MFConv": two("MFConv", max_degree=3),
    "ClusterGCNConv": two("ClusterGCNConv"),
    "EGConv": two("EGConv", num_heads=4),
    "FeaStConv": two("FeaStConv", heads=2),
    "GeneralConv": two("GeneralConv", attention=True),
    "AntiSymmetricConv": using(lambda self, x, e: self.layer(x, e), layer=lambda of: of.AntiSymmetricConv(FEATURES)),
    "DirGNNConv": using(lambda self, x, e: self.layer(x, e), layer=lambda of: of.DirGNNConv(of.SAGEConv(FEATURES, 16))),
    "PDNConv": two("PDNConv", "edge_attr", edge_dim=8, hidden_channels=8),
    "GENConv": two("GENConv", learn_t=True, aggr="softmax"),
    "GENConv, powers": two("GENConv", learn_p=True, aggr="powermean"),
    "PointTransformerConv": using(
        lambda self, x, p, e: self.layer(x, p, e), *_FLAT, layer=lambda of: of.PointTransformerConv(FEATURES, CLASSES)
    ),
    "PointNetConv": using(
        lambda self, x, p, e: self.layer(x, p, e),
        *_FLAT, layer=lambda of: of.PointNetConv(perceptron(FEATURES + 3, CLASSES)),
    ),
    "NNConv": using(
        lambda self, x, e, f: self.layer(x, e, f),
        *EDGES, "edge_attr", layer=lambda of: of.NNConv(FEATURES, 4, nn.Linear(8, FEATURES * 4)),
    ),
    "GMMConv": two("GMMConv", "pseudo", dim=3, kernel_size=2),
    "SuperGATConv": two("SuperGATConv", **_HEADS),
    "HeteroConv": typed(hetero),
    "HANConv": typed(lambda of, metadata: of.HANConv(FEATURES, CLASSES, metadata, heads=2)),
    "HGTConv": typed(lambda of, metadata: of.HGTConv(FEATURES, CLASSES, metadata, heads=2)),
    "HypergraphConv": two("HypergraphConv", of=("x", "hyperedges")),
    "GPSConv": using(
        lambda self, x, e, b: self.layer(x, e, b),
        *_POOL, layer=lambda of: of.GPSConv(FEATURES, of.SAGEConv(FEATURES, FEATURES), heads=4),
    ),
    "GraphNorm": using(
        lambda self, x, e, b: self.norm(self.before(x, e), b),
        *_POOL, before=gcn, norm=lambda of: of.GraphNorm(FEATURES),
    ),
    "TopKPooling": using(kept_nodes, *_POOL, before=gcn, pool=lambda of: of.TopKPooling(FEATURES), after=gcn),
    "SAGPooling": using(kept_nodes, *_POOL, before=gcn, pool=lambda of: of.SAGPooling(FEATURES), after=gcn),
    "GraphUNet": using(lambda self, *a: self.net(*a), *_POOL, net=lambda of: of.GraphUNet(FEATURES, FEATURES, 16, 2)),
    "SortAggregation": using(
        lambda self, x, e, b: self.pool(self.before(x, e), b),
        *_POOL, before=gcn, pool=lambda of: of.SortAggregation(10),
    ),
    "LGConv": using(lambda self, x, e: self.layer(self.layer(x, e), e), layer=lambda of: of.LGConv()),
    "to_dense_batch": using(padded, *_POOL, before=gcn, head=lambda of: nn.Linear(FEATURES, CLASSES)),
    "softmax by graph": using(weighed, *_POOL, before=gcn, score=lambda of: nn.Linear(FEATURES, 1)),
    **{f"global_{how}_pool": pooled(how) for how in ("add", "mean", "max")},
    **{f"global_{how}_pool, counted": pooled(how, "graphs") for how in ("add", "mean", "max")},
    "mean by scatter_reduce": by_hand(is_included=False),
    "mean with itself": by_hand(is_included=True),
}  # fmt: skip


def run(name: str, mode: str, nodes: int, edges: int, *, is_timed: bool = True) -> Found:
    """Applies, checks and times a configuration.

    Args:
        name: name of the configuration.
        mode: `eval` without gradients, or `train`, without dropout.
        nodes, edges: size of the example's graph; later graphs are smaller and larger.
        is_timed: whether to time the configuration, too.
    """
    case, found = CASES[name], Found(name, mode)
    torch.manual_seed(0)
    model = case.make().train(mode == "train")
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    double = copy.deepcopy(model).double()
    sizes = [(nodes, edges), (3 * nodes // 4, 4 * edges // 5), (5 * nodes // 4, 3 * edges // 2)]
    given = [[inputs(*size)[part] for part in case.names] for size in sizes]
    with torch.no_grad() if mode == "eval" else nullcontext(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sparse = apply(model, RECIPE, tuple(given[0]))
        for arguments in given:
            note_errors(found, sparse, model, double, arguments)
        if is_timed:
            found.speed = speed(sparse, model, given[0], mode)
    found.regions, found.captures = len(sparse.report.regions), len(sparse.variants)
    found.note = "; ".join(dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught))
    return found


def note_errors(
    found: Found, sparse: nn.Module, model: nn.Module, double: nn.Module, arguments: list[Any]
) -> None:
    """Updates the errors of results and gradients against float64 with one call."""
    precise = [part.double() if is_real(part) else part for part in arguments]
    results = [
        tensors_of(call(*given))
        for call, given in ((sparse, arguments), (model, arguments), (double, precise))
    ]
    ours, usual, true = results
    found.error = max(found.error, *map(error, ours, true))
    found.torch_error = max(found.torch_error, *map(error, usual, true))
    if found.mode == "eval":
        return
    owners = (model, model, double)
    ours, usual, true = (gradients(result, owner) for result, owner in zip(results, owners, strict=True))
    found.gradient_error = max([found.gradient_error, *map(error, ours, true)])
    found.torch_gradient_error = max([found.torch_gradient_error, *map(error, usual, true)])


def is_real(value: Any) -> bool:
    """Whether a value is a floating point tensor."""
    return isinstance(value, Tensor) and value.is_floating_point()


def tensors_of(result: Any) -> list[Tensor]:
    """Tensors of a result."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def gradients(results: Sequence[Tensor], owner: nn.Module) -> list[Tensor]:
    """Parameter gradients of a weighted sum of results; the weights of a result grow from 0 to 1."""
    parameters = list(owner.parameters())
    terms = [
        (part * torch.linspace(0, 1, part.numel(), dtype=part.dtype).view(part.shape)).sum()
        for part in results if part.requires_grad
    ]  # fmt: skip
    if not parameters or not terms:
        return []
    found = torch.autograd.grad(terms, parameters, allow_unused=True)
    return [
        torch.zeros_like(own) if part is None else part for own, part in zip(parameters, found, strict=True)
    ]


def error(found: Tensor, true: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    true = true.detach()
    return (
        float((found.detach().double() - true).abs().max() / (true.abs().max() + 1e-6))
        if true.numel()
        else 0.0
    )


def speed(sparse: nn.Module, model: nn.Module, arguments: list[Any], mode: str) -> float:
    """Speedup of a sparse model over the dense model: ratio of median processor times, measured in turns."""

    def seconds(call: nn.Module) -> float:
        start = time.process_time()
        results = tensors_of(call(*arguments))
        if mode == "train":
            gradients(results, model)
        return time.process_time() - start

    seconds(sparse), seconds(model)
    pairs = [(seconds(model), seconds(sparse)) for _ in range(TIMED)]
    plain, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    return float(plain / ours)


def main(arguments: Sequence[str] | None = None) -> Iterator[Found]:
    """Runs the configurations selected on the command line."""
    parser = argparse.ArgumentParser(prog="experiments.pyg_layers", description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--edges", type=int, default=10_000)
    parser.add_argument("--csv", help="a file for the table")
    asked = parser.parse_args(arguments)
    rows = []
    for name in CASES:
        for mode in ("eval", "train") if any(fnmatch(name, pattern) for pattern in asked.names) else ():
            rows.append(run(name, mode, asked.nodes, asked.edges))
            yield rows[-1]
    if asked.csv:
        with Path(asked.csv).open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Found)])
            writer.writeheader()
            writer.writerows(map(asdict, rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in main():
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
