"""The nodes of a region in their fastest dense form, for times of whole calls without kernels.

In: the call of `relu(linear(%x, %w, %b))` with `dense_form` "onednn", or of a convolution with the form "rows". Out: a
function of the call's arguments, with weights packed by oneDNN at the first call; the unchanged nodes for other calls.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from torch import fx, nn

from sparsify.passes.call.bind import extract
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose import linear_library
from sparsify.passes.choose.torch_convolution import FORMS, Folded, chain_of
from sparsify.passes.graph.operators import operator_name

# Name of the library behind every form but the unchanged nodes.
ONEDNN: Final = "oneDNN"


def by_fastest_form(region: RegionCall, *, can_copy: bool = True) -> Callable[..., Any]:
    """A region's nodes in their fastest dense form, as a function of the region's arguments.

    Args:
        region: call of the region.
        can_copy: whether the form may copy weights; otherwise the nodes are unchanged.
    """
    found = None
    if not can_copy:
        return partial(unchanged, region)
    if region.dense_form in linear_library.DENSE:
        copied = fx.Graph()
        copied.output(copied.graph_copy(region.dense.graph, {}))
        found = linear_library.by_library(fx.GraphModule(nn.Module(), copied), region.dense_form)
    elif region.dense_form in FORMS:
        found = folded(region.dense.graph, region.dense_form)
    return found or partial(unchanged, region)


def unchanged(region: RegionCall, *arguments: Any) -> Any:
    """The result of a region's nodes."""
    return region.dense_result(arguments)


def folded(graph: fx.Graph, form: str) -> Callable[..., Any] | None:
    """A graph with one convolution, and its chain in a form; `None` for other graphs."""
    convolutions = [node for node in graph.nodes if operator_name(node) == "conv2d"]
    outputs = graph.output_node().all_input_nodes
    if len(convolutions) != 1 or len(outputs) != 1:
        return None
    chain = chain_of(convolutions[0], (), can_add=True)
    function = Folded(chain, form, has_pool=False)
    places = graph.find_nodes(op="placeholder")
    if not set(function.inputs) <= set(places):
        return None
    read = [places.index(node) for node in function.inputs]
    rest = None if chain.last is outputs[0] else extract(graph, [chain.last, *places], [*outputs]).forward

    def run(*arguments: Any) -> Any:
        result = function.computed(picked(arguments, read))
        return result if rest is None else rest(result, *arguments)[0]

    return run


def picked(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The values at some places."""
    return [values[place] for place in places]
