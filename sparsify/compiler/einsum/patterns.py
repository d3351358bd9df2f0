"""Patterns that tensors of a program share, and expressions that vanish outside one.

In: `A[i,j] * w[i,j]` and A. Out: the expression is confined to the pattern of A.
"""

from collections.abc import Iterable, Sequence

from sparsify.compiler.einsum.infer_format import infer_sparsity
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
from sparsify.compiler.einsum.sums import free_indices


def pattern_root(program: Program, name: str) -> str | None:
    """The tensor whose pattern `name` has, itself when it shares no other's, `None` when it is dense."""
    declared = program.declaration(name)
    while declared.pattern_of is not None:
        declared = program.declaration(declared.pattern_of)
    return None if declared.format.is_dense else declared.name


def is_confined(expr: Expr, root: str, indices: Sequence[str], declarations: Iterable[Declaration]) -> bool:
    """Whether `expr` is 0, by unstored zeros, wherever `root` has no entry at `indices`."""
    sharing = {d.name for d in declarations if d.fill == 0 and (d.name == root or d.pattern_of == root)}
    place = tuple(map(Index, indices))

    def confined(e: Expr) -> bool:
        match e:
            case Const(value):
                return value == 0
            case Access(tensor, at):
                return tensor in sharing and at == place
            case Cast(_, value):
                return confined(value)
            case Call("mul", (left, right)):
                return confined(left) or confined(right)
            case Call("div", (numerator, _)):
                return confined(numerator)
            case Call("neg" | "add" | "sub", args):
                return all(map(confined, args))
            case Call("where", (Stored(Access(tensor, at)), yes, no)) if confined(no):
                return (at == place and (tensor == root or tensor in sharing)) or confined(yes)
            case Call("where", (_, yes, no)):
                return confined(yes) and confined(no)
        return False

    return confined(expr)


def pattern_access(program: Program, access: Access) -> Access:
    """The access to the tensor whose pattern `access` follows, `S[h,i,j] -> M[i,j]`; itself without one.

    A result that is no more than known entries of one operand follows it, though it may have more modes.
    """
    declared = program.declaration(access.tensor)
    if declared.format.is_dense:
        return access
    if declared.pattern_of is not None:
        return pattern_access(program, Access(declared.pattern_of, access.indices))
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
    """What the target of `statement`, read as `access`, follows by this assignment."""
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
