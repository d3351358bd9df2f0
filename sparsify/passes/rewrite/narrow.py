"""Products with dense matrices before sums over neighbours, if the result has fewer columns.

In: `s[i,f] = sum(j, a[i,j] * x[j,f]) / d[i]; y[i,k] = sum(f, s[i,f] * w[k,f]) + b[k]` with fewer k than f.
Out: `t[j,k] = sum(f, x[j,f] * w[k,f]); y[i,k] = sum(j, a[i,j] * t[j,k]) / d[i] + b[k]`.

Factors around the sum may depend on rows alone. Plain sums of products are joined by `inline`, and ordered by cost.
"""

from collections.abc import Collection
from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access, Call, Expr, Index, Reduce
from sparsify.compiler.ir.node import find
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.region.region import substitute
from sparsify.passes.rewrite.simplify import exchanged, is_multilinear


def narrow_first(program: ModelProgram, storage: Storage, outside_reads: Collection[str]) -> None:
    """Multiplies by dense matrices first, in place, if they have fewer columns than the summed tensor.

    Args:
        outside_reads: tensors with further readers.
    """
    for name in list(program.statements):
        for product in find(program.statements[name].value, Reduce):
            put_in_front(program, storage, outside_reads, name, product)


def put_in_front(
    program: ModelProgram, storage: Storage, outside_reads: Collection[str], name: str, product: Reduce
) -> None:
    """Multiplies by a product's matrix first, if the other factor is a sum over neighbours."""
    match product:
        case Reduce("sum", (f,), Call("mul", (Access(summed, (Index(i), Index(g))), Access() as weight))) if (
            f == g
        ):
            pass
        case _:
            return
    sums = program.statements.get(summed)
    if (
        sums is None
        or summed in outside_reads
        or program.readers()[summed] != {name}
        or storage.is_sparse(weight.tensor)
    ):
        return
    row, column = map(str, sums.target.indices)
    inner = find(sums.value, Reduce)
    if len(inner) != 1 or not is_multilinear(inner[0]) or not is_scaled(sums.value, inner[0]):
        return
    if Index(i) in weight.indices:
        return
    columns = [str(index) for index in weight.indices if index != Index(f)]
    wide = [access for access in find(sums.value, Access) if Index(column) in access.indices]
    is_matrix = len(wide) == 1 and len(wide[0].indices) == len(weight.indices) == len(columns) + 1
    if not is_matrix or wide[0] not in find(inner[0], Access) or not is_narrower(program, columns[0], column):
        return
    if storage.is_sparse(wide[0].tensor) or not any(
        storage.is_sparse(a.tensor) for a in find(inner[0], Access)
    ):
        return
    (k,), features = columns, wide[0]
    j = next(str(index) for index in features.indices if index != Index(column))
    first = f"{name}_first"
    factors = (renamed_to(features, {column: f}), weight)
    program.assign(first, (j, k), Reduce("sum", (f,), Call("mul", factors)), program.source[name])
    program.dtypes[first] = program.dtypes[name]
    narrowed = exchanged(sums.value, features, Access(first, (Index(j), Index(k))))
    program.statements[name] = replace(
        program.statements[name],
        value=exchanged(program.statements[name].value, product, substitute(narrowed, {row: Index(i)})),
    )
    del program.statements[summed]
    program.order()


def is_scaled(value: Expr, total: Expr) -> bool:
    """Whether an expression is a sum multiplied or divided by expressions without sums."""
    match value:
        case Call("mul", (left, right)):
            return is_scaled(left, total) != is_scaled(right, total)
        case Call("div", (left, _)):
            return is_scaled(left, total)
    return value == total


def is_narrower(program: ModelProgram, first: str, second: str) -> bool:
    """Whether an index variable has fewer coordinates than another one, as far as is known."""
    sizes = [program.representative(program.extents[name]) for name in (first, second)]
    return all(isinstance(size, int) for size in sizes) and sizes[0] < sizes[1]


def renamed_to(access: Access, names: dict[str, str]) -> Access:
    """An access at other index variables."""
    result = substitute(access, {old: Index(new) for old, new in names.items()})
    assert isinstance(result, Access)
    return result
