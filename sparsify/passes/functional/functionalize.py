"""In-place writes become pure operators: no operator changes a tensor read by another one.

In: `%r = select(%e, 0, 0); %w = add_(%r, 100); %s = select(%e, 0, 0)`, `%e` created in the graph.
Out: `%r = select(%e, 0, 0); %w = add(%r, 100); %n = select_scatter(%e, %w, 0, 0); %s = select(%n, 0, 0)`.

A write to a view is scattered back into the base tensor; later reads of the base tensor and of all its views read the
new value. Inputs, parameters and buffers get their last values in copies at the end of the graph. Aliasing is known
from the storages of the capture's fake tensors.

Source: functionalization of PyTorch, Yang et al., functorch, 2022.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.errors import CaptureError
from sparsify.passes.functional import layouts
from sparsify.passes.functional.pure_writes import (
    functional_form,
    is_list,
    is_view,
    pure_form,
    scatter,
    written_value,
)
from sparsify.passes.graph import operators
from sparsify.passes.graph.insert import call_before
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import is_inactive_dropout, operator_name, raw_name, tensor_value

aten: Final = torch.ops.aten
# Operators with fake results aliasing an operand, but real results in separate memory.
COPYING: Final = frozenset({"lift_fresh_copy"})
DETACHING: Final = frozenset({"detach", "detach_"})


@dataclass
class Storage:
    """Memory shared by tensors of the graph.

    Attributes:
        root: first tensor of the storage, with all entries.
        value: node that computes its current value.
        version: number of writes.
        is_tracked: whether gradients pass through one of the writes.
    """

    root: fx.Node
    value: fx.Node
    version: int = 0
    is_tracked: bool = False

    @property
    def is_outside(self) -> bool:
        """Whether the memory is an input, a parameter or a buffer."""
        return self.root.op in ("placeholder", "get_attr")


@dataclass
class Alias:
    """A tensor, or a list of tensors, in a storage.

    Attributes:
        node: captured node, a view of `base`; the result of a write is an alias of the written tensor.
        parent: alias of the viewed tensor; `None` for the root of the storage.
        base: node's operand in its parent.
        current: node that computes the alias's value at `version` of the storage.
    """

    storage: Storage
    node: fx.Node
    parent: "Alias | None"
    base: fx.Node | None
    current: fx.Node
    version: int

    def line(self) -> "Iterator[Alias]":
        """The alias and its chain of parents, to the root."""
        alias: Alias | None = self
        while alias is not None:
            yield alias
            alias = alias.parent

    @property
    def is_whole(self) -> bool:
        """Whether an alias is the storage's tensor itself, with shape and gradients changed in place."""
        return all(alias.parent is None or info(alias.node).is_itself for alias in self.line())


def functionalize(graph: fx.Graph) -> None:
    """Rewrites `graph` in place.

    Raises:
        CaptureError: a write has no pure form.
    """
    merge_results(graph)
    drop_nothing(graph)
    parents = views(graph)
    last = {
        root_of(target, parents): node
        for node in graph.nodes
        if is_writer(node)
        for target in written_operands(node)
    }
    for node in filter(layouts.gives_operand, parents):
        set_info(node, is_contiguous=True)
    if last:
        layouts.mark_inputs(graph, lambda node: root_of(node, parents), last)
        require_separate_memory(graph, parents, set(last))
        _Functionalize(graph, parents, set(last)).run()
    layouts.drop_contiguous(graph)


def merge_results(graph: fx.Graph) -> None:
    """`%a = getitem(%t, 0); %b = getitem(%t, 0)` -> `%a` for both."""
    first_results: dict[Any, fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        first = first_results.setdefault(node.args, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def drop_nothing(graph: fx.Graph) -> None:
    """`%d = dropout_(%x, 0.5, False)` -> `%d = dropout(%x, 0.5, False)`: inactive dropout writes nothing."""
    for node in graph.nodes:
        if is_inactive_dropout(node):
            node.target = functional_form(node.target) or node.target


def views(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The aliased operand of each node that shares memory with an operand."""
    bases: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if not node.op.startswith("call") or raw_name(node) in COPYING:
            continue
        if is_inactive_dropout(node):
            bases[node] = node.args[0]  # the result aliases the operand, the fake tensor is a copy
            continue
        for operand in node.all_input_nodes:
            is_made = is_list(operand) and operand not in bases  # each tensor of the list has separate memory
            if not is_made and memory_of(node) & memory_of(operand):
                bases[node] = operand
                break
    return bases


def memory_of(node: fx.Node) -> frozenset[int]:
    """The addresses of the fake storages of a tensor, or of the tensors of a list."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, (list, tuple)) else [value]
    strided = (one for one in tensors if isinstance(one, Tensor) and one.layout is torch.strided)
    return frozenset(int(one.untyped_storage()._cdata) for one in strided)


def root_of(node: fx.Node, parents: dict[fx.Node, fx.Node]) -> fx.Node:
    """The base tensor of `node`, through all views."""
    while node in parents:
        node = parents[node]
    return node


def is_writer(node: fx.Node) -> bool:
    """Whether `node` writes into a tensor."""
    return node.op == "call_function" and operators.is_mutating(node) and bool(written_operands(node))


def written_operands(node: fx.Node) -> list[fx.Node]:
    """The operands overwritten by an operator."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [one for one in node.args[:1] if isinstance(one, fx.Node) and memory_of(one)]
    written: list[fx.Node] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            fx.map_arg(operators.argument(node, position, argument.name), written.append)
    return written


def require_separate_memory(graph: fx.Graph, parents: dict[fx.Node, fx.Node], written: set[fx.Node]) -> None:
    """Raises where an overwritten tensor shares memory with another one outside of a single chain of views."""
    root_of_address: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and all(raw_name(user) in COPYING for user in node.users):
            continue
        if is_list(node) and node not in parents:
            continue  # each tensor of the list has separate memory
        root = root_of(node, parents)
        others = {root_of_address.setdefault(address, root) for address in memory_of(node)} - {root}
        if is_list(node) and node in parents:
            sharing = [one for one in node.all_input_nodes if memory_of(one) & memory_of(node)]
            others |= {root_of(one, parents) for one in sharing[1:]}
        for other in others:
            if {root, other} & written:
                raise CaptureError(
                    f"the model writes into memory that {other.target} and {node.target} share"
                )


class _Functionalize:
    """The rewriting of one graph, from first node to last."""

    def __init__(self, graph: fx.Graph, parents: dict[fx.Node, fx.Node], written: set[fx.Node]) -> None:
        self.graph, self.parents = graph, parents
        self.aliases = {root: Alias(Storage(root, root), root, None, None, root, 0) for root in written}
        self.replaced: list[fx.Node] = []

    def run(self) -> None:
        """Rewrites every node."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                self.write_back(node)
                self.refresh_operands(node)
                break
            targets = [self.aliases[one] for one in written_operands(node)] if is_writer(node) else []
            operand = self.parents.get(node)
            parent = None if operand is None else self.aliases.get(operand)
            self.refresh_operands(node)
            if targets:
                self.rewrite(node, targets)
            elif parent is not None:
                if node.target is aten.view.default:
                    node.target = aten.reshape.default  # new values may have other strides
                self.add_view(node, parent)
        for node in self.replaced:
            self.graph.erase_node(node)

    def add_view(self, node: fx.Node, parent: Alias) -> None:
        """Records a view of a refreshed alias."""
        storage = parent.storage
        self.aliases[node] = Alias(storage, node, parent, parent.current, node, storage.version)

    def refresh_operands(self, node: fx.Node) -> None:
        """Makes `node` read current values."""
        node.args = fx.map_arg(node.args, lambda one: self.read(one, node))
        node.kwargs = fx.map_arg(node.kwargs, lambda one: self.read(one, node))

    def read(self, node: fx.Node, user: fx.Node) -> fx.Node:
        """The current value of a captured node."""
        alias = self.aliases.get(node)
        return node if alias is None else self.current(alias, user)

    def current(self, alias: Alias, user: fx.Node) -> fx.Node:
        """The current value of an alias; a view is computed again, before `user`, after a write."""
        if alias.version == alias.storage.version:
            return alias.current
        if alias.parent is None:
            alias.current = alias.storage.value
        else:
            base = self.current(alias.parent, user)
            with self.graph.inserting_before(user):
                copy = self.graph.node_copy(alias.node, lambda one: base if one is alias.base else one)
            alias.current = copy
        alias.version = alias.storage.version
        return alias.current

    def rewrite(self, node: fx.Node, targets: list[Alias]) -> None:
        """Replaces a write by a pure operator."""
        form = pure_form(node)
        if len(targets) != 1 or form is None:
            raise CaptureError(f"the model writes in place by {node.target}, which has no pure form")
        (target,) = targets
        if is_view(form):
            is_outside = target.storage.is_outside and target.is_whole
            if is_outside and raw_name(node) != "detach_":
                raise CaptureError(f"the model changes the shape of {target.storage.root.target} in place")
            node.target = form
            set_info(node, is_itself=True)
            self.add_view(node, target)
            return
        behind = node.next
        value = written_value(node, target.current, form)
        if node not in (value, *value.all_input_nodes):
            self.replaced.append(node)
        set_info(value, is_write=value is node)
        self.write(target, value, behind, is_tracked=not info(node).has_no_grad)
        self.aliases[node] = target

    def write(self, target: Alias, value: fx.Node, user: fx.Node, *, is_tracked: bool) -> None:
        """Sets the value of an alias.

        Args:
            user: insertion point of new nodes.
            is_tracked: whether gradients pass through the write.
        """
        storage = target.storage
        version = storage.version + 1
        for alias in target.line():
            if is_tracked and not is_list(alias.node):
                alias.current, alias.version = value, version
            if alias.parent is not None:
                is_tracked = is_tracked and raw_name(alias.node) not in DETACHING
                base = self.current(alias.parent, user)
                value = scatter(alias.node, base, value, user)
                if info(value).is_write is None:
                    set_info(value, is_write=operator_name(value).endswith("_scatter"))
        if not is_tracked and has_gradients(value):
            needs = storage.is_tracked or needs_gradient(storage.root)
            target_of = (with_values, storage.value, value) if needs else (aten.detach.default, value)
            value = call_before(user, *target_of)
        storage.value, storage.version = value, version
        storage.is_tracked = storage.is_tracked or is_tracked

    def write_back(self, output: fx.Node) -> None:
        """Copies the last values of inputs, parameters and buffers back, before `output`."""
        storages = {id(alias.storage): alias.storage for alias in self.aliases.values()}
        for storage in storages.values():
            if not storage.is_outside or not storage.version:
                continue
            old, new = storage.root, storage.value
            if has_gradients(new) and not storage.is_tracked:
                old, new = (call_before(output, aten.detach.default, one) for one in (old, new))
            with self.graph.inserting_before(output):
                copy = self.graph.call_function(aten.copy_.default, (old, new))
            copy.meta["val"] = old.meta["val"]
            storage.value = storage.root
            storage.version += 1


def has_gradients(node: fx.Node) -> bool:
    """Whether a tensor has a dtype with gradients."""
    value = tensor_value(node)
    return value is not None and (value.is_floating_point() or value.is_complex())


def needs_gradient(root: fx.Node) -> bool:
    """Whether a tensor may require a gradient, because a parameter or an input determines its values."""
    followed = filter(has_gradients, operators.ancestors([root], has_gradients))
    return any(node.op == "placeholder" or info(node).is_parameter for node in followed)


def with_values(tensor: Tensor, values: Tensor) -> Tensor:
    """New values with the gradients of a tensor, as after a write under `torch.no_grad()`."""
    result = tensor.clone()
    result.detach().copy_(values.detach())
    return result
