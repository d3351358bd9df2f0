"""Torch's operators in place of kernels over edges: for small graphs without sorted edges, or for all calls.

In:  a variant with regions over adjacency, and the graph of torch's operators.
Out: `operators.compute(tensors)`, whether torch's operators are faster for the edges of a call, and `operators.run`.

Kernels read edges sorted by row. Sorting the edges of 32 molecules takes longer than kernels save in one call; edges
that recur, as in training on one graph, are sorted once. The size from which kernels are faster for new edges, too,
follows from three times of the captured call: by torch's operators, by kernels with sorted edges, and by kernels that
sort their edges; with gradients where the variant trains. Where torch's operators are faster than kernels with sorted
edges, torch's operators compute all calls of similar sizes.
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
from sparsify.passes.module.check.verify import compare, compare_training, gradients, trained_tensors
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.operands.content_memo import REMEMBERED, reading_once
from sparsify.runtime.saved_tensors import are_hooked
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

# Limits of the timing of each way: a number of turns, or seconds.
TURNS: Final = 5
SECONDS: Final = 0.25
# Limits of a measured call: larger graphs never materialise the messages of all edges.
LONGEST_S: Final = 0.5
LARGEST: Final = 1 << 20
# A measurement is valid for graphs up to LARGER times as large; smaller relative differences than NOISE are ignored.
LARGER: Final = 4.0
NOISE: Final = 1.05


class OperatorGraph:
    """A variant computed by torch's operators.

    Args:
        graph: torch's operators.
        edges: positions, among the tensors of a call, of the tensors with edge coordinates.

    Attributes:
        run: function of the tensors of a call that computes the graph.
        most: maximum number of edge coordinates of a call, over all edge tensors.
        is_for_known: whether torch's operators also compute calls with known edges.
    """

    def __init__(self, graph: fx.Graph, edges: Sequence[int]) -> None:
        self.graph, self.edges = graph, tuple(edges)
        self.run: Callable[..., Any] | None = None
        self.most, self.is_for_known = 0, False
        self._recent: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def copied(self) -> "OperatorGraph":
        """A copy for another module: a copied graph, not compiled yet."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        new = OperatorGraph(graph, self.edges)
        new.most, new.is_for_known = self.most, self.is_for_known
        return new

    def compute(self, tensors: Sequence[Tensor]) -> bool:
        """Whether torch's operators are faster for a call; records the edges of the call as known."""
        if not self.most or self.size(tensors) > self.most or torch._C._are_functorch_transforms_active():
            return False
        if self.is_for_known:
            return True
        # A checkpoint's recomputation must save the same tensors as its first call: by then the edges would be known.
        return not are_hooked() and self.meet(tensors)

    def meet(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the edges occurred in none of the last few calls; records the edges as known."""
        recent, is_new = self._recent, False
        for at in self.edges:
            tensor = tensors[at]
            version = 0 if tensor.is_inference() else tensor._version
            entry = recent.get(id(tensor))
            if entry is None or entry[0]() is not tensor or entry[1] != version:
                is_new = True
                recent[id(tensor)] = weakref.ref(tensor), version
        if len(recent) > REMEMBERED * len(self.edges):
            self._recent = {}
        return is_new

    def size(self, tensors: Sequence[Tensor]) -> int:
        """The number of coordinates of edges a call has."""
        return sum([tensors[at].numel() for at in self.edges])


def measure(
    module: "SparseModule",
    variant: Variant,
    call: calls.Call,
    tensors: list[Tensor],
    operator_graph: OperatorGraph,
) -> None:
    """Sets and reports the sizes for which torch's operators run; none where their results differ."""
    if operator_graph.size(tensors) > LARGEST or not runs_natively([*module._source.parameters(), *tensors]):
        return
    trains = module._request.is_trainable(variant.captured.training) and torch.is_grad_enabled()
    parameters = trained_tensors(module, call) if trains else []
    run = without_effects(module, variant)
    operators = without_effects(module, variant, operator_graph.graph)
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
                compare_training(ways[1], ways[0], module._request.recipe.verify, parameters, tuple)
            else:
                with torch.no_grad():
                    compare(ways[1], ways[0], module._request.recipe.verify)
        except VerificationError:
            variant.operators = None
            return
        turns = max(1, min(TURNS, int(SECONDS / min(taken))))
        times = [[seconds(way, parameters) for way in ways] for _ in range(turns + 1)][1:]
    by_torch, in_kernels, new = (min(way) for way in zip(*times, strict=True))
    operator_graph.is_for_known = NOISE * by_torch < in_kernels
    saved, sorting = by_torch - in_kernels, new - in_kernels
    larger = inf if saved <= 0 else max(0.0, sorting) / saved
    operator_graph.most = int(min(LARGER, larger) * operator_graph.size(tensors))
    if operator_graph.is_for_known:
        variant.report.by_torch = f"{1e3 * by_torch:.3g} ms, {1e3 * in_kernels:.3g} in kernels"
    variant.report.new_graphs = operator_graph.most


def seconds(run: Callable[[], Any], parameters: Sequence[Tensor]) -> float:
    """The time of a call, including the gradients of `parameters` if any."""
    start = time.perf_counter()
    with torch.set_grad_enabled(bool(parameters)):
        result = run()
    if parameters:
        gradients(result, parameters)
    return time.perf_counter() - start
