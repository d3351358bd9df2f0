"""What a sparse model does where its calls are traced: by Dynamo, or by `torch.export`.

In: a call while tracing. Out: the results of the variant that fits it, as nodes of the graph that is traced.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from sparsify.errors import CaptureError
from sparsify.passes.call import tracing
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import Asked
from sparsify.passes.capture.shell import modes
from sparsify.passes.module import traced_calls
from sparsify.passes.module.no_graph import fail_without_graph
from sparsify.passes.module.variant import Variant
from sparsify.passes.module.variant_table import Captures
from sparsify.report import Report


class TracedModule(fx.GraphModule):
    """A module of variants, each for its mode and arguments, none of which a trace may mistake for another."""

    _taking: traced_calls.Parameters
    _asked: Asked
    _captures: Captures
    report: Report

    @abstractmethod
    def finish(self, variant: Variant, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's output class around the results of a variant."""

    @abstractmethod
    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The source model's own result."""

    @property
    def variants(self) -> list[Variant]:
        """All variants in the order in which they were captured."""
        return list(self._captures)

    def show(self, variant: Variant) -> None:
        """Makes a variant the one that `.graph` and `.report` are about."""
        self._graph, self._code = variant.captured.graph, variant.code
        object.__setattr__(self, "report", variant.report)

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
        if variant is not None and variant.is_laid_out(tensors):
            return self.finish(variant, tensors)
        if self._captures.are_refused(mode, told) and not self._asked.has_masks:
            return self.original(*args, **kwargs)
        return traced_calls.run_outside(self, args, kwargs, is_told=True)

    @property
    def graph(self) -> fx.Graph:
        """The graph of the variant that is shown; where `torch.export` runs it, one that finds the variant."""
        if not torch.compiler.is_exporting() or tracing.is_elsewhere():
            return self._graph
        graph = fx.Graph()
        names = traced_calls.exported_names(self)
        graph.output(graph.call_function(self.exported, (names, graph.placeholder("*values"))))
        return graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        set_graph = fx.GraphModule.graph.fset  # type: ignore[attr-defined]
        set_graph(self, graph)

    def exported(self, names: Sequence[str] | None, values: Sequence[Any]) -> Any:
        """The result for the arguments of a call, which `torch.export` gives one after the other.

        Args:
            names: those under which the last of the values were given; None where they are not known.
            values: all arguments.

        Raises:
            CaptureError: there is no graph for them, or several arguments may be of any name.
        """
        if not len(list(self._captures)):
            fail_without_graph()
        if names is None and len(values) > 1:
            raise CaptureError(*traced_calls.NOT_NAMED)
        count = len(values) - len(names or ())
        return self.traced(tuple(values[:count]), dict(zip(names or (), values[count:], strict=True)))
