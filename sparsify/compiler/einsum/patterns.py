"""Patterns that tensors of a program share, and expressions that vanish outside one.

In: `A[i,j] * w[i,j]` and A. Out: the expression is confined to the pattern of A.
"""

from collections.abc import Iterable, Sequence

from sparsify.compiler.einsum.nodes import Access, Call, Const, Declaration, Expr, Index, Program, Stored


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
