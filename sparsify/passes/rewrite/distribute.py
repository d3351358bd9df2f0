"""Sums over a sparse term plus another term, distributed: neither term is made dense.

In: `l[i,j] = where(i == j, d[i], 0) - a[i,j]; y[i,k] = sum(j, l[i,j] * x[j,k])` with a sparse a.
Out: `y[i,k] = d[i] * x[i,k] - sum(j, a[i,j] * x[j,k])`.

The terms may be sparse, diagonals, `where(i == j, f, 0)`, or products with the modes of the sum in different factors,
as `m[i]` and `sum(r, u[i,r] * v[r,j])`. Tensors with readers other than sums, or read other than as a factor, are
unchanged.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Extent, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.program.infer import Storage, number_of
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.region.region import substitute
from sparsify.passes.rewrite.inline import placed
from sparsify.passes.rewrite.simplify import factors, is_multilinear, join_sums, renamed, simplify

# A sign and a product.
Term = tuple[int, Expr]
# Maximum number of terms of a tensor.
MOST: Final = 4


def distribute(program: ModelProgram, storage: Storage, outside_reads: Collection[str]) -> None:
    """Sums the terms of dense tensors with sparse terms one by one, in place.

    Args:
        storage: storage of tensors.
        outside_reads: tensors read by opaque operators or the caller.
    """
    changed = set[str]()
    # Products with weights are separate regions.
    layers = {name for name, other in program.statements.items() if program.reads_weight(other.value)}
    for name in list(program.statements):
        if (
            name in layers
            or name in outside_reads
            or name not in program.statements
            or is_zero_outside(storage, name)
        ):
            continue
        statement = with_products(program, name, {*outside_reads, *layers})
        if not is_split(storage, statement):
            continue
        readers = program.readers().get(name, set())
        if not readers or not all(
            is_summed(program, name, reader, outside_reads, layers) for reader in readers
        ):
            continue
        for reader in readers:
            consumer = program.statements[reader]
            program.statements[reader] = replace(consumer, value=placed(program, consumer.value, statement))
        changed |= readers
        for joined in (name, *(read for read in program.reads(name) if not reads(statement.value, read))):
            del program.statements[joined]
    for name in [name for name in program.statements if name in changed]:
        sum_by_terms(program, storage, name)
    if changed:
        program.order()


def with_products(program: ModelProgram, name: str, outside_reads: Collection[str]) -> Assign:
    """A statement with inlined terms, where a term is a matrix product without other readers."""
    statement, readers = program.statements[name], program.readers()
    for read in program.reads(name):
        producer = program.statements.get(read)
        is_own = read not in outside_reads and readers[read] == {name}
        if (
            producer is not None
            and is_own
            and is_multilinear(producer.value)
            and is_linear(statement.value, read)
        ):
            statement = replace(statement, value=placed(program, statement.value, producer))
    return statement


def is_split(storage: Storage, statement: Assign) -> bool:
    """Whether a tensor is a sum of terms, each cheaper to sum than the tensor, and at least one sparse."""
    target_names = set(map(str, statement.target.indices))
    terms = list(summands(storage, statement.value))
    kinds = [is_sparse(storage, term) or bool(diagonals(term)) for _, term in terms]
    return (
        (1 < len(terms) <= MOST or bool(diagonals(terms[0][1])))
        and any(kinds)
        and all(
            kind or is_separable(storage, term, target_names)
            for kind, (_, term) in zip(kinds, terms, strict=True)
        )
    )


def is_zero_outside(storage: Storage, name: str) -> bool:
    """Whether a tensor is stored sparse with fill 0: its products omit all else already."""
    return storage.is_sparse(name) and storage.declarations[name].fill == 0


def is_sparse(storage: Storage, expr: Expr) -> bool:
    """Whether an expression is 0 outside of a pattern."""
    sparsity = storage.sparsity(expr)
    return sparsity.fill is not None and not sparsity.is_number and sparsity.fill == 0


def diagonals(expr: Expr) -> list[Expr]:
    """The factors of the form `where(i == j, f, 0)` in a product."""
    return [factor for factor in factors(expr) if ends_of(factor) is not None]


def ends_of(expr: Expr) -> tuple[str, str] | None:
    """`i` and `j` of `where(i == j, f, 0)`, `None` for any other expression."""
    match expr:
        case Call("where", (Call("eq", (Index(i), Index(j))), _, Const(value))) if value == 0 and i != j:
            return i, j
    return None


def is_separable(storage: Storage, term: Expr, target_names: set[str]) -> bool:
    """Whether each factor of a term reads at most one mode, joined over at most half as many coordinates."""
    extents = storage.program.extents
    joined = [extents[name] for reduction in find(term, Reduce) for name in reduction.indices]
    sizes = [number_of(extents[name]) for name in target_names]
    parts = list(factors(term))
    return (
        all(isinstance(part, Access | Const) or is_multilinear(part) for part in parts)
        and all(len(target_names & {str(index) for index in a.indices}) < 2 for a in find(term, Access))
        and all(isinstance(size, int) for size in joined)
        and (not joined or 2 * prod(joined) <= min(sizes, default=0))
    )


def summands(storage: Storage, expr: Expr, sign: int = 1) -> Iterator[Term]:
    """The terms of an expression; sums without a sparse or diagonal term are one."""
    match expr:
        case Call("add", (left, right)):
            terms = [*summands(storage, left, sign), *summands(storage, right, sign)]
        case Call("sub", (left, right)):
            terms = [*summands(storage, left, sign), *summands(storage, right, -sign)]
        case Call("neg", (value,)):
            terms = list(summands(storage, value, -sign))
        case Call("div", (value, divisor)):
            terms = [(s, Call("div", (term, divisor))) for s, term in summands(storage, value, sign)]
        case Call("mul", (left, right)):
            others = list(summands(storage, right))
            terms = [
                (s * t, Call("mul", (first, second)))
                for s, first in summands(storage, left, sign)
                for t, second in others
            ]
        case _:
            terms = [(sign, expr)]
    if any(is_sparse(storage, term) or diagonals(term) for _, term in terms):
        yield from terms
    else:
        yield sign, expr


def is_summed(
    program: ModelProgram, name: str, reader: str, outside_reads: Collection[str], layers: Collection[str]
) -> bool:
    """Whether a statement has a tensor as a factor of its sums, directly or through linear statements."""
    value = program.statements[reader].value
    if reader in layers or not is_linear(value, name):
        return False
    sums = [part for part in find(value, Reduce) if reads(part, name)]
    if sums:
        return all(part.monoid == "sum" for part in sums)
    readers = program.readers().get(reader, set())
    return reader not in outside_reads and bool(readers) and all(
        is_summed(program, reader, further, outside_reads, layers) for further in readers
    )  # fmt: skip


def is_linear(expr: Expr, name: str) -> bool:
    """Whether each term of an expression has a tensor as a factor once, or not at all."""
    if not reads(expr, name):
        return True
    match expr:
        case Access(_, indices):
            return all(isinstance(index, Index) for index in indices) and len(set(indices)) == len(indices)
        case Reduce("sum", _, body):
            return is_linear(body, name)
        case Call("add" | "sub", args):
            return all(is_linear(arg, name) for arg in args)
        case Call("neg", (value,)):
            return is_linear(value, name)
        case Call("mul", (left, right)):
            return (
                not (reads(left, name) and reads(right, name))
                and is_linear(left, name)
                and is_linear(right, name)
            )
        case Call("div", (value, divisor)):
            return not reads(divisor, name) and is_linear(value, name)
    return False


def reads(expr: Expr, name: str) -> bool:
    """Whether an expression reads a tensor."""
    return any(access.tensor == name for access in find(expr, Access))


def sum_by_terms(program: ModelProgram, storage: Storage, name: str) -> None:
    """`sum(j, (a + b) * x) -> sum(j, a * x) + sum(j, b * x)` in a statement, in place."""
    statement = program.statements[name]

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if isinstance(node, Reduce) and node.monoid == "sum":
            return summed(program, storage, name, node)
        return node

    value = visit(statement.value)
    assert isinstance(value, Expr)
    program.statements[name] = replace(statement, value=simplify(value))


def summed(program: ModelProgram, storage: Storage, name: str, reduction: Reduce) -> Expr:
    """The sum of the terms of a reduction, one reduction per term; sparse ones share one."""
    terms = list(summands(storage, reduction.body))
    mixed = [term for _, term in terms if diagonals(term) or not is_sparse(storage, term)]
    if not mixed or not any(is_sparse(storage, term) or diagonals(term) for _, term in terms):
        return reduction
    sums: list[Term] = []
    sparse = [(sign, term) for sign, term in terms if term not in mixed]
    if sparse:
        sign = max(sign for sign, _ in sparse)
        body = total([(sign * term_sign, term) for term_sign, term in sparse])
        sums.append((sign, Reduce("sum", reduction.indices, body)))
    for sign, term in terms:
        if term in mixed:
            fresh = {bound: program.index(program.extents[bound]) for bound in reduction.indices}
            sums.append((sign, one_sum(program, name, tuple(fresh.values()), renamed(term, fresh))))
    return total(sums)


def total(terms: Sequence[Term]) -> Expr:
    """The sum of some terms."""
    (sign, result), *rest = sorted(terms, key=lambda term: -term[0])
    result = Call("neg", (result,)) if sign < 0 else result
    for sign, term in rest:
        result = Call("add" if sign > 0 else "sub", (result, term))
    return result


def one_sum(program: ModelProgram, name: str, bound: Sequence[str], term: Expr) -> Expr:
    """The sum of a term without its diagonals, with loop-invariant factors moved out of the sum."""
    left, at = list(bound), dict[str, str]()
    parts = list(factors(term))
    for place_of, part in enumerate(parts):
        ends = ends_of(part)
        if ends is None:
            continue
        first, second = (at.get(end, end) for end in ends)
        taken = second if second in left else first
        other = first if taken == second else second
        if taken in left and program.representative(program.extents[taken]) == program.representative(
            program.extents[other]
        ):
            left.remove(taken)
            at = {old: other if new == taken else new for old, new in at.items()} | {taken: other}
            assert isinstance(part, Call), "it is a choice"
            parts[place_of] = part.args[1]
    parts = [placed_at(part, at) for part in parts]
    inside = [part for part in parts if any(str(index) in left for index in find(part, Index))]
    outside = [part for part in parts if part not in inside]
    unread = [index for index in left if not any(Index(index) in find(part, Index) for part in inside)]
    outside += [Extent(index) for index in unread]
    over = tuple(index for index in left if index not in unread)
    if over:
        outside.append(hoisted(program, name, Reduce("sum", over, product(inside))))
    return product(outside)


def placed_at(expr: Expr, at: dict[str, str]) -> Expr:
    """An expression with other index variables in place of some."""
    return substitute(expr, {old: Index(new) for old, new in at.items()}) if at else expr


def hoisted(program: ModelProgram, name: str, reduction: Reduce) -> Expr:
    """A separate statement for a reduction, computed once by kernels."""
    reduction = join_sums(reduction)
    indices = [str(index) for index in find(reduction, Index) if str(index) not in bound_in(reduction)]
    free = tuple(dict.fromkeys(indices))
    fresh = {index: program.index(program.extents[index]) for index in free}
    label, number = f"{name}_term", 1
    while label in program.source:
        label, number = f"{name}_term{number}", number + 1
    program.assign(label, tuple(fresh.values()), renamed(reduction, fresh), program.source[name])
    program.dtypes[label] = program.dtypes[name]
    return Access(label, tuple(map(Index, free)))


def bound_in(expr: Expr) -> set[str]:
    """The index variables reduced in an expression."""
    return {name for reduction in find(expr, Reduce) for name in reduction.indices}


def product(parts: Sequence[Expr]) -> Expr:
    """The product of some factors."""
    result: Expr = parts[0] if parts else Const(1)
    for part in parts[1:]:
        result = Call("mul", (result, part))
    return result
