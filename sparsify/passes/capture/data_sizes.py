"""Sizes that the data decides, as of `x[mask]`, taken to be two or more: what the code of a model asks is answered so.

In: `if index.numel() > 0:` after `index = batch[mask]`, where export does not know whether `u0 > 0`. Out: a graph that
asserts `u0 >= 2`; calls for which that does not hold run the source model. 0 and 1 are special to export in extents of
inputs, too.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import fx

from sparsify.errors import CaptureError
from sparsify.passes.graph.operators import operator_name, overwritten, updates_statistics
from sparsify.runtime import confined

OUTSIDE: Final = "the data is outside of what was captured: "
# How errors of export begin where code compares a size, in place of reading it as a number of Python.
COMPARED: Final = "Could not guard on"
# Extents that the data decides are two or more; numbers that a model reads are so, too, where less is not enough.
LEAST: Final = 2
NUMBERS: Final = (None, 1, LEAST)


def is_undecided(error: Exception) -> bool:
    """Whether export failed as the code of a model asks for a size that the data decides."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # with sympy

    return isinstance(error, GuardOnDataDependentSymNode) and str(error).strip().startswith(COMPARED)


@contextmanager
def taken_for_granted(number: int | None) -> Iterator[None]:
    """Within this context export takes extents that the data decides to be two or more, and asserts it.

    Args:
        number: the least number that `tensor.item()` gives; None where export is to ask for none.
    """
    from torch.fx.experimental import symbolic_shapes as shapes  # with sympy

    create, constrain = shapes.ShapeEnv.create_unbacked_symint, shapes._constrain_range_for_size

    def created(*args: Any, **kwargs: Any) -> Any:
        found = create(*args, **kwargs)
        if number is not None:
            torch._check(found >= number)
        return found

    def constrained(extent: Any, *args: Any, **kwargs: Any) -> None:
        constrain(extent, *args, **kwargs)
        torch._check(extent >= LEAST)

    with ExitStack() as changes:
        changes.enter_context(confined.substituted(shapes.ShapeEnv, "create_unbacked_symint", created))
        changes.enter_context(confined.substituted(shapes, "_constrain_range_for_size", constrained))
        yield


def name_assertions(graph: fx.Graph) -> None:
    """Makes the assertions of a graph tell calls that it is not for from errors of the model.

    Raises:
        CaptureError: the graph writes into its inputs or buffers, of which it may have written some before it asserts
            something.
    """
    if overwritten(graph) & {*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr")}:
        raise CaptureError("the model writes into its inputs, and asks for sizes that the data decides")
    is_updated = False
    for node in graph.nodes:
        is_updated = is_updated or updates_statistics(node)
        if operator_name(node) == "_assert_scalar":
            if is_updated:
                raise CaptureError(
                    "the model updates statistics before it asks for sizes that the data decides"
                )
            condition, text = node.args
            node.args = (condition, f"{OUTSIDE}{text}")


def is_outside(error: RuntimeError) -> bool:
    """Whether a graph found that it is not for the data of a call."""
    return OUTSIDE in str(error)
