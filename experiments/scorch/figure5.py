"""Figure 5: graph convolutional networks on Cora, CiteSeer, PubMed and ogbn-arxiv, inference over the whole graph.

In: a `Setting`. Out: the figure: sparsify, torch's CSR product and PyG's edge_index, each with its accuracy.
The model is trained once with PyG, as in appendix E.2 (table 1); all contenders have its weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

import sparsify
from sparsify.bench.harness import Case, Contender
from sparsify.models import by_hand, data, registry
from sparsify.models.inputs import training_inputs
from sparsify.models.train import BIG_EDGES, Settings, accuracy, settings_for
from sparsify.models.trained import trained

from ..reproduce.figure import OURS, Figure, Outcome, Row, Setting, timed

HIDDEN: Final = 128  # table 1
QUICK_EPOCHS: Final = 10
TORCH, PYG, DGL = "torch CSR", "PyG edge_index", "DGL"
NO_DGL: Final = "the wheels of its last release, 2.1.0, load with torch 2.0 to 2.2 alone"
FILES: Final = {
    "cora": "Planetoid/Cora/raw/*",
    "citeseer": "Planetoid/CiteSeer/raw/*",
    "pubmed": "Planetoid/PubMed/raw/*",
    "ogbn-arxiv": "ogbn_arxiv/raw/*",
}
SECONDS: Final = {"cora": 25.0, "citeseer": 30.0, "pubmed": 60.0, "ogbn-arxiv": 400.0}


def settings_of(graph: data.Graph, setting: Setting) -> tuple[Settings, str]:
    """Adam, 0.01, weight decay 5e-4, 200 epochs (table 1); fewer on large graphs and when quick, and a note."""
    found, note = settings_for(graph, setting.seed)
    if setting.quick:
        epochs = QUICK_EPOCHS if graph.edges < BIG_EDGES else 1
        return replace(found, epochs=epochs, validate_every=epochs), f"quick: epochs {epochs}"
    return found, note


def measure(name: str, setting: Setting) -> Outcome:
    """Times and accuracies on one graph."""
    graph = data.load(name, setting.root, setting.seed)
    entry = registry.find("gcn")
    settings, note = settings_of(graph, setting)
    made = trained(entry, {"hidden": HIDDEN}, graph, training_inputs(entry, graph), settings, note=note)
    model, inputs = made.model.eval(), (graph.x, graph.edge_index)
    with torch.no_grad():
        sparse = sparsify.apply(model, "gcn", inputs)
        by_torch = by_hand.gcn(model, graph)
        calls: dict[str, Callable[[], Tensor]] = {
            OURS: lambda: sparse(*inputs),
            TORCH: by_torch,
            PYG: lambda: model(*inputs),
        }
        expected = model(*inputs).double()
        case = Case(name, str(graph), name, [], [], lambda: expected, tolerance=1e-3)
        case.contenders += [Contender(who, call, who != OURS) for who, call in calls.items()]
        times = timed(case, setting)
        reached = {who: accuracy(call(), graph.y, graph.test) for who, call in calls.items()}
    facts = {"accuracy": reached[OURS], "accuracy of PyG": reached[PYG]}
    notes = [note] if note else []
    if graph.features.startswith("made"):
        notes.insert(0, "features generated: " + graph.features)
    return Outcome(times, {DGL: NO_DGL}, facts, "; ".join(notes))


def rows(setting: Setting) -> Sequence[Row]:
    """Rows of the four graphs."""
    return [
        Row(name, _data(name), partial(measure, name), (pattern,), SECONDS[name])
        for name, pattern in FILES.items()
    ]


def _data(name: str) -> str:
    return "real" if name != "ogbn-arxiv" else "real graph; features as the note says"


FIGURE = Figure(
    "figure5",
    "GCN inference",
    rows,
    TORCH,
    "2.08x of PyTorch on average over the four graphs; PyG and DGL ahead of PyTorch on the small ones.",
    facts=("accuracy", "accuracy of PyG"),
    why={
        TORCH: "its CSR product and its adjacency are made before and not timed; so small a graph leaves little else",
        PYG: "its gather and scatter have less overhead on the smallest graphs",
    },
)
