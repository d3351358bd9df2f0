"""Calls for which a sparse model has no graph, and cannot do without.

In: `torch.export.export(sparse, ...)` of a model that was never called. Out: an error that says what to do.
"""

from sparsify.errors import CaptureError


def fail_without_graph() -> None:
    """Raises: `torch.export` runs the graph of a `GraphModule`, and this one has none."""
    raise CaptureError(
        "this sparse model has no graph to export",
        "call it once with these arguments before torch.export; where capturing failed, which its report says, export "
        "the source model",
    )


def fail_after(captures: int) -> None:
    """Raises: a model with masks, which must not run without them, has so many graphs and none that fits a call."""
    raise CaptureError(
        f"more than {captures} captures, and the source model cannot run with the masks of its recipe",
        "calls of fewer kinds (modes, arguments, shapes that are fixed), or the recipe applied once more for others",
    )
