"""The untrained model of a request, with example inputs.

In: the request of `gcn` or of `bert`. Out: the untrained model, example inputs, and a description of the inputs.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from sparsify.models import data, inputs
from sparsify.models.data import Graph
from sparsify.models.samples import sample
from sparsify.runner.request import Request


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in evaluation mode, inputs, a description of the inputs, and the graph of a graph model."""

    model: nn.Module
    example: tuple[Tensor, ...]
    text: str
    graph: Graph | None = None


def subject(request: Request) -> Subject:
    """The subject of a request, before anything is trained."""
    entry, arguments, seed = request.entry, request.arguments, request.seed
    if not entry.is_graph:
        model = entry.make(arguments, seed).eval()
        sizes = request.batch, request.seq, seed
        example, text = sample(entry, model, *sizes, request.dataset, request.data_root)
        return Subject(model, example, text)
    graph = data.load(request.dataset, request.data_root, seed)
    model = entry.build(graph.x.shape[1], graph.classes, arguments, seed).eval()
    return Subject(model, tuple(inputs.example_inputs(entry, graph)), str(graph), graph)
