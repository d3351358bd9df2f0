"""A captured graph: nodes, the kind of call that the graph computes, and its shape guard.

In: the result of `export.capture`, or of `kinds.decoded_captured` for a model from a folder. Out: `Captured`, read by
all later passes. The module imports nothing of torch.export, which calls of captured graphs do not need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from sparsify.passes.capture import calls
from sparsify.passes.capture.guards import Holds
from sparsify.passes.capture.operator_trace import Trace

# Variable modes of example inputs, as `apply` takes them.
Dynamic = Mapping[str, Any] | Sequence[Any] | None


@dataclass
class Captured:
    """A captured graph and its mapping from calls.

    Attributes:
        graph: canonical graph; its placeholders are the tensors of the call, its output is a list.
        shape: structure of the captured call.
        output: tree for rebuilding the model's output from the list.
        training: whether the model was in training mode.
        extents: one entry per mode for each placeholder, a number or the name of a symbol.
        specialised: dimensions intended as dynamic but fixed, as `x[1] = 1433`.
        constants: tensors created by the capture, by attribute name.
        is_lifted: whether parts of the model, or sparse input matrices, were captured in a form of this package, not
            recognisable from operators alone.
        holds: shape guard on named extents; None for an unconditional graph.
        written_out: operators that take sparse inputs as dense tensors, until regions read the sparse inputs directly.
        is_granted: whether the graph asserts that data-dependent sizes are two or more, as in `data_sizes`.
        without: names of experts captured in the model's own form.
        whole_layers: recurrent layers captured as torch's operators, with reasons.
        trace: operators before all passes; None where unknown, as in graphs from folders.
        ones: sets of named extents that may be 1 together, each with a further shape guard or None. Every other call
            has 2 or more in named extents.
    """

    graph: fx.Graph
    shape: calls.CallShape
    output: pytree.TreeSpec
    training: bool
    extents: list[tuple[int | str, ...]]
    specialised: list[str] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    is_lifted: bool = False
    holds: Holds | None = None
    written_out: tuple[str, ...] = ()
    is_granted: bool = False
    without: tuple[str, ...] = ()
    whole_layers: Mapping[str, str] = field(default_factory=dict)
    trace: Trace | None = None
    ones: dict[frozenset[str], Holds | None] = field(default_factory=dict)

    def holds_for_ones(self, names: Sequence[str], sizes: Mapping[str, int]) -> bool:
        """Whether the graph holds for calls in which the named extents are 1."""
        key = frozenset(names)
        if key not in self.ones:
            return False
        holds = self.ones[key]
        return holds is None or holds(sizes)

    def tensor(self, model: nn.Module, name: str) -> torch.Tensor:
        """The constant of the capture, or the parameter or buffer of the model, by qualified name."""
        if name in self.constants:
            return self.constants[name]
        owner, _, last = name.rpartition(".")
        attribute: torch.Tensor = getattr(model.get_submodule(owner), last)
        return attribute

    def copied(self) -> "Captured":
        """The capture with a copy of its graph; nodes keep their names."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        return replace(self, graph=graph, ones=dict(self.ones))
