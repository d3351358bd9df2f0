"""Graph models with a new graph in every call: speedup of the sparse model over torch-geometric.

In: `python -m experiments.new_graphs --works small molecules --models gcn sage`. Out: a line for each work and model,
`1,600 nodes, 6,000 edges  gcn  inference 2.80x  step 1.45x  error 3e-07  captures 1, 1`.

Every call has a graph of another size, within a tenth of the nominal size, so that cached data of a graph never helps.
Both models run in turns in alternating order; ratios are of medians. Captures are those of inference and training.
"""

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify import apply
from sparsify.passes.module.sparse_module import SparseModule

FEATURES: Final = 64
CLASSES: Final = 8
GRAPHS: Final = 32
WARM: Final = 8
NAMES: Final = ("gcn", "sage", "gin", "gat")
RECIPE: Final = {
    "schema": 1,
    "name": "graphs",
    "sparsify": [{"targets": ["op:message_passing"], "format": "csr"}],
}

Call = tuple[Tensor, ...]


@dataclass(frozen=True)
class Work:
    """Graphs of one size.

    Attributes:
        nodes, edges: nominal size of a graph; actual sizes are within a tenth.
        are_molecules: whether a graph is a batch of many small graphs, each summed over its nodes.
        turns: number of timed calls.
    """

    nodes: int
    edges: int
    are_molecules: bool = False
    turns: int = 40

    def __str__(self) -> str:
        kind = f"{GRAPHS} molecules, " if self.are_molecules else ""
        return f"{kind}{self.nodes:,} nodes, {self.edges:,} edges"

    def call(self, seed: int) -> Call:
        """Features, edges and, for molecules, the graph of each node, of a random graph by seed."""
        drawn = torch.Generator().manual_seed(seed)
        grown = 0.9 + 0.2 * float(torch.rand((), generator=drawn))
        nodes, edges = round(self.nodes * grown), round(self.edges * grown)
        x = torch.randn(nodes, FEATURES, generator=drawn)
        if not self.are_molecules:
            return x, torch.randint(nodes, (2, edges), generator=drawn)
        owner = torch.arange(nodes) * GRAPHS // nodes
        starts = torch.searchsorted(owner, torch.arange(GRAPHS))
        sizes = torch.bincount(owner, minlength=GRAPHS)
        source = torch.randint(nodes, (edges,), generator=drawn)
        within = torch.rand(edges, generator=drawn)
        target = starts[owner[source]] + (within * sizes[owner[source]]).long()
        return x, torch.stack([source, target]), owner


WORKS: Final = {
    "small": Work(1_600, 6_000),
    "molecules": Work(800, 1_700, are_molecules=True),
    "sampled": Work(10_000, 11_000),
    "medium": Work(20_000, 200_000, turns=15),
    "large": Work(50_000, 870_000, turns=7),
}


class Pooled(nn.Module):
    """A graph model followed by a classifier of the sum over the nodes of each graph."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        from torch_geometric.nn import global_add_pool

        self.body, self.pool, self.last = body, global_add_pool, nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Class scores of graphs, [graphs, classes]."""
        found: Tensor = self.last(self.pool(self.body(x, edge_index), batch))
        return found


def model_of(name: str, work: Work) -> nn.Module:
    """Two-layer model of torch-geometric, pooled for molecules."""
    from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

    made = {"gcn": GCN, "sage": GraphSAGE, "gin": GIN, "gat": GAT}[name]
    torch.manual_seed(0)
    body = made(FEATURES, FEATURES, 2, CLASSES)
    return Pooled(body) if work.are_molecules else body


def step_of(model: nn.Module) -> Callable[[Call], Tensor]:
    """Training step: forward, backward, optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step(call: Call) -> Tensor:
        found = model(*call)
        loss = F.cross_entropy(found, torch.zeros(len(found), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def turns(runs: Sequence[Callable[[Call], Tensor]], work: Work) -> tuple[float, float]:
    """Ratio of the median times of two functions on new graphs, and the largest relative difference of results."""
    took: tuple[list[float], list[float]] = ([], [])
    error = 0.0
    for turn, call in enumerate(calls(work)):
        results = [torch.empty(0)] * 2
        for at in (0, 1) if turn % 2 else (1, 0):
            started = time.perf_counter()
            results[at] = runs[at](call)
            if turn >= WARM:
                took[at].append(time.perf_counter() - started)
        largest = float(results[0].abs().max())
        error = max(error, float((results[0] - results[1]).abs().max()) / largest)
    return statistics.median(took[0]) / statistics.median(took[1]), error


def calls(work: Work) -> Iterator[Call]:
    """New graphs, the warm-up graphs first."""
    for seed in range(1, WARM + work.turns + 1):
        yield work.call(seed)


def line(name: str, work: Work) -> str:
    """Line with the ratios of a model."""
    dense = model_of(name, work).eval()
    sparse: SparseModule = apply(copy.deepcopy(dense), RECIPE, work.call(0))
    with torch.no_grad():
        inference, error = turns([lambda call: dense(*call), lambda call: sparse(*call)], work)
    captures = len(sparse.variants)
    dense.train()
    trained = apply(copy.deepcopy(dense), RECIPE, work.call(0))
    step, difference = turns([step_of(dense), step_of(trained)], work)
    return (
        f"{work}  {name}  inference {inference:.2f}x  step {step:.2f}x  error {max(error, difference):.0e}  "
        f"captures {captures}, {len(trained.variants)}"
    )


def main() -> int:
    """Prints a line for each work and model."""
    parser = argparse.ArgumentParser(description="Graph models on another graph in every call.")
    parser.add_argument("--works", nargs="*", choices=WORKS, default=list(WORKS))
    parser.add_argument("--models", nargs="*", choices=NAMES, default=list(NAMES))
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    for work in asked.works:
        for name in asked.models:
            print(line(name, WORKS[work]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
