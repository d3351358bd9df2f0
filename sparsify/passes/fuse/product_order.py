"""`A(XW)` or `(AX)W`: which product comes first, by estimated time.

In: `T[j,k] = sum(f, X[j,f] * W[f,k]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`, `W` widening X.
Out: `T[i,f] = sum(j, A[i,j] * X[j,f]); P[i,k] = sum(f, T[i,f] * W[f,k]); Y[i,k] = relu(P[i,k] + b[k])`.

The sums are the same; which one is cheaper depends on the entries of A and on both widths.
"""

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Call, Expr, Index, Reduce
from sparsify.compiler.einsum.rename import replace
from sparsify.compiler.node import find
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import estimated_us
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import argument, operator_name
from sparsify.passes.region import region as regions
from sparsify.passes.region.fragment import Fragment, access, turned
from sparsify.passes.region.region import Region, copied
from sparsify.passes.region.sparse_operand import declared_sparse

Statement = tuple[fx.Node, tuple[str, ...], Expr]


def compared(draft: Draft, dense_first: list[Region], sparse_first: list[Region]) -> tuple[bool, str]:
    """Whether A(XW) is the cheaper order, and both estimates as a note; without sizes A(XW) it is."""
    times = []
    for trial in (dense_first, sparse_first):
        found = [estimated_us(draft, copied(region)) for region in trial]
        if None in found:
            return True, "A(XW)"
        times.append(sum(us for us in found if us is not None))
    first, second = times
    texts = [f"A(XW) est. {first:.0f} us", f"(AX)W est. {second:.0f} us"]
    return first <= second, "; ".join(texts if first <= second else texts[::-1])


def sparse_first(draft: Draft, region: Region) -> Region:
    """`A(XW) -> (AX)W` when that is cheaper; the region itself otherwise."""
    trial = turned_around(region)
    if trial is None or any("(AX)W" in note for note in region.notes):
        return region
    is_cheaper, note = compared(draft, [region], [trial])
    chosen = region if is_cheaper else trial
    chosen.notes.append(note)
    return chosen


def turned_around(region: Region) -> Region | None:
    """A copy of a region `A(XW)` as `(AX)W`, None for regions of another form."""
    if len(region.statements) != 2:
        return None
    (first, (row, column), product), (node, target, value) = region.statements
    match product:
        case Reduce("sum", (summed,), Call("mul", (Access(x, (Index(i), Index(f))), Access() as weight))):
            if (i, f) != (row, summed) or x not in region.operands or weight.tensor not in region.operands:
                return None
        case _:
            return None
    if not isinstance(region.operands[x], fx.Node):
        return None  # both factors of AX would be sparse
    found = spread_sum(value, first.name, target)
    if found is None:
        return None
    matrix, inner = found
    columns = regions.mode_name(inner)
    narrow = Reduce(
        "sum", matrix_sum(matrix), Call("mul", (matrix, Access(x, (matrix.indices[1], Index(f)))))
    )
    gathered: Statement = (first, (regions.mode_name(matrix.indices[0]), f), narrow)
    at = {column: Index(columns)}
    wide = Call("mul", (Access(first.name, (matrix.indices[0], Index(f))), regions.place(weight, at)))
    reduced: Expr = Reduce("sum", (f,), wide)
    trial = copied(region)
    sparse_node = next(n for n in region.covered if info(n).fragment is not None and n is not first)
    old = Reduce(
        "sum", matrix_sum(matrix), Call("mul", (matrix, Access(first.name, (matrix.indices[1], inner))))
    )
    if value == old:
        trial.statements = [gathered, (node, target, reduced)]
        return trial
    if sparse_node is node:
        return None
    rest = replace(value, old, Access(sparse_node.name, (matrix.indices[0], inner)))
    own = (regions.mode_name(matrix.indices[0]), columns)
    trial.statements = [gathered, (sparse_node, own, reduced), (node, target, rest)]
    return trial


def matrix_sum(matrix: Access) -> tuple[str]:
    """The index variable over which a sparse operand is summed."""
    return (regions.mode_name(matrix.indices[1]),)


def spread_sum(value: Expr, temporary: str, target: tuple[str, ...]) -> tuple[Access, Expr] | None:
    """The access `A[i,j]` and the index `k` of the one `sum(j, A[i,j] * T[j,k])` in `value`."""
    sums = find(value, Reduce)
    if len(sums) != 1:
        return None
    match sums[0]:
        case Reduce(
            "sum", (j,), Call("mul", (Access(_, (Index(i), Index(a))) as matrix, Access(t, (Index(b), k))))
        ):
            if t == temporary and a == b == j and (i, regions.mode_name(k)) == target:
                return matrix, k
    return None


def take_linear(draft: Draft, region: Region, fragment: Fragment) -> bool:
    """`(A X) W -> A (X W)` when that is cheaper; true when it was done."""
    trial = copied(region)
    if not narrow_first(trial, fragment):
        return False
    is_cheaper, note = compared(draft, [trial], [region, regions.of_fragment(fragment)])
    if not is_cheaper or note == "A(XW)":
        region.notes += [] if note == "A(XW)" else [note]
        return False
    region.statements, region.operands, region.covered = trial.statements, trial.operands, trial.covered
    region.notes.append(note)
    return True


def narrow_first(region: Region, fragment: Fragment) -> bool:
    """Rewrites `(A X) W` to `A (X W)`; false when the region or the reader has another form.

    Between both products there may only be factors per row.
    """
    node = fragment.node
    if operator_name(node) != "linear" or fragment.matrices or len(region.statements) != 1:
        return False
    bias = argument(node, 2, "bias")
    _, (row, column), value = region.statements[-1]
    reduced, features = sparse_sum(value, row, column, region)
    if reduced is None or features is None or node.args[0] is not region.output:
        return False
    temporary = product_in_front(region, fragment, features)
    assert isinstance(reduced.body, Call)
    narrowed = Call("mul", (reduced.body.args[0], Access(region.output.name, features.indices)))
    value = replace(value, reduced, Reduce("sum", reduced.indices, narrowed))
    if isinstance(bias, fx.Node):
        value = Call("add", (value, Access(bias.name, (Index(column),))))
        region.operands[bias.name] = bias
    region.statements = [temporary, (node, (row, column), value)]
    region.covered += [node]
    return True


def sparse_sum(value: Expr, row: str, column: str, region: Region) -> tuple[Reduce | None, Access | None]:
    """The sum `sum(j, A[i,j] * x[j,k])` inside `value` when everything around it is a factor per row."""
    match value:
        case Reduce(
            "sum", (_,), Call("mul", (Access(a, (Index(i), _)), Access(x, (_, Index(k))) as features))
        ):
            is_sparse = any(matrix.name == a for matrix in region.matrices)
            dense = isinstance(region.operands.get(x), fx.Node)
            return (value, features) if is_sparse and dense and (i, k) == (row, column) else (None, None)
        case Call("div" | "mul", (inner, factor)) if is_row_factor(factor, column):
            return sparse_sum(inner, row, column, region)
        case Call("mul", (factor, inner)) if is_row_factor(factor, column):
            return sparse_sum(inner, row, column, region)
    return None, None


def is_row_factor(factor: Expr, column: str) -> bool:
    """Whether a factor is the same in all columns."""
    return not any(part.name == column for part in find(factor, Index))


def product_in_front(region: Region, fragment: Fragment, features: Access) -> Statement:
    """The statement `T = X W`, under the name of the sparse product that nobody reads any more."""
    node, old = fragment.node, region.output
    row, column = fragment.indices
    product = fragment.value.args[0] if isinstance(fragment.value, Call) else fragment.value
    assert isinstance(product, Reduce), "a linear layer is a sum, with a bias or without"
    dense, weight = region.operands.pop(features.tensor), node.args[1]
    matrix = declared_sparse(dense)
    assert isinstance(weight, fx.Node)
    assert isinstance(dense, fx.Node)
    if matrix is None:
        region.operands |= {dense.name: dense, weight.name: weight}
        return old, (row, column), regions.renamed(product, old.name, dense.name)
    weight = turned(weight, node)
    region.operands |= {matrix.name: matrix, weight.name: weight}
    summed = product.indices[0]
    body = Call("mul", (access(matrix.name, row, summed), access(weight.name, summed, column)))
    return old, (row, column), Reduce("sum", (summed,), body)
