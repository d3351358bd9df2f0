"""Sparse models without a graph for a call that Dynamo traces: the call runs outside the trace.

In: a `SparseModule` and its arguments. Out: the result, and a graph break with a remedy in its text. Imported when such
a call is traced: the decorator loads Dynamo.
"""

from typing import Any

import torch

from sparsify.passes.module.source.traced_calls import NO_GRAPH, NOT_TOLD


def run(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result outside of the trace, where the whole call is known and the model can be captured."""
    return module.forward(*args, **kwargs)


run_now: Any = torch.compiler.disable(run, reason=NO_GRAPH)
run_untold: Any = torch.compiler.disable(run, reason=NOT_TOLD)
