"""Backward sparsity: a dense tensor read only at stored coordinates of a pattern is computed only at these coordinates.

`y[i,j] = g[i,j] * t[i,j]`, `where(g[i,j], t[i,j], c)` and `m[i,j] + t[i,j]` with unstored entries -inf in m read t only
at stored coordinates of g or m: `t[i,j] = f -> t[i,j] = where(stored(g[i,j]), f, 0)`. Sampled products, masked
attention and experts behind a gate are instances of this rule.
"""

from collections.abc import Collection
from dataclasses import replace
from math import inf

from sparsify.compiler.einsum.infer.sparsity import Sparsity
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Reduce, Stored
from sparsify.compiler.ir.node import children, find
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import ModelProgram

# A tensor and the index variables of its access.
Pattern = tuple[str, tuple[Expr, ...]]


def demand(program: ModelProgram, storage: Storage, outside_reads: Collection[str]) -> bool:
    """Restricts the last statement needed only under a pattern; returns whether one was found.

    Args:
        outside_reads: tensors read by opaque operators or the caller, in all entries.
    """
    readers = program.readers()
    for name in reversed(program.statements):
        statement = program.statements[name]
        if name in outside_reads or storage.is_sparse(name) or not find(statement.value, Access):
            continue
        consumers = [program.statements[reader] for reader in readers.get(name, ())]
        if any(program.reads_weight(consumer.value) for consumer in consumers):
            continue  # kernels of layers read rows of dense tensors
        patterns = [guards(consumer, statement, storage) for consumer in consumers]
        common = set.intersection(*patterns) if patterns else set()
        for tensor, indices in sorted(common, key=str):
            if tensor != name and not follows(program, tensor, name):
                pattern = Stored(Access(tensor, indices))
                program.statements[name] = replace(
                    statement, value=Call("where", (pattern, statement.value, Const(0)))
                )
                program.order()
                return True
    return False


def follows(program: ModelProgram, tensor: str, other: str) -> bool:
    """Whether a tensor is computed from another one."""
    visited, waiting = set(), [tensor]
    while waiting:
        name = waiting.pop()
        if name == other:
            return True
        if name not in visited:
            visited.add(name)
            waiting += program.inputs_of(name)
    return False


def guards(consumer: Assign, producer: Assign, storage: Storage) -> set[Pattern]:
    """The patterns, in the producer's index variables, outside of which a consumer ignores the producer."""
    name, target_indices = producer.target.tensor, producer.target.indices
    by_access: list[set[Pattern]] = []

    def visit(expr: Expr, active: frozenset[Pattern]) -> None:
        match expr:
            case Access(tensor, indices) if tensor == name:
                back = dict(zip(indices, target_indices, strict=True))
                if len(back) == len(indices) and all(isinstance(index, Index) for index in indices):
                    fitting = [p for p in active if all(index in back for index in p[1])]
                    by_access.append({(p[0], tuple([back[index] for index in p[1]])) for p in fitting})
                else:
                    by_access.append(set())
            case Access() | Const() | Stored():
                return
            case Reduce(monoid, _, body) if monoid != "sum" and not is_choice(body):
                visit(body, frozenset())
            case Call("mul", (left, right)):
                visit(left, active | stored_where(right, storage))
                visit(right, active | stored_where(left, storage))
            case Call("div", (left, right)):
                visit(left, active)
                visit(right, active | stored_where(left, storage))
            case Call("where", (condition, yes, no)):
                visit(condition, active)
                visit(yes, active | stored_where(condition, storage))
                visit(no, active | pattern_of(storage.sparsity(condition), (1, True)))
            case Call("add", (left, right)):
                visit(left, active | pattern_of(storage.sparsity(right), (-inf,)))
                visit(right, active | pattern_of(storage.sparsity(left), (-inf,)))
            case _:
                for child in children(expr):
                    if isinstance(child, Expr):
                        visit(child, active)

    visit(consumer.value, frozenset())
    return set.intersection(*by_access) if by_access else set()


def is_choice(expr: Expr) -> bool:
    """Whether an expression is a `where(..)`."""
    return isinstance(expr, Call) and expr.function == "where"


def stored_where(expr: Expr, storage: Storage) -> frozenset[Pattern]:
    """The patterns outside of which an expression is 0 or False."""
    patterns = pattern_of(storage.sparsity(expr), (0, False))
    if not patterns and isinstance(expr, Call) and expr.function in ("mul", "logical_and"):
        return stored_where(expr.args[0], storage) | stored_where(expr.args[1], storage)
    return patterns


def pattern_of(sparsity: Sparsity, fills: Collection[float | bool]) -> frozenset[Pattern]:
    """The pattern of an expression whose fill is among given ones."""
    if sparsity.fill is None or sparsity.is_number or sparsity.pattern is None or sparsity.fill not in fills:
        return frozenset()
    return frozenset((sparsity.pattern,))
