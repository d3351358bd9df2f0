"""What a sparse model does where its calls are traced: by Dynamo, or by `torch.export`.

In: a call while tracing. Out: the results of the variant that fits it, as nodes of the graph that is traced.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from sparsify.errors import CaptureError
from sparsify.passes import calls, traced_calls
from sparsify.passes.base import Asked
from sparsify.passes.captures import Captures
from sparsify.passes.no_graph import fail_without_graph
from sparsify.passes.shell import modes
from sparsify.passes.variant import Variant


class TracedModule(fx.GraphModule):
    """A module of variants, each for its mode and arguments, none of which a trace may mistake for another."""

    _taking: traced_calls.Parameters
    _asked: Asked
    _captures: Captures

    @abstractmethod
    def finish(self, variant: Variant, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's output class around the results of a variant."""

    @abstractmethod
    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The source model's own result."""

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result while tracing: of the variant that fits, and of none outside of the trace."""
        bound = traced_calls.arguments(self._taking, args, kwargs)
        if bound is None:
            return traced_calls.run_outside(self, args, kwargs, is_told=True)
        told = None if torch.is_autocast_enabled("cpu") else calls.told(bound)
        if told is None:
            return traced_calls.run_outside(self, args, kwargs, is_told=False)
        mode, tensors = modes(self), traced_calls.tensors_of(bound)
        variant = self._captures.traced(mode, told, tuple([tensor.shape for tensor in tensors]))
        if variant is not None:
            return self.finish(variant, tensors)
        if self._captures.are_refused(mode, told) and not self._asked.has_masks:
            return self.original(*args, **kwargs)
        return traced_calls.run_outside(self, args, kwargs, is_told=True)

    @property
    def graph(self) -> fx.Graph:
        """The graph of the variant that is shown; where `torch.export` runs it, one that finds the variant."""
        if not torch.compiler.is_exporting():
            return self._graph
        graph = fx.Graph()
        graph.output(graph.call_function(self.exported, (graph.placeholder("*values"),)))
        return graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        set_graph = fx.GraphModule.graph.fset  # type: ignore[attr-defined]
        set_graph(self, graph)

    def exported(self, values: Sequence[Any]) -> Any:
        """The result for the arguments of a call in their order, which is all that `torch.export` tells.

        Raises:
            CaptureError: there is no graph for them.
        """
        if not len(list(self._captures)):
            fail_without_graph()
        told = [calls.told(value) for value in values]
        tensors = traced_calls.tensors_of(list(values))
        shapes = tuple([tensor.shape for tensor in tensors])
        for (mode, shape), variant in self._captures.known:
            is_like = mode == modes(self) and traced_calls.in_order(shape, self._taking) == told
            if is_like and variant.admits(shapes):
                return self.finish(variant, tensors)
        raise CaptureError(traced_calls.NOT_TOLD if None in told else traced_calls.NO_GRAPH)
