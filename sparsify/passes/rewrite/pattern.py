"""Pattern conditions made explicit: a statement iterates over stored coordinates, without further tests.

In: `s[i,j] = where(logical_and(b[j], m[i,j]), f, -inf)`, m with all stored values True. Out: `s[i,j] =
where(stored(m[i,j]), where(b[j], f, -inf), -inf)`.
"""

from collections.abc import Collection
from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Stored
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.rewrite.simplify import simplify


def by_patterns(
    program: ModelProgram, storage: Storage, patterns: Collection[str], full_patterns: Collection[str]
) -> None:
    """`t[i,j] = f -> t[i,j] = where(stored(m[i,j]), where(m[i,j], f, c), c)`, in place, if f is c outside m.

    Args:
        patterns: leaves that are patterns.
        full_patterns: patterns with all stored values True, whose values need no read.
    """
    for name, statement in program.statements.items():
        for access in find(statement.value, Access):
            sparsity = storage.sparsity(statement.value)
            if access.tensor in patterns and sparsity.pattern == (access.tensor, access.indices):
                assert sparsity.fill is not None, "what has a pattern has a fill"
                value, fill = statement.value, Const(sparsity.fill)
                if program.dtypes[access.tensor] == "bool":
                    value = simplify(assumed(value, access))
                    value = value if access.tensor in full_patterns else Call("where", (access, value, fill))
                restricted = Call("where", (Stored(access), value, fill))
                program.statements[name] = replace(statement, value=restricted)
                break


def assumed(value: Expr, condition: Expr) -> Expr:
    """An expression under an assumed condition: `logical_and(b, True) -> b`."""

    def visit(node: Node) -> Node:
        if node == condition:
            return Const(True)
        node = map_children(node, visit)
        match node:
            case Call("logical_and", (Const(True), other)) | Call("logical_and", (other, Const(True))):
                return other
        return node

    result = visit(value)
    assert isinstance(result, Expr)
    return result
