"""The function that runs a graph eagerly: direct calls of kernels, and direct reads of parameters.

In: the graph of a variant, `%y = call_region(handle, %x, %lin_weight)`. Out: `run(x)`, which reads `lin.weight` from
its module's dictionary and calls the region directly; operators after a convolution of torch may be fused into one call
(`torch_convolution`), and results reuse memory without later readers (`reuse_memory`). Traces see the unchanged graph.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.autograd import forward_ad

from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.shell import with_copied_buffers
from sparsify.passes.graph.direct_calls import direct
from sparsify.passes.graph.node_info import call_of
from sparsify.passes.graph.operators import operator_name, tensor_value, updates_statistics
from sparsify.passes.module.variants.reuse_memory import FACTORIES, Sum, sums, writers
from sparsify.passes.module.variants.variant import Variant

if TYPE_CHECKING:
    from sparsify.passes.choose.torch_convolution import Folded

# A dictionary of a module, and a key of the dictionary.
Place = tuple[dict[str, Any], str]


@dataclass(frozen=True)
class Running:
    """A graph in the form that runs with real tensors: parameters are its first inputs.

    Attributes:
        graph: calls of regions, functions of torch and fused nodes.
        read: names of parameters and buffers by the names of the first inputs.
        writes: whether results overwrite other tensors, unsafe under transforms.
    """

    graph: fx.Graph
    read: Mapping[str, str]
    writes: bool


def eager(graph: fx.Graph, root: nn.Module, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the inputs of `graph`; reads the modules' present parameters at each call.

    Args:
        graph: graph of a variant.
        root: module with the parameters.
        otherwise: the compiled graph, `(root, *inputs)`, for modules that were replaced or now compute a parameter.
    """
    return run_by(running(graph, root), root, otherwise)


def running(graph: fx.Graph, root: nn.Module) -> Running:
    """The graph of a variant in its executable form."""
    from sparsify.passes.choose.torch_convolution import folded

    chains = {chain.covered[-1]: chain for chain in folded(graph)}
    within = {node for chain in chains.values() for node in chain.covered} - chains.keys()
    copied = fx.Graph()
    read: dict[str, str] = {}
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and _store_of(root, str(node.target)) is not None:
            copies[node] = copied.placeholder(node.name)
            read[copies[node].name] = str(node.target)
    added = sums(graph, within | chains.keys())
    within |= {one.product for one in added.values()}
    written = writers(graph, within | chains.keys() | added.keys())
    for node in graph.nodes:
        if _is_same(node):
            copies[node] = copies[node.args[0]]
            continue
        if node in copies or node in within or _is_made_by_readers(node, written):
            continue
        node_copies = copies
        if node in written and operator_name(node.args[0]) in FACTORIES:
            node_copies = {**copies, node.args[0]: _copied(node.args[0], copied, copies)}
        copies[node] = _copied(node, copied, node_copies, chains.get(node), added.get(node))
        if node in written:
            copies[node].target = written[node]
    return Running(copied, read, bool(written or added))


def run_by(executable: Running, root: nn.Module, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the inputs of an executable graph; arguments as in `eager`."""
    owners: dict[str, tuple[Place, nn.Module]] = {}
    for name in executable.read.values():
        owners |= _owners(root, name)
    code = executable.graph.python_code("self")
    compiled = compile(code.src, f"<eager {type(root).__name__}>", "exec")
    names = dict(code.globals)
    exec(compiled, names)
    forward: Callable[..., Any] = names["forward"]
    places = tuple(
        [store_of for name in executable.read.values() if (store_of := _store_of(root, name)) is not None]
    )
    assert len(places) == len(executable.read), "modules keep what their graph reads"
    stores, keys = [store for store, _ in places], [key for _, key in places]
    modules = tuple([(*store_of, module) for store_of, module in owners.values()])
    writes = executable.writes

    def run(*inputs: Any) -> Any:
        if writes and (forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()):
            return otherwise(root, *inputs)  # a batch does not fit into memory of one example
        try:
            values = [*map(getitem, stores, keys)]
        except KeyError:
            return otherwise(root, *inputs)
        for store, name, module in modules:
            if store.get(name) is not module:
                return otherwise(root, *inputs)
        return forward(root, *values, *inputs)

    return run


def _is_same(node: fx.Node) -> bool:
    """Whether a node is its input: a conversion to the input's dtype; parameters may be held in another one."""
    if node.target is not torch.ops.aten.to.dtype or len(node.args) > 2 or node.kwargs:
        return False
    source = node.args[0]
    value = tensor_value(source)
    is_parameter = isinstance(source, fx.Node) and source.op == "get_attr"
    return value is not None and not is_parameter and value.dtype is node.args[1]


def _is_made_by_readers(node: fx.Node, written: dict[fx.Node, Callable[..., Any]]) -> bool:
    """Whether every reader of a constant tensor creates a copy to overwrite."""
    is_factory = operator_name(node) in FACTORIES and bool(node.users)
    return is_factory and all(user in written and user.args[0] is node for user in node.users)


def _copied(
    node: fx.Node,
    graph: fx.Graph,
    copies: dict[fx.Node, fx.Node],
    chain: "Folded | None" = None,
    added: Sum | None = None,
) -> fx.Node:
    """A node copied into a graph with copies of its inputs; a fused chain or sum replaces its last node."""
    if added is not None:
        read = (added.added, *added.product.args)
        return graph.call_function(added.function, tuple([copies[one] for one in read]))  # type: ignore[index]
    if chain is not None:
        return graph.call_function(chain, tuple([copies[read] for read in chain.inputs]))
    new = graph.node_copy(node, copies.__getitem__)
    if is_call(node):
        new.target, new.args = call_of(node).__call__, new.args[1:]
    elif node.op == "call_function" and (function := direct(node.target)) is not None:
        new.target = function
    return new


def _owners(root: nn.Module, target: str) -> dict[str, tuple[Place, nn.Module]]:
    """The modules on the path to `target`, with their places, by path."""
    owners: dict[str, tuple[Place, nn.Module]] = {}
    path, module = "", root
    for name in target.split(".")[:-1]:
        path, store, module = f"{path}.{name}", module._modules, module.get_submodule(name)
        owners[path] = (store, name), module
    return owners


def _store_of(root: nn.Module, target: str) -> Place | None:
    """The dictionary and key of a module's parameter or buffer; `None` for any other target."""
    owner, _, name = target.rpartition(".")
    module = root.get_submodule(owner)
    for store in (module._parameters, module._buffers):
        if name in store:
            return store, name
    return None


def without_effects(module: nn.Module, variant: Variant, graph: fx.Graph | None = None) -> Callable[..., Any]:
    """The function that runs a variant, or another graph of the variant, without writes to model buffers."""
    assert variant.eager is not None and variant.run is not None, "captures compile graphs"
    if not variant.writes() and not any(map(updates_statistics, variant.captured.graph.nodes)):
        return variant.eager if graph is None else eager(graph, module, type(compiled(graph)).forward)
    scratch = with_copied_buffers(module)
    if graph is None:
        return eager(variant.captured.graph, scratch, variant.run)
    return eager(graph, scratch, type(compiled(graph)).forward)


def compiled(graph: fx.Graph) -> fx.GraphModule:
    """A module whose class has a graph's function of the parameters' module and the inputs."""
    scratch = fx.GraphModule(nn.Module(), fx.Graph())  # other modules keep their functions
    scratch._graph = graph
    scratch.recompile()
    return scratch
