"""Data-dependent sizes, as of `x[mask]`, assumed to be two or more when model code asks for them.

In: `if index.numel() > 0:` after `index = batch[mask]`, where export cannot decide `u0 > 0`. Out: a graph that asserts
`u0 >= 2`; calls with a failed assertion run the source model. 0 and 1 are special to export in extents of inputs, too.
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
# Prefix of export errors for compared sizes, as opposed to sizes converted to Python numbers.
COMPARED: Final = "Could not guard on"
# Minimum of data-dependent extents; also the last guess for numbers read by a model, after smaller ones failed.
LEAST: Final = 2
NUMBERS: Final = (None, 1, LEAST)


def is_undecided(error: Exception) -> bool:
    """Whether export failed on a comparison of a data-dependent size in model code.

    Comparisons of data-dependent floats, as of `x.sum().item()`, have no symbol that stands for an integer: assumptions
    about sizes cannot decide such a comparison.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # with sympy

    if not isinstance(error, GuardOnDataDependentSymNode) or not str(error).strip().startswith(COMPARED):
        return False
    symbols = getattr(error.cond, "free_symbols", ())
    return not symbols or any(symbol.is_integer for symbol in symbols)


@contextmanager
def taken_for_granted(number: int | None) -> Iterator[None]:
    """A context in which export assumes, and asserts, that data-dependent extents are two or more.

    Args:
        number: minimum of `tensor.item()`; None for no assumption about numbers.
    """
    from torch.fx.experimental import symbolic_shapes as shapes  # with sympy

    create, constrain = shapes.ShapeEnv.create_unbacked_symint, shapes._constrain_range_for_size

    def created(*args: Any, **kwargs: Any) -> Any:
        number_symbol = create(*args, **kwargs)
        if number is not None:
            torch._check(number_symbol >= number)
        return number_symbol

    def constrained(extent: Any, *args: Any, **kwargs: Any) -> None:
        constrain(extent, *args, **kwargs)
        torch._check(extent >= LEAST)

    with ExitStack() as changes:
        changes.enter_context(confined.substituted(shapes.ShapeEnv, "create_unbacked_symint", created))
        changes.enter_context(confined.substituted(shapes, "_constrain_range_for_size", constrained))
        yield


def name_assertions(graph: fx.Graph) -> None:
    """Marks the assertions of a graph, to distinguish calls outside its data from errors of the model.

    Raises:
        CaptureError: the graph writes into its inputs or buffers, possibly before a failing assertion.
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
    """Whether a graph's assertion found the data of a call outside of the captured case."""
    return OUTSIDE in str(error)
