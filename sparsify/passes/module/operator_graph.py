"""Torch's operators in place of kernels over edges: for small graphs that come for the first time, or for all.

In:  a variant with regions over adjacency, and the graph of torch's operators.
Out: `operators.compute(tensors)`, whether they are faster for the edges of a call, and `operators.run`.

Kernels read edges sorted by row. To sort those of 32 molecules takes longer than kernels save in one call; where the
same edges come again, as in training on one graph, they are sorted once. The size from which kernels are faster for
new edges, too, follows from three times of the captured call: by torch's operators, by kernels whose edges are sorted
already, and by kernels that sort them; with gradients where the variant trains. Where torch's operators are faster than
kernels whose edges are sorted, they compute all calls of such sizes.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx

from sparsify.errors import VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.module.run_eager import without_effects
from sparsify.passes.module.variant import Variant
from sparsify.passes.module.verify import compare, compare_training, gradients, trained_tensors
from sparsify.passes.operands.content_memo import REMEMBERED, reading_once
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

_saved_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks
# Each way is timed so often, or for so many seconds.
TURNS: Final = 5
SECONDS: Final = 0.25
# Calls that take longer, or have more coordinates, are of large graphs: messages of all their edges are not made.
LONGEST_S: Final = 0.5
LARGEST: Final = 1 << 20
# What is measured holds for graphs up to so many times as large, and differences from so many times on.
LARGER: Final = 4.0
NOISE: Final = 1.05


class OperatorGraph:
    """The way of a variant by torch's operators.

    Args:
        graph: torch's operators.
        edges: the positions, among the tensors of a call, of those that say where edges are.

    Attributes:
        run: computes the graph of the tensors of a call.
        most: how many coordinates of edges, of all these tensors together, a call has at most.
        is_for_known: whether it is for edges that came before, too.
    """

    def __init__(self, graph: fx.Graph, edges: Sequence[int]) -> None:
        self.graph, self.edges = graph, tuple(edges)
        self.run: Callable[..., Any] | None = None
        self.most, self.is_for_known = 0, False
        self._met: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def copied(self) -> "OperatorGraph":
        """The same for another module: a graph of its own, not compiled yet."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        new = OperatorGraph(graph, self.edges)
        new.most, new.is_for_known = self.most, self.is_for_known
        return new

    def compute(self, tensors: Sequence[Tensor]) -> bool:
        """Whether torch's operators are faster for a call; its edges are known from now on."""
        if not self.most or self.size(tensors) > self.most or torch._C._are_functorch_transforms_active():
            return False
        if self.is_for_known:
            return True
        # What checkpoints save in a call, its repetition saves, too: by then the edges would be known.
        return _saved_hooks(True) is None and self.meet(tensors)

    def meet(self, tensors: Sequence[Tensor]) -> bool:
        """Whether none of the last few calls had these edges; they are known from now on."""
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
        """The number of coordinates of edges a call has."""
        return sum([tensors[at].numel() for at in self.edges])


def measure(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], found: OperatorGraph
) -> None:
    """Sets for which sizes torch's operators run, and says so in the report; none where their results differ."""
    if found.size(tensors) > LARGEST or not runs_natively([*module._source.parameters(), *tensors]):
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
        taken = [seconds(ways[1], parameters) for _ in range(2)]
        if min(taken) > LONGEST_S or seconds(ways[0], parameters) > LONGEST_S:
            return
        try:
            if parameters:
                compare_training(ways[1], ways[0], module._asked.recipe.verify, parameters, tuple)
            else:
                with torch.no_grad():
                    compare(ways[1], ways[0], module._asked.recipe.verify)
        except VerificationError:
            variant.operators = None
            return
        turns = max(1, min(TURNS, int(SECONDS / min(taken))))
        times = [[seconds(way, parameters) for way in ways] for _ in range(turns + 1)][1:]
    by_torch, known, new = (min(way) for way in zip(*times, strict=True))
    found.is_for_known = NOISE * by_torch < known
    saved, sorting = by_torch - known, new - known
    larger = inf if saved <= 0 else max(0.0, sorting) / saved
    found.most = int(min(LARGER, larger) * found.size(tensors))
    if found.is_for_known:
        variant.report.by_torch = f"{1e3 * by_torch:.3g} ms, {1e3 * known:.3g} in kernels"
    variant.report.new_graphs = found.most


def seconds(run: Callable[[], Any], parameters: Sequence[Tensor]) -> float:
    """The time of a call, with the gradients of parameters where there are some."""
    start = time.perf_counter()
    with torch.set_grad_enabled(bool(parameters)):
        result = run()
    if parameters:
        gradients(result, parameters)
    return time.perf_counter() - start
