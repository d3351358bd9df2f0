"""Capture of a model's graph for any number of nodes and edges.

In: a model, a call, and the placements of the tensors with rows of nodes or edges. Out: `captured_rows(...)`, a
captured graph with these numbers as symbols.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.captured import Captured
from sparsify.passes.capture.export import capture
from sparsify.passes.graph.node_info import info
from sparsify.scale.placement import EDGES, NODES, Placement

ROWS: Final = Placement(NODES, 0)
EDGE_ROWS: Final = Placement(EDGES, 0)
EDGE_INDEX: Final = Placement(EDGES, 1, ("column", "own"))


def captured_rows(
    source: nn.Module,
    call: calls.Call,
    names: Sequence[str],
    tensors: Sequence[Tensor],
    inputs: Mapping[str, Placement],
    nodes: int,
    edges: int,
) -> Captured:
    """The graph of a model for symbolic numbers of nodes and edges, equal in all processes.

    Args:
        source: the model, in the mode to capture.
        call: call of the model.
        names, tensors: tensors of the call; only sizes and dtypes are read.
        inputs: placements of the tensors.
        nodes, edges: numbers of the whole graph.

    Raises:
        CaptureError: export fails, or the model fixes a number of rows.
    """
    used = {size for t in (*tensors, *source.parameters(), *source.buffers()) for size in t.shape}
    sizes = iter(number for number in _primes() if number not in used)
    number = {NODES: next(sizes), EDGES: next(sizes)}
    examples = []
    for tensor, placement in zip(tensors, inputs.values(), strict=True):
        shape = list(tensor.shape)
        if placement.space is not None:
            shape[placement.mode] = number[placement.space]
        examples.append(torch.zeros(shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad))
    dynamic = {name: (placement.mode,) for name, placement in inputs.items() if placement.is_sharded}
    captured = capture(source, calls.with_tensors(call, examples), dynamic or ())
    if captured.specialised:
        raise CaptureError(
            f"the model fixes a number of rows, {captured.specialised[0]}",
            "write it for graphs of any size",
        )
    whole = {NODES: nodes, EDGES: edges}
    if captured.holds is not None and not captured.holds(_extents(captured, inputs, whole)):
        raise CaptureError(
            "the model computes differently for graphs of this size than for others",
            "write it for graphs of any size",
        )
    return captured


def _extents(captured: Captured, inputs: Mapping[str, Placement], whole: Mapping[str, int]) -> dict[str, int]:
    """The extents of the whole graph by the names of symbols."""
    found = {}
    for node, extents in zip(captured.graph.find_nodes(op="placeholder"), captured.extents, strict=True):
        placement = inputs[str(info(node).input_name)]
        if placement.space is not None:
            found[str(extents[placement.mode])] = whole[placement.space]
    return found


def _primes() -> Iterator[int]:
    """Prime numbers from 97 on, not products of usual sizes."""
    number = 97
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1
