"""Assembly of an adjoint program from statements: recomputed temporaries, inputs and declarations.

In: `d_A[i,j] = g[i,j] * w[i,j]` and the forward statement `w[i,j] = sum(k, Q[i,k] * K[j,k])`.
Out: the program of `d_A[i,j] = g[i,j] * sum(k, Q[i,k] * K[j,k])` with inputs A (for its pattern), g, Q and K.
"""

from collections.abc import Collection, Mapping, Sequence

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices, replace
from sparsify.compiler.einsum.rewrite.one_reduction import Flat
from sparsify.compiler.einsum.rewrite.simplify import simplify
from sparsify.compiler.einsum.rewrite.split_entry_sums import sums_apart
from sparsify.compiler.ir.node import find


def assemble(
    forward: Program,
    statements: Sequence[Assign],
    declarations: Mapping[str, Declaration],
    recomputed: Mapping[str, Flat],
    outputs: tuple[str, ...],
) -> Program:
    """The adjoint as a program.

    Args:
        declarations: declarations of gradients; those of temporaries are inferred.
        recomputed: inner reductions of `forward` by name; a reduction read once is inlined, the others become
            statements.
    """
    body = _recompute(needed(list(statements), outputs), recomputed, dict(forward.extents))
    assigned = {statement.target.tensor for statement in body}
    known = {d.name: d for d in forward.declarations if d.name not in recomputed} | dict(declarations)
    inputs = dict.fromkeys(name for s in body for name in _reads(s) if name not in assigned)
    for name in (*inputs, *(n for n in assigned if n in known)):
        root = known[name].pattern_of
        if root is not None and root not in assigned:
            inputs.setdefault(root)
    _add_shapes(inputs, forward, [known[name] for name in (*inputs, *assigned) if name in known])
    inputs = dict.fromkeys(name for name in known if name in inputs)
    kept = tuple(known[name] for name in known if name in inputs or name in assigned)
    return sums_apart(infer_format(Program(tuple(body), kept, tuple(inputs), outputs, forward.extents)))


def needed(statements: Sequence[Assign], outputs: Sequence[str]) -> list[Assign]:
    """The statements that the outputs depend on."""
    names = set(outputs)
    kept = []
    for statement in reversed(statements):
        if statement.target.tensor in names:
            kept.append(statement)
            names.update(_reads(statement))
    return kept[::-1]


def joined(statements: Sequence[Assign], outputs: Sequence[str]) -> list[Assign]:
    """`statements` with temporaries inlined that another statement reads once, entry by entry."""
    found = needed(statements, outputs)
    for target in [statement.target for statement in found]:
        statement = next(s for s in found if s.target == target)
        readers = [n for n, s in enumerate(found) if target in find(s.value, Access)]
        if target.tensor in outputs or len(readers) != 1 or isinstance(statement.value, Reduce):
            continue
        reader = found[readers[0]]
        reads = [n for n in find(reader.value, Access) if n.tensor == target.tensor]
        if (
            len(reads) == 1
            and set(reader.target.indices) == set(target.indices)
            and not _binds(reader, target)
        ):
            value = simplify(replace(reader.value, target, statement.value))
            found[readers[0]] = Assign(reader.target, reader.monoid, value)
            found.remove(statement)
    return found


def _binds(statement: Assign, access: Access) -> bool:
    """Whether a reduction in a statement binds an index variable of an access."""
    bound = {name for reduction in find(statement.value, Reduce) for name in reduction.indices}
    return any(isinstance(index, Index) and index.name in bound for index in access.indices)


def _recompute(
    statements: list[Assign], recomputed: Mapping[str, Flat], fixed: Collection[str]
) -> list[Assign]:
    """`statements` with the inner reductions of the forward program that they read."""
    for name in reversed(tuple(recomputed)):
        flat = recomputed[name]
        readers = [n for n, s in enumerate(statements) if name in _reads(s)]
        if len(readers) == 1 and _can_inline(statements[readers[0]], flat, fixed):
            statements[readers[0]] = _inline(statements[readers[0]], flat)
        elif readers:
            statements.insert(0, flat.assign())
    return statements


def _can_inline(statement: Assign, flat: Flat, fixed: Collection[str]) -> bool:
    """Whether a statement reads a temporary once, by plain index variables, without renaming a `fixed` extent.

    Random numbers belong to entries: a statement with further index variables would draw each number repeatedly.
    """
    accesses = [n for n in find(statement.value, Access) if n.tensor == flat.target.tensor]
    plain = len(accesses) == 1 and all(isinstance(index, Index) for index in accesses[0].indices)
    inner = set(all_indices((flat.assign(),))) - set(flat.indices)
    if len(all_indices((statement,))) > len(flat.indices) and any(map(is_random, find(flat.body, Call))):
        return False
    return plain and not (inner & set(fixed) & set(all_indices((statement,))))


def is_random(call: Call) -> bool:
    """Whether a call draws random numbers."""
    return call.function in FUNCTIONS and FUNCTIONS[call.function].is_random


def _inline(statement: Assign, flat: Flat) -> Assign:
    """`statement` with the single access of a temporary replaced by its value."""
    access = next(n for n in find(statement.value, Access) if n.tensor == flat.target.tensor)
    names = {
        own: at.name for own, at in zip(flat.indices, access.indices, strict=True) if isinstance(at, Index)
    }
    taken = set(all_indices((statement,)))
    for name in all_indices((flat.assign(),)):
        if name not in names and name in taken:
            names[name] = fresh(name, taken | set(names.values()))
    return replace(statement, access, rename_indices(flat.assign().value, names))


def _reads(statement: Assign) -> list[str]:
    """The tensors read by a statement."""
    return [node.tensor for node in find(statement.value, Access)]


def _add_shapes(inputs: dict[str, None], forward: Program, declared: Sequence[Declaration]) -> None:
    """Adds inputs of the forward program for extents missing from the other inputs."""
    fixed = {name for name, _ in forward.extents}
    given = {extent for d in declared if d.name in inputs for extent in d.extents} | fixed
    for extent in dict.fromkeys(extent for d in declared for extent in d.extents):
        if extent not in given:
            owner = next(d for d in forward.declarations if extent in d.extents and d.name in forward.inputs)
            inputs.setdefault(owner.name)
            given.update(owner.extents)
