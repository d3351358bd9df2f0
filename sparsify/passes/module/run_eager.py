"""The function that runs a graph with tensors that have memory: kernels and parameters without a step between.

In: the graph of a variant, `%y = call_region(handle, %x, %lin_weight)`. Out: `run(x)`, which reads `lin.weight` where
its module keeps it and calls the region itself; what follows a convolution of torch's may be one call with it
(`torch_convolution`), and results lie in memory that nothing reads afterwards (`reuse_memory`). Traces see the graph
as it is: they know none of this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.autograd import forward_ad

from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.shell import fill_shell
from sparsify.passes.choose.torch_convolution import Folded, folded
from sparsify.passes.graph.direct_calls import direct
from sparsify.passes.graph.node_info import call_of
from sparsify.passes.graph.operators import operator_name, updates_statistics
from sparsify.passes.module.reuse_memory import FACTORIES, Sum, sums, writers
from sparsify.passes.module.variant import Variant

# A dictionary of a module, and a name in it.
Place = tuple[dict[str, Any], str]


@dataclass(frozen=True)
class Running:
    """A graph as it runs with tensors that have memory: parameters are its first inputs.

    Attributes:
        graph: calls regions, functions of torch and what stands for several nodes.
        read: by the names of its first inputs those of parameters and buffers.
        writes: whether results are written over others, which transforms may not share.
    """

    graph: fx.Graph
    read: Mapping[str, str]
    writes: bool


def eager(graph: fx.Graph, root: nn.Module, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the inputs of `graph`; parameters and buffers are those that the modules have at each call.

    Args:
        graph: of a variant.
        root: has the parameters.
        otherwise: the compiled graph, `(root, *inputs)`, for modules that compute a parameter now, or are other ones.
    """
    return run_by(running(graph, root), root, otherwise)


def running(graph: fx.Graph, root: nn.Module) -> Running:
    """The graph of a variant as it runs."""
    chains = {chain.covered[-1]: chain for chain in folded(graph)}
    within = {node for chain in chains.values() for node in chain.covered} - chains.keys()
    copied = fx.Graph()
    read: dict[str, str] = {}
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and _place(root, str(node.target)) is not None:
            copies[node] = copied.placeholder(node.name)
            read[copies[node].name] = str(node.target)
    added = sums(graph, within | chains.keys())
    within |= {one.product for one in added.values()}
    written = writers(graph, within | chains.keys() | added.keys())
    for node in graph.nodes:
        if node in copies or node in within or _is_made_by_readers(node, written):
            continue
        own = copies
        if node in written and operator_name(node.args[0]) in FACTORIES:
            own = {**copies, node.args[0]: _copied(node.args[0], copied, copies)}
        copies[node] = _copied(node, copied, own, chains.get(node), added.get(node))
        if node in written:
            copies[node].target = written[node]
    return Running(copied, read, bool(written or added))


def run_by(found: Running, root: nn.Module, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the inputs of a graph as it runs; arguments as those of `eager`."""
    owners: dict[str, tuple[Place, nn.Module]] = {}
    for name in found.read.values():
        owners |= _owners(root, name)
    code = found.graph.python_code("self")
    compiled = compile(code.src, f"<eager {type(root).__name__}>", "exec")
    names = dict(code.globals)
    exec(compiled, names)
    forward: Callable[..., Any] = names["forward"]
    places = tuple([place for name in found.read.values() if (place := _place(root, name)) is not None])
    assert len(places) == len(found.read), "modules keep what their graph reads"
    modules = tuple([(*place, module) for place, module in owners.values()])
    writes = found.writes

    def run(*inputs: Any) -> Any:
        if writes and (forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()):
            return otherwise(root, *inputs)  # a batch does not fit into memory of one example
        try:
            values = [store[name] for store, name in places]
        except KeyError:
            return otherwise(root, *inputs)
        for store, name, module in modules:
            if store.get(name) is not module:
                return otherwise(root, *inputs)
        return forward(root, *values, *inputs)

    return run


def _is_made_by_readers(node: fx.Node, written: dict[fx.Node, Callable[..., Any]]) -> bool:
    """Whether each reader of equal numbers makes its own, to write into them."""
    is_factory = operator_name(node) in FACTORIES and bool(node.users)
    return is_factory and all(user in written and user.args[0] is node for user in node.users)


def _copied(
    node: fx.Node,
    graph: fx.Graph,
    copies: dict[fx.Node, fx.Node],
    chain: Folded | None = None,
    added: Sum | None = None,
) -> fx.Node:
    """A node in a graph that has copies of those above; a chain or a sum that ends in it is called in its place."""
    if added is not None:
        read = (added.added, *added.product.args)
        return graph.call_function(added.function, tuple([copies[one] for one in read]))  # type: ignore[index]
    if chain is not None:
        return graph.call_function(chain, tuple([copies[read] for read in chain.inputs]))
    made = graph.node_copy(node, copies.__getitem__)
    if is_call(node):
        made.target, made.args = call_of(node).__call__, made.args[1:]
    elif node.op == "call_function" and (function := direct(node.target)) is not None:
        made.target = function
    return made


def _owners(root: nn.Module, target: str) -> dict[str, tuple[Place, nn.Module]]:
    """By path the modules on the way to `target`, and where each is kept."""
    found: dict[str, tuple[Place, nn.Module]] = {}
    path, module = "", root
    for name in target.split(".")[:-1]:
        path, store, module = f"{path}.{name}", module._modules, module.get_submodule(name)
        found[path] = (store, name), module
    return found


def _place(root: nn.Module, target: str) -> Place | None:
    """The dictionary in which a module keeps a parameter or buffer, and its name there; `None` for anything else."""
    owner, _, name = target.rpartition(".")
    module = root.get_submodule(owner)
    for store in (module._parameters, module._buffers):
        if name in store:
            return store, name
    return None


def without_effects(module: nn.Module, variant: Variant, graph: fx.Graph | None = None) -> Callable[..., Any]:
    """The function that runs a variant, or another graph of the same, without effects on the buffers of the model."""
    assert variant.eager is not None and variant.run is not None, "captures compile graphs"
    if not variant.writes() and not any(map(updates_statistics, variant.captured.graph.nodes)):
        return variant.eager if graph is None else eager(graph, module, type(compiled(graph)).forward)
    apart = nn.Module()
    fill_shell(apart, module)
    copies = {id(buffer): buffer.detach().clone() for buffer in apart.buffers()}
    for part in apart.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else copies[id(buffer)]
    if graph is None:
        return eager(variant.captured.graph, apart, variant.run)
    return eager(graph, apart, type(compiled(graph)).forward)


def compiled(graph: fx.Graph) -> fx.GraphModule:
    """A module whose class has the function of a graph, of the module with the parameters and the inputs."""
    scratch = fx.GraphModule(
        nn.Module(), fx.Graph()
    )  # calls of other modules go on while theirs stay as they are
    scratch._graph = graph
    scratch.recompile()
    return scratch
