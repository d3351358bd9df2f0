"""Inlining of statements into their readers, if memory traffic drops and no work is repeated.

In: `t[j,k] = x[k,j]; m[i,j] = sum(k, x[i,k] * t[k,j]); y[i,j] = a[i,j] * m[i,j]` with a sparse a, demanded by m.
Out: `y[i,j] = a[i,j] * sum(k, x[i,k] * x[j,k])`.

Views and numbers are always inlined, products of sums into each other (`contract` finds their order), entrywise
statements where the reader iterates over the same coordinates. A statement read by opaque operators is kept as well.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Index,
    Reduce,
    Stored,
)
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import MATRIX, ModelProgram
from sparsify.passes.region.region import substitute
from sparsify.passes.rewrite.simplify import (
    depth,
    enclosing,
    factors,
    functions_of,
    is_multilinear,
    join_sums,
    renamed,
    simplify,
)

# Functions cheaper than reading a stored result.
ARITHMETIC: Final = frozenset(
    ("mul", "neg", "add", "sub", "div", "relu", "max", "min", "square", "abs", "detach")
)
LOGIC: Final = frozenset(
    ("where", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or")
)
CHEAP: Final = ARITHMETIC | LOGIC
# Maximum depth of expressions, which passes walk recursively.
DEEPEST: Final = 60


def inline(
    program: ModelProgram,
    storage: Storage,
    outside_reads: Collection[str],
    which: Callable[[Assign], bool] = lambda statement: True,
) -> None:
    """Inlines statements of a program, in place, until no rule applies.

    Args:
        storage: storage of tensors.
        outside_reads: tensors read by opaque operators or the caller.
        which: predicate of statements that may be inlined.
    """
    readers = program.readers()
    waiting = list(program.statements)[::-1]  # producers first: a sampled product joins its scaling
    while waiting:
        name = waiting.pop()
        consumers = sorted(readers.get(name, ())) if name in program.statements else []
        if not consumers or not which(program.statements[name]):
            continue
        statement, inputs = program.statements[name], program.reads(name)
        count = sum(
            access.tensor == name for r in consumers for access in find(program.statements[r].value, Access)
        )
        fitting = [
            r for r in consumers if may_inline(program, storage, name, r, count, name in outside_reads)
        ]
        if len(fitting) < len(consumers) and not is_view(statement):
            continue
        for reader in fitting:
            consumer, before = program.statements[reader], program.reads(reader)
            value = joined(simplify(placed(program, consumer.value, statement)))
            program.statements[reader] = replace(consumer, value=value)
            for tensor in before:
                readers[tensor].discard(reader)
            for tensor in program.reads(reader):
                readers.setdefault(tensor, set()).add(reader)
                waiting += [tensor] if tensor in program.statements else []
        if len(fitting) == len(consumers) and name not in outside_reads:
            del program.statements[name]
            for tensor in inputs:
                readers[tensor].discard(name)


def is_view(statement: Assign) -> bool:
    """Whether a statement only renames or selects entries of another tensor, or has a number in each."""
    value = statement.value
    return isinstance(value, Access | Const | Index) or (
        isinstance(value, Cast) and isinstance(value.value, Const)
    )


def may_inline(
    program: ModelProgram, storage: Storage, name: str, reader: str, count: int, is_kept: bool
) -> bool:
    """Whether a statement may be inlined into a reader.

    Args:
        count: total number of accesses by all readers.
        is_kept: whether the statement is computed in any case.
    """
    producer, consumer = program.statements[name], program.statements[reader]
    sums = [part for part in find(consumer.value, Reduce) if program.reads_weight(part)]
    is_multiplied = any(access.tensor == name for part in sums for access in find(part, Access))
    match producer.value:
        case Const() | Cast() if is_multiplied:
            return False
        case Const() | Index():
            return True
        case Cast(dtype, Const()):  # a number in a statement of the same dtype needs no cast
            return dtype == program.dtypes[reader]
        case Access(tensor, indices):
            # Slices of a dense tensor cost nothing as views of torch, and a lot inside of loops.
            return all(isinstance(index, Index) for index in indices) or storage.is_sparse(tensor)
    if is_multiplied or depth(producer.value) + depth(consumer.value) > DEEPEST:
        return False  # a layer's kernel reads a packed weight and a tensor, and recomputes nothing
    functions = functions_of(producer.value)
    reduces, consumes = bool(find(producer.value, Reduce)), bool(find(consumer.value, Reduce))
    is_cheap = storage.is_sparse(name) and not reduces and functions <= CHEAP
    is_cheap = is_cheap and len(find(producer.value, Access)) == 1
    if is_kept or (count > 1 and not is_cheap):
        return False
    access = next(a for a in find(consumer.value, Access) if a.tensor == name)
    if not all(isinstance(index, Index) for index in access.indices) or len(set(access.indices)) < len(
        access.indices
    ):
        return False
    loops = {str(index) for index in consumer.target.indices} | enclosing(consumer.value, name)
    is_equal = loops == {str(index) for index in access.indices}
    if program.reads_weight(producer.value) and not is_of_rows(storage, consumer, access):
        return False
    if program.reads_weight(consumer.value) and any(map(storage.is_sparse, program.reads(name))):
        return False  # a kernel of a layer reads one sparse tensor
    product = product_with(consumer.value, access)
    if product is not None and is_sampled_vector(producer, access, product):
        return not storage.is_found(name)
    if product is not None and is_multilinear(producer.value) and not program.reads_weight(producer.value):
        reads_sparse = [
            any(storage.is_sparse(a.tensor) for a in find(value, Access))
            for value in (producer.value, product)
        ]
        return not all(reads_sparse) and not storage.is_found(name)
    if reduces:
        return is_equal and (storage.is_sparse(reader) or not consumes)
    return is_equal or functions <= CHEAP


def is_of_rows(storage: Storage, consumer: Assign, product: Access) -> bool:
    """Whether a statement is entrywise over a product, without operands that vary along some rows only.

    `relu(y[b,t,k] + z[k])`, but not `y[b,t,k] + z[t,k]` nor `y[t,b,k]`: kernels see all rows as one mode.
    """
    target_indices = consumer.target.indices
    others = [access for access in find(consumer.value, Access) if access != product]
    if product.indices != target_indices or any(storage.is_sparse(access.tensor) for access in others):
        return False
    return len(target_indices) <= MATRIX or all(
        access.indices in (target_indices, target_indices[-1:], ()) for access in others
    )


def is_sampled_vector(producer: Assign, access: Access, product: Reduce) -> bool:
    """Whether a product's factor samples sums of products with several results per entry.

    `sum(j, A[i,j] * t[i,j,k])` with `t[i,j,k] = where(stored(A[i,j]), sum(g, x[i,g] * z[j,g,k]), 0)`: a vector per
    entry is more to write and read than the products of one sum, whose order `contract` finds.
    """
    match producer.value:
        case Call("where", (Stored(sampling), Reduce() as total, Const(0))) if is_multilinear(total):
            index_map = dict(zip(map(str, producer.target.indices), access.indices, strict=True))
            entry = substitute(sampling, index_map)
            return entry in factors(product.body) and len(sampling.indices) < len(access.indices)
    return False


def product_with(value: Expr, access: Access) -> Reduce | None:
    """The sum of products in an expression with an access as a factor."""
    sums = (part for part in find(value, Reduce) if is_multilinear(part))
    return next((total for total in sums if access in factors(total.body)), None)


def placed(program: ModelProgram, value: Expr, producer: Assign) -> Expr:
    """`value` with each access to a statement's target replaced by the statement's value."""
    target_names = [str(index) for index in producer.target.indices]
    bound = {name for reduction in find(producer.value, Reduce) for name in reduction.indices}

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and node.tensor == producer.target.tensor:
            fresh = {name: program.index(program.extents[name]) for name in bound}
            value = (
                producer.value.value
                if is_view(producer) and isinstance(producer.value, Cast)
                else producer.value
            )
            value = substitute_extents(
                renamed(value, fresh), dict(zip(target_names, node.indices, strict=True))
            )
            return substitute(value, dict(zip(target_names, node.indices, strict=True)))
        return join_sums(map_children(node, visit))

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def joined(value: Expr) -> Expr:
    """An expression with nested sums of products flattened: `sum(j, A * sum(g, X)) -> sum(j, g, A * X)`."""

    def visit(node: Node) -> Node:
        return join_sums(map_children(node, visit))

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def substitute_extents(value: Expr, indices: Mapping[str, Expr]) -> Expr:
    """`extent(i) -> extent(j)` for replaced index variables."""

    def visit(node: Node) -> Node:
        if isinstance(node, Extent):
            other = indices.get(node.name)
            return Extent(other.name) if isinstance(other, Index) else node
        return map_children(node, visit)

    result = visit(value)
    assert isinstance(result, Expr)
    return result
