"""New nodes of a graph, with fake results."""

from typing import Any

from torch import fx


def call(target: Any, *args: Any) -> fx.Node:
    """A new node at the insertion point of its graph, with its fake result."""
    nodes: list[fx.Node] = []
    fx.map_arg(args, nodes.append)
    node = nodes[0].graph.call_function(target, args)
    node.meta["val"] = target(*fx.map_arg(args, lambda n: n.meta["val"]))
    return node


def call_before(user: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A new node before another node, in the same module."""
    with user.graph.inserting_before(user):
        node = call(target, *args)
    if "nn_module_stack" in user.meta:
        node.meta["nn_module_stack"] = user.meta["nn_module_stack"]
    return node


def put_behind(node: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A new node that reads another node, and replaces the other node for all readers."""
    users = dict(node.users)
    with node.graph.inserting_after(node):
        new = call(target, node, *args)
    for user in users:
        user.replace_input_with(node, new)
    return new


def move_behind_inputs(node: fx.Node) -> None:
    """Moves a node after its inputs, and its readers in between after the node, in their order."""
    later = [read for read in node.all_input_nodes if node < read]
    if not later:
        return
    last = max(later)
    behind, at = {node: None}, node.next
    while at is not last:
        if any(read in behind for read in at.all_input_nodes):
            behind[at] = None
        at = at.next
    for moved in behind:
        last.append(moved)
        last = moved
