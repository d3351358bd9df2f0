"""The graph of a sparse model before it has one.

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
