"""Shared patterns of a program's tensors, and expressions confined to a pattern.

In: `A[i,j] * w[i,j]` and A. Out: the expression is confined to the pattern of A.
"""

from collections.abc import Iterable

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.shared_pattern import root_access
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Declaration,
    Expr,
    Index,
    Program,
    Stored,
)


def pattern_root(program: Program, access: Access) -> Access | None:
    """The access to the owner of the pattern of `access`, itself if the owner; `None` for a dense tensor."""
    declared = program.declaration(access.tensor)
    while declared.pattern_of is not None:
        root = program.declaration(declared.pattern_of)
        declared, access = root, root_access(declared, root, access)
    return None if declared.format.is_dense else access


def is_confined(expr: Expr, place: Access, declarations: Iterable[Declaration]) -> bool:
    """Whether `expr` is 0, by unstored zeros, at all unstored coordinates of `place`."""
    known = {declared.name: declared for declared in declarations}
    root = known.get(place.tensor)
    sharing = {d.name: d for d in known.values() if place.tensor in (d.name, d.pattern_of)}

    def is_there(access: Access) -> bool:
        declared = sharing.get(access.tensor)
        return declared is not None and root is not None and root_access(declared, root, access) == place

    def confined(e: Expr) -> bool:
        match e:
            case Const(value):
                return value == 0
            case Access(tensor):
                return is_there(e) and sharing[tensor].fill == 0
            case Cast(_, value):
                return confined(value)
            case Call("mul", (left, right)):
                return confined(left) or confined(right)
            case Call("div", (numerator, _)):
                return confined(numerator)
            case Call("neg" | "add" | "sub", args):
                return all(map(confined, args))
            case Call("where", (Stored(access), yes, no)) if confined(no):
                return is_there(access) or confined(yes)
            case Call("where", (_, yes, no)):
                return confined(yes) and confined(no)
        return False

    return confined(expr)


def pattern_access(program: Program, access: Access) -> Access:
    """The access to the tensor whose pattern `access` follows, `S[h,i,j] -> M[i,j]`; itself without one.

    A result stored only at entries of one operand follows the operand, even with further modes.
    """
    declared = program.declaration(access.tensor)
    if declared.format.is_dense:
        return access
    if declared.pattern_of is not None:
        return pattern_access(
            program, root_access(declared, program.declaration(declared.pattern_of), access)
        )
    followed: set[Access] = set()
    for statement in program.statements:
        if statement.target.tensor != access.tensor:
            continue
        found = _statement_pattern(program, statement, access)
        if found is None:
            return access
        followed.add(found)
    return followed.pop() if len(followed) == 1 else access


def _statement_pattern(program: Program, statement: Assign, access: Access) -> Access | None:
    """The pattern followed by the target of `statement`, read as `access`."""
    free = free_indices(statement.target)
    reduced = tuple(name for name in free_indices(statement.value) if name not in free)
    if reduced or any(not isinstance(index, Index) for index in statement.target.indices):
        return None
    pattern = infer_sparsity(statement.value, {d.name: d for d in program.declarations}).pattern
    if pattern is None:
        return None
    root = pattern_access(program, Access(*pattern))
    names = dict(zip(statement.target.indices, access.indices, strict=True))
    if any(index not in names for index in root.indices):
        return None
    return Access(root.tensor, tuple(names[index] for index in root.indices))
