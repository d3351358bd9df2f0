"""Graphs of torch-geometric as pytree nodes: `Data`, `HeteroData` and batches as model arguments.

In: `model(batch)`, `batch` a `DataBatch(x=[75, 12], edge_index=[2, 300], batch=[75], ptr=[4], name=[3])`.
Out: the leaves `batch.x`, `batch.edge_index`, `batch.batch` and `batch.ptr`.

Texts and other objects, such as `name`, are no leaves: graphs with other names share a capture. A model that reads
`name` cannot be captured.
"""

import copy
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError
from sparsify.runtime.confined import Here

HOMES: Final = (("torch_geometric.data.data", "Data"), ("torch_geometric.data.hetero_data", "HeteroData"))
# Facts of a batch about its graphs, stored outside of its tensors.
COUNT: Final = "_num_graphs"
HIDDEN: Final = (COUNT, "_num_nodes", "_slice_dict", "_inc_dict")
LEAVES: Final = (torch.Tensor, bool, int, float, type(None))
# The capturing thread.
capturing: Final = Here()
Place = tuple[int, str]


@dataclass(frozen=True)
class Form:
    """The structure shared by graphs of one capture.

    Attributes:
        kind: class of the graphs.
        stores: names of the parts: nodes and edges of each type.
        places: positions of the leaves, by part number and attribute name.
        template: one of the graphs without its leaves.
    """

    kind: type
    stores: tuple[str, ...]
    places: tuple[Place, ...]
    template: Any = field(compare=False, repr=False)


def is_graph(value: Any) -> bool:
    """Whether a value is a graph of torch-geometric."""
    kinds = [getattr(sys.modules[home], name) for home, name in HOMES if home in sys.modules]
    return isinstance(value, tuple(kinds))


def register(values: Iterable[Any]) -> bool:
    """Makes the classes of graphs among some values nodes of trees; whether one was none before."""
    kinds = {type(value) for value in values if is_graph(value)} - pytree.SUPPORTED_NODES.keys()
    for kind in kinds:
        pytree.register_pytree_node(
            kind, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=f"torch_geometric.{kind.__module__}.{kind.__name__}",
        )  # fmt: skip
    return bool(kinds)


def require_unchanged(before: Iterable[tuple[Any, list[Any]]]) -> None:
    """Raises where a model has changed a graph argument.

    Args:
        before: graphs with their leaves before the call.

    Raises:
        CaptureError: the attributes of a graph have changed.
    """
    for graph, leaves in before:
        now = _leaves(graph)[0]
        if len(now) != len(leaves) or any(a is not b for a, b in zip(now, leaves, strict=True)):
            raise CaptureError(
                f"the model changes the attributes of the {type(graph).__name__} that it is called with",
                "tensors as variables of the model in place of `data.x = ...`, or `data = copy.copy(data)` first",
            )


def graphs_in(value: Any) -> list[tuple[Any, list[Any]]]:
    """The graphs among arguments, with their leaves."""
    leaves = pytree.tree_leaves(value, is_leaf=is_graph)
    return [(leaf, _leaves(leaf)[0]) for leaf in leaves if is_graph(leaf)]


def _places(stores: list[Any]) -> Iterator[Place]:
    """The attributes of a graph that are leaves of its tree."""
    has_count = any("ptr" in store._mapping for store in stores)  # `ptr` gives the number of graphs
    for number, store in enumerate(stores):
        for name, value in sorted(store._mapping.items()):
            if isinstance(value, LEAVES) or all(
                isinstance(leaf, LEAVES) for leaf in pytree.tree_leaves(value)
            ):
                yield number, name
        if COUNT in vars(store) and not has_count:
            yield number, COUNT


def _leaves(graph: Any) -> tuple[list[Any], tuple[Place, ...], tuple[str, ...]]:
    """The leaves of a graph with their positions, and the names of its parts."""
    stores = graph.stores
    places = tuple(_places(stores))
    leaves = [_owner(stores[number], name)[name] for number, name in places]
    return leaves, places, tuple(map(_name, stores))


def _flatten(graph: Any) -> tuple[list[Any], Form]:
    """The leaves of a graph, and the rest of the graph as a `Form`."""
    leaves, places, names = _leaves(graph)
    template = copy.copy(graph)
    parts = template.stores
    for number, name in places:
        del _owner(parts[number], name)[name]
    return leaves, Form(type(graph), names, places, template)


def _flatten_with_keys(graph: Any) -> tuple[list[tuple[Any, Any]], Form]:
    """The leaves with their names; without a stripped template, which torch takes from `_flatten`."""
    leaves, places, stores = _leaves(graph)
    names = [".".join(filter(None, (stores[number], name))) for number, name in places]
    keyed: list[tuple[Any, Any]] = [
        (pytree.MappingKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)
    ]
    return keyed, Form(type(graph), stores, places, graph)


def _unflatten(leaves: Iterable[Any], form: Form) -> Any:
    """A graph with some leaves; no other attributes while a model is captured."""
    graph = copy.copy(form.template)
    stores = graph.stores
    if capturing.inside:
        for store in stores:
            store._mapping.clear()
            for name in HIDDEN:
                vars(store).pop(name, None)
    for (number, name), leaf in zip(form.places, leaves, strict=True):
        _owner(stores[number], name)[name] = leaf
    return graph


def _owner(store: Any, name: str) -> Any:
    """The mapping of a part with a given attribute."""
    return vars(store) if name == COUNT else store._mapping


def _name(store: Any) -> str:
    """The type of the nodes or edges of a part, "" for a graph of one type."""
    key = vars(store).get("_key")
    return "__".join(key) if isinstance(key, tuple) else key or ""
