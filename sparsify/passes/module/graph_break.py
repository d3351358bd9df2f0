"""Calls of sparse models for which there is no graph when Dynamo traces them: they run outside of its graph.

In: a `SparseModule` and its arguments. Out: its result, and a break of the graph that says what to do.

Imported when such a call is traced: the decorator loads Dynamo.
"""

from typing import Any

import torch

from sparsify.passes.module.traced_calls import NO_GRAPH, NOT_TOLD


def run(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result outside of the trace, where all of a call is known and the model can be captured."""
    return module.forward(*args, **kwargs)


run_now: Any = torch.compiler.disable(run, reason=NO_GRAPH)
run_untold: Any = torch.compiler.disable(run, reason=NOT_TOLD)
