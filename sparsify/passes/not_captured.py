"""Calls of sparse models that Dynamo traces before they have been captured: they run outside of its graph.

In: a `SparseModule` and its arguments. Out: its result, and a break of the graph that says what to do.

Imported when such a call is traced: the decorator loads Dynamo.
"""

from typing import Any

import torch


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="the sparse model has not been captured for this mode and these arguments; call it once with them, "
    "not compiled, before torch.compile or torch.export looks at it"
)
def run_now(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result outside of the trace, where the model can be captured."""
    return module.forward(*args, **kwargs)
