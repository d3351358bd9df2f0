"""Partial sums: sums computed separately for parts of the entries, and added up afterwards.

In: `let s[pi]: (forall po: forall pi: s[pi] += A[i,j] * x[j]); forall pi: w += s[pi]`, entries by `po` and `pi`.
Out: `{"w": "sum"}`: `w` is the sum of the partial results of all parts.
"""

from collections.abc import Iterator, Set

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, children, find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, If, Let

Assigns = list[tuple[Assign, frozenset[str]]]


def summed_apart(statement: Node, entries: Set[str]) -> dict[str, str]:
    """The outer tensors receiving sums in a statement, with their monoids; none if partial sums cannot be added up.

    Values reduced over entries may be added to other sums over entries, by the same monoid, and have no other use.

    Args:
        entries: the loops over entries, to be run in parts.
    """
    lets = [node for node in _outside(statement, entries) if isinstance(node, Let)]
    local = {t.name for let in lets for t in let.temporaries}
    # Temporaries of one entry, or of a group of entries.
    inner = {t.name for let in find(statement, Let) for t in let.temporaries} - local
    assigns = list(_assigns(statement, entries, frozenset()))
    partial = _partial([(assign, loops) for assign, loops in assigns if assign.target.tensor not in inner])
    written = {assign.target.tensor for assign, _ in assigns} - inner - local
    conditions = {access.tensor for node in find(statement, If) for access in find(node.condition, Access)}
    if not written <= partial.keys() or conditions & partial.keys():
        return {}
    if all(_is_added(assign, loops, partial) for assign, loops in assigns):
        return {name: partial[name] for name in partial if name in written}
    return {}


def _partial(assigns: Assigns) -> dict[str, str]:
    """The tensors with results of some of the entries, with the monoid of each."""
    found: dict[str, str] = {}
    for assign, loops in assigns:
        is_passed_on = any(access.tensor in found for access in find(assign.value, Access))
        if loops or is_passed_on:
            found.setdefault(assign.target.tensor, assign.monoid or "")
    return found


def _is_added(assign: Assign, loops: frozenset[str], partial: dict[str, str]) -> bool:
    """Whether an assignment adds a whole partial sum to another one, once, or involves none."""
    name, monoid = assign.target.tensor, assign.monoid
    if name in partial and (monoid is None or partial[name] != monoid):
        return False
    if not partial.keys() & {access.tensor for access in find(assign.value, Access)}:
        return True
    value = assign.value
    is_whole = isinstance(value, Access) and name in partial and loops <= set(index_names(value))
    return is_whole and isinstance(value, Access) and partial[value.tensor] == monoid


def _outside(node: Node, entries: Set[str]) -> Iterator[Node]:
    """The nodes outside of loops over entries."""
    yield node
    if not (isinstance(node, Forall) and node.index in entries):
        for child in children(node):
            yield from _outside(child, entries)


def _assigns(
    node: Node, entries: Set[str], around: frozenset[str]
) -> Iterator[tuple[Assign, frozenset[str]]]:
    """The assignments in order, each with the surrounding loops over entries."""
    if isinstance(node, Assign):
        yield node, around
        return
    if isinstance(node, Forall) and node.index in entries:
        around = around | {node.index}
    for child in children(node):
        yield from _assigns(child, entries, around)
