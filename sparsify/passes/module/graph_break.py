"""Calls of sparse models for which there is no graph when Dynamo traces them: they run outside of its graph.

In: a `SparseModule` and its arguments. Out: its result, and a break of the graph that says what to do.

Imported when such a call is traced: the decorator loads Dynamo.
"""

from typing import Any

import torch

from sparsify.passes.module.traced_calls import NO_GRAPH, NOT_TOLD


@torch.compiler.disable(reason=NO_GRAPH)  # type: ignore[untyped-decorator]
def run_now(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result outside of the trace, where the model can be captured."""
    return module.forward(*args, **kwargs)


@torch.compiler.disable(reason=NOT_TOLD)  # type: ignore[untyped-decorator]
def run_untold(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result outside of the trace, where what the call brings can be looked at."""
    return module.forward(*args, **kwargs)
