"""Calls whose edges come for the first time: by torch's operators while the graph is small, by kernels from then on.

In:  a variant with regions over adjacency, and the graph of torch's operators.
Out: `new_graphs.are_in(tensors)`, whether a call brings a small graph that has not been seen; `new_graphs.run`.

Kernels read edges sorted by row. To sort those of 32 molecules takes longer than kernels save in one call; where the
same edges come again, as in training on one graph, they are sorted once. The size from which kernels are quicker for
new edges, too, follows from three times of the captured call: with torch's operators, with kernels whose edges are
sorted already, and with kernels that sort them.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx

from sparsify.passes.capture import calls
from sparsify.passes.module.run_eager import without_effects
from sparsify.passes.module.variant import Variant
from sparsify.passes.module.verify import gradients, trained_tensors
from sparsify.passes.operands.content_memo import REMEMBERED, reading_once
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TURNS: Final = 5
# Calls that take longer are of large graphs, whose edges are worth sorting.
LONGEST_S: Final = 0.02
# What is measured holds for graphs up to so many times as large.
LARGER: Final = 4.0


class NewGraphs:
    """The way of a variant for small graphs that come for the first time.

    Args:
        graph: torch's operators.
        edges: the positions, among the tensors of a call, of those that say where edges are.

    Attributes:
        run: computes the graph of the tensors of a call.
        most: how many coordinates of edges, of all these tensors together, new graphs have at most.
    """

    def __init__(self, graph: fx.Graph, edges: Sequence[int]) -> None:
        self.graph, self.edges = graph, tuple(edges)
        self.run: Callable[..., Any] | None = None
        self.most = 0
        self._met: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def copied(self) -> "NewGraphs":
        """The same for another module: a graph of its own, not compiled yet."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        new = NewGraphs(graph, self.edges)
        new.most = self.most
        return new

    def are_in(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the graph of a call is small, and none of the last few calls had it; it is known from now on."""
        if not self.most or self.size(tensors) > self.most:
            return False
        met, is_new = self._met, False
        for at in self.edges:
            tensor = tensors[at]
            version = 0 if tensor.is_inference() else tensor._version
            known = met.get(id(tensor))
            if known is None or known[0]() is not tensor or known[1] != version:
                is_new = True
                met[id(tensor)] = weakref.ref(tensor), version
        if len(met) > REMEMBERED * len(self.edges):
            self._met = {}
        return is_new

    def size(self, tensors: Sequence[Tensor]) -> int:
        """How many coordinates of edges a call has."""
        return sum([tensors[at].numel() for at in self.edges])


def measure(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], found: NewGraphs
) -> None:
    """Sets the size below which new graphs run torch's operators; with gradients where the variant trains."""
    if not runs_natively([*module._source.parameters(), *tensors]):
        return
    trains = module._asked.is_trainable(variant.captured.training) and torch.is_grad_enabled()
    parameters = trained_tensors(module, call) if trains else []
    run = without_effects(module, variant)
    operators = without_effects(module, variant, found.graph)
    structures = [o.structure for region in variant.regions for o in region.operands if o.structure]

    def anew() -> Any:
        for structure in structures:
            structure.memory.clear()
        return reading_once(run, tensors)

    ways = (lambda: operators(*tensors), lambda: reading_once(run, tensors), anew)
    with torch.random.fork_rng(devices=[]):
        if min(seconds(ways[1], parameters) for _ in range(2)) > LONGEST_S:
            return
        taken = [[seconds(way, parameters) for way in ways] for _ in range(TURNS + 1)][1:]
    by_torch, known, new = (min(times) for times in zip(*taken, strict=True))
    sorting, saved = max(0.0, new - known), max(by_torch - known, 0.0)
    larger = min(LARGER, sorting / saved) if saved else LARGER
    found.most = int(larger * found.size(tensors))
    variant.report.new_graphs = found.most


def seconds(run: Callable[[], Any], parameters: Sequence[Tensor]) -> float:
    """The time of a call, with the gradients of parameters where there are some."""
    start = time.perf_counter()
    with torch.set_grad_enabled(bool(parameters)):
        result = run()
    if parameters:
        gradients(result, parameters)
    return time.perf_counter() - start
