"""Losses of training over sampled neighbourhoods: the dense model and its sparse copy, with equal samples.

In: `python -m experiments.mini_batches --data-root DATA --datasets cora ogbn-arxiv`. Out: a line for each data set and
model, `cora gcn: 2 regions, 80 steps, dense loss 1.9 to 0.5, losses differ by 3e-13 of the first at most, ...`.

Both models start from the same weights and see the same batches. Float32 trainings drift apart, because rounding
errors grow from step to step; equal losses in float64 show that both models compute the same function.
"""

import argparse
import copy
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from sparsify import apply
from sparsify import recipe as recipes
from sparsify.models import data, registry
from sparsify.models.data import Graph
from sparsify.models.neighbours import NeighbourSampler
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.runner.training import Stepper, sampled

MODELS: Final = ("gcn", "sage", "gin", "gat")
FIRST: Final = 10
RATE: Final = 0.01


@dataclass(frozen=True)
class Study:
    """Sampling of a graph, and the arguments of its models.

    Attributes:
        batch_size: nodes of a batch.
        fanout: sampled neighbours of a node, for each hop.
        arguments: keyword arguments of the models.
    """

    batch_size: int
    fanout: tuple[int, ...]
    arguments: Mapping[str, Any]


STUDIES: Final[Mapping[str, Study]] = {
    "cora": Study(35, (5, 5), {"hidden": 16, "dropout": 0.0}),
    "ogbn-arxiv": Study(1024, (5, 5), {"hidden": 32, "dropout": 0.0}),
}


@dataclass(frozen=True)
class Losses:
    """Losses of both models, step by step.

    Attributes:
        pairs: (dense, sparse) loss of each step.
        regions: number of regions of the sparse model.
        late_captures: variants of the sparse model captured after the first ten batches.
    """

    pairs: tuple[tuple[float, float], ...]
    regions: int
    late_captures: int

    @property
    def difference(self) -> float:
        """Largest difference of the losses of a step, relative to the first dense loss."""
        return max(abs(dense - sparse) for dense, sparse in self.pairs) / abs(self.pairs[0][0])

    def __str__(self) -> str:
        first, last = self.pairs[0][0], self.pairs[-1][0]
        return (
            f"{self.regions} regions, {len(self.pairs)} steps, dense loss {first:.4f} to {last:.4f}, "
            f"losses differ by {self.difference:.0e} of the first at most, "
            f"captures after {FIRST} batches: {self.late_captures}"
        )


def losses(name: str, graph: Graph, study: Study, epochs: int, dtype: torch.dtype) -> Losses:
    """Trains a model and its sparse copy with Adam on equal samples.

    Args:
        name: name of a graph model.
        graph: features, edges, classes and training nodes.
        study: sampling parameters.
        epochs: number of passes over the training nodes.
        dtype: dtype of features and weights.
    """
    entry = registry.find(name)
    known = {key: value for key, value in study.arguments.items() if key in entry.arguments()}
    dense = entry.build(graph.x.shape[1], graph.classes, known).to(dtype).train()
    recipe = recipes.load(entry.recipe)
    rules = [rule for rule in recipe.rules if not rule.optional]
    sparse: SparseModule = apply(copy.deepcopy(dense), recipe.with_rules(rules), verify=False, trainable=True)
    steppers = [Stepper(model, torch.optim.Adam(model.parameters(), lr=RATE)) for model in (dense, sparse)]
    sampler = NeighbourSampler(graph.edge_index, graph.nodes, study.fanout)
    typed = replace(graph, x=graph.x.to(dtype))
    pairs: list[tuple[float, float]] = []
    early = 0
    for batch in sampled(sampler, typed, study.batch_size, epochs, []):
        expected, found = [float(step(batch)) for step in steppers]
        pairs.append((expected, found))
        if len(pairs) == FIRST:
            early = len(sparse.variants)
    return Losses(tuple(pairs), len(sparse.report.regions), len(sparse.variants) - early)


def main() -> int:
    """Prints the losses of each data set and model."""
    parser = argparse.ArgumentParser(description="Losses of training over sampled neighbourhoods.")
    parser.add_argument("--data-root", type=Path, help="folder of data sets")
    parser.add_argument("--datasets", nargs="*", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--float32", action="store_true", help="train in float32 in the place of float64")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    dtype = torch.float32 if asked.float32 else torch.float64
    for dataset in asked.datasets:
        graph = data.load(dataset, asked.data_root)
        for name in asked.models:
            found = losses(name, graph, STUDIES[dataset], asked.epochs, dtype)
            print(f"{dataset} {name}: {found}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
