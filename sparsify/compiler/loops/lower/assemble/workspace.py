"""Workspaces with a record of their entries in use: bits, a hash table, or a dense row with a list.

In: `let w[k] in thread listed: (... w[k] += ...); forall k: Y[i,k] = w[k]`. Out: the empty workspace, sums into it, and
the loop over its entries, by the kind of the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.lower.assemble import bitset_workspace, hash_workspace, list_workspace
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.notation import nodes as notation

Iterate = Callable[[Context, notation.Forall, Access, Environment], Lowered]


def begin(context: Context, let: notation.Let, temporary: notation.Temporary) -> Lowered:
    """An empty workspace."""
    if temporary.marked:
        return bitset_workspace.begin(context, temporary)
    if len(temporary.indices) > 1:
        return hash_workspace.begin(context, let, temporary)
    return list_workspace.begin(context, temporary)


def end(context: Context, temporary: notation.Temporary) -> Lowered:
    """Clears the record of a listed workspace."""
    if temporary.name in context.listed:
        return list_workspace.end(context, temporary)
    return hash_workspace.end(context, temporary)


def add(
    context: Context, target: Access, added: loops.Expr, combined: loops.Expr, env: Environment
) -> Lowered | None:
    """`added` in a new entry of a listed workspace, else `combined`; `None` for another target."""
    if target.tensor in context.tables:
        return hash_workspace.add(context, target, added, combined, env)
    if target.tensor in context.listed:
        return list_workspace.add(context, target, added, combined, env)
    return None


def iterate(context: Context, loop: notation.Forall, env: Environment) -> Lowered | None:
    """The loop over the entries in use of a workspace; `None` for another loop."""
    kinds: tuple[tuple[Iterate, Collection[str]], ...] = (
        (bitset_workspace.iterate, context.marked),
        (hash_workspace.iterate, context.tables),
        (list_workspace.iterate, context.listed),
    )
    if not any(names for _, names in kinds):
        return None
    written = {n.target.tensor for n in find(loop.body, Assign)}
    read = [n for n in find(loop.body, Access) if n.tensor not in written and Index(loop.index) in n.indices]
    for iterate_entries, names in kinds:
        for access in read:
            if access.tensor in names:
                return iterate_entries(context, loop, access, env)
    return None
