"""The function that runs a graph with tensors that have memory: kernels and parameters without a step between.

In: the graph of a variant, `%y = call_region(handle, %x, %lin_weight)`. Out: `run(x)`, which reads `lin.weight` where
its module keeps it and calls the region itself. Traces see the graph as it is: they know neither.
"""

from collections.abc import Callable
from typing import Any

from torch import fx, nn

from sparsify.passes.call_region import call_region


def eager(graph: fx.Graph, root: nn.Module, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the inputs of `graph`; parameters and buffers are those that the modules have at each call.

    Args:
        graph: of a variant.
        root: has the parameters.
        otherwise: the compiled graph, `(root, *inputs)`, for modules that compute a parameter now.
    """
    copied = fx.Graph()
    read: dict[fx.Node, tuple[dict[str, Any], str]] = {}
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and (place := _place(root, str(node.target))) is not None:
            copies[node] = copied.placeholder(node.name)
            read[node] = place
    for node in graph.nodes:
        if node not in copies:
            copies[node] = copied.node_copy(node, copies.__getitem__)
        if node.target is call_region:
            region = node.meta["region"]
            copies[node].target, copies[node].args = region.__call__, copies[node].args[1:]
    code = copied.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, f"<eager {type(root).__name__}>", "exec"), names)
    forward: Callable[..., Any] = names["forward"]
    places = tuple(read.values())

    def run(*inputs: Any) -> Any:
        try:
            values = [store[name] for store, name in places]
        except KeyError:
            return otherwise(root, *inputs)
        return forward(root, *values, *inputs)

    return run


def _place(root: nn.Module, target: str) -> tuple[dict[str, Any], str] | None:
    """The dictionary in which a module keeps a parameter or buffer, and its name there; `None` for anything else."""
    owner, _, name = target.rpartition(".")
    module = root.get_submodule(owner)
    for store in (module._parameters, module._buffers):
        if name in store:
            return store, name
    return None
