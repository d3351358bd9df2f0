"""Attention in textbook form, independent of the spelling in the model.

In: `s[i,j] = sum(d, q[i,d] * t[d,j]); x[i,j] = s[i,j] / 8.0 + b[j]; p[i,j] = e[i,j] / d[i]; y[i,l] = sum(j, p[i,j] *
v[j,l])`, e and d of the softmax of x. Out: `x[i,j] = 0.125 * sum(d, q[i,d] * k[j,d]) + b[j]; y[i,l] = sum(j, e[i,j] *
v[j,l] / d[i])`.

Attention is a softmax between two products of matrices, connected by entrywise statements without other readers.
"""

from dataclasses import dataclass, replace
from math import inf

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Cast, Const, Expr, Extent, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.operators import is_dropout
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.rewrite.inline import placed
from sparsify.passes.rewrite.simplify import exchanged, factors
from sparsify.passes.rewrite.sinks import LETTERS, cut_off, sink_of, with_sink, write_softmax_with_sink

# Index variables of batch and heads, the innermost last.
OUTER = ("a", "b", "h")
NO_PRODUCT = "it is not taken of a product of queries and keys that nothing else reads"
# Functions inlined into statements of scores; gradients of other functions read their results.
ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "neg", "where", "logical_and", "logical_or", "logical_not")
)


@dataclass(frozen=True)
class Attention:
    """The statements of attention, by name.

    Attributes:
        softmax: attention weights.
        scores: operand of the softmax.
        chain: statements from the scores to the product of queries and keys.
        path: statements from the reader of the weights to the product with the values.
        value: scores, at the index variables of their statement.
        mean: weighted mean of the values, at the index variables of the last statement of the path.
        sink: additional logit of each query, None without.
    """

    softmax: str
    scores: str
    chain: tuple[str, ...]
    path: tuple[str, ...]
    value: Expr
    mean: Reduce
    sink: Access | None = None

    @property
    def result(self) -> str:
        """The weighted means of the values."""
        return self.path[-1]

    @property
    def values(self) -> Access:
        """The values, at the index variables of their mean."""
        (access,) = [a for a in find(self.mean, Access) if a.tensor not in (self.softmax, *self.path)]
        return access

    @property
    def factors(self) -> tuple[Access, Access]:
        """The queries and keys, at the index variables of the scores."""
        return product_of(self.value).factors


@dataclass(frozen=True)
class Product:
    """`sum(d, left[..,i,d] * right[..,j,d])`."""

    reduction: Reduce
    factors: tuple[Access, Access]


def attention_of(program: ModelProgram, softmax: str) -> Attention | str:
    """The attention around a softmax along the last mode, or the refusal."""
    readers = all_readers(program)
    path = weighted_mean(program, softmax, readers)
    if isinstance(path, str):
        return path
    (scores,) = (node.name for node in program.nodes[softmax].all_input_nodes)
    without_shift(program, scores, readers)
    program.drop_unneeded()
    readers = all_readers(program)
    if readers[scores] != {f"{softmax}_max", f"{softmax}_exp"}:
        return NO_PRODUCT
    operands = with_sink(program, scores) if any(is_cut(program, name) for name in path) else ([scores], None)
    if operands is None or any(len(readers[name]) > 1 for name in operands[0][1:]):
        return NO_PRODUCT
    names, sink = operands
    scores = names[-1]
    chain = scores_chain(program, scores, readers)
    if not chain:
        return NO_PRODUCT
    statement = program.statements[scores]
    value = statement.value
    for name in chain[1:]:
        value = placed(program, value, program.statements[name])
    value, mean = scaled_first(without_casts(value)), without_casts(program.statements[path[-1]].value)
    assert isinstance(mean, Reduce), "a weighted mean is a sum"
    if not is_of_rows(statement, value):
        return NO_PRODUCT
    value = with_read_extents(program, value)
    i, j = statement.target.indices[-2:]
    for factor in product_of(value).factors:
        rows = i if i in factor.indices else j
        assert isinstance(rows, Index), "a target has index variables"
        value = exchanged(value, factor, read_stored(program, factor, rows))
    (values,) = [a for a in find(mean, Access) if a.tensor not in (softmax, *path)]
    stored = exchanged(mean, values, read_stored(program, values, Index(mean.indices[0])))
    assert isinstance(stored, Reduce), "its values are read elsewhere"
    sink_access = None if sink is None else sink_of(program, sink, statement)
    return Attention(softmax, scores, (*names[:-1], *chain), path, value, stored, sink_access)


def is_cut(program: ModelProgram, name: str) -> bool:
    """Whether a statement of weights leaves out the last of each row."""
    statement = program.statements.get(name)
    return statement is not None and any(cut_off(statement, a.tensor) for a in find(statement.value, Access))


def with_read_extents(program: ModelProgram, value: Expr) -> Expr:
    """`extent(e) -> extent(d)` for the summed index variable d of equal extent."""
    result = value
    for part in find(value, Extent):
        size = program.representative(program.extents[part.name])
        (d,) = product_of(value).reduction.indices
        if part.name != d and program.representative(program.extents[d]) == size:
            result = exchanged(result, part, Extent(d))
    return result


def all_readers(program: ModelProgram) -> dict[str, set[str]]:
    """The readers of each tensor, by tensor: statements, and nodes without statements."""
    readers = program.readers()
    for node in program.graph.nodes:
        if node.name not in program.statements and (node.op == "output" or node.name in program.opaque):
            for read in node.all_input_nodes:
                readers.setdefault(read.name, set()).add(node.name)
    return readers


def weighted_mean(program: ModelProgram, softmax: str, readers: dict[str, set[str]]) -> tuple[str, ...] | str:
    """The names from the weights' reader to the product with values, or the refusal."""
    name, path, is_dropped = softmax, list[str](), False
    while True:
        consumers = sorted(readers.get(name, ()))
        if len(consumers) != 1:
            names = ", ".join(consumers)
            return (
                f"its weights are read by {names}: attention is one product with values that alone reads them"
            )
        (reader,) = consumers
        path.append(reader)
        statement = program.statements.get(reader)
        if statement is None:
            node = program.nodes[reader]
            if is_dropped or not is_dropout(node):
                return f"its weights are read by {reader}: attention is one product with values that alone reads them"
            is_dropped = True
        elif is_mean(program, statement, name):
            return tuple(path)
        elif not is_same_or_dropped(statement, name) and not (name == softmax and cut_off(statement, name)):
            return f"its weights are read by {reader}: attention is one product with values that alone reads them"
        name = reader


def is_same_or_dropped(statement: Assign, weights: str) -> bool:
    """Whether a statement equals the weights, or `p[i,j] * where(uniform(seed, i, j) < rate, 0, c)`."""
    entry = Access(weights, statement.target.indices)
    match without_casts(statement.value):
        case Call("mul", (access, Call("where", (Call("lt", (Call("uniform", _), _)), _, _)))):
            return access == entry
        case value:
            return value == entry


def is_mean(program: ModelProgram, statement: Assign, weights: str) -> bool:
    """Whether a statement is `y[..,i,l] = sum(j, p[..,i,j] * v[..,j,l])`, p the weights."""
    match without_casts(statement.value):
        case Reduce("sum", (j,), Call("mul", (Access() as left, Access() as right))):
            access, values = (left, right) if left.tensor == weights else (right, left)
            if access.tensor != weights or values.tensor == weights or len(access.indices) < 2:
                return False
            is_over_weights = access.indices[-1] == Index(j) and Index(j) in values.indices
            rows = access.indices[-2]
            is_all = set(access.indices[:-1]) <= set(statement.target.indices)
            columns = [index for index in statement.target.indices if index not in access.indices]
            is_plain = all(isinstance(index, Index) for index in (*access.indices, *values.indices))
            return (
                is_over_weights and is_all and is_plain and rows not in values.indices and len(columns) == 1
            )
    return False


def without_shift(program: ModelProgram, name: str, readers: dict[str, set[str]]) -> None:
    """`softmax(j, x[i,j] - m[i]) = softmax(j, x[i,j])` for an m computed from x, such as the maximum.

    Other terms without j stay: they may be -inf, as in masks of queries, or so large that x is lost in rounding.
    """
    statement = program.statements.get(name)
    if statement is None or not statement.target.indices:
        return
    j = statement.target.indices[-1]
    match statement.value:
        case Call("sub" | "add", (rest, term)) if is_shift(program, term, rest, j):
            program.statements[name] = statement = replace(statement, value=rest)
        case Call("add", (term, rest)) if is_shift(program, term, rest, j):
            program.statements[name] = statement = replace(statement, value=rest)
    for access in terms_of(statement.value):
        if access.indices == statement.target.indices and readers.get(access.tensor) == {name}:
            without_shift(program, access.tensor, readers)


def is_shift(program: ModelProgram, term: Expr, rest: Expr, j: Expr) -> bool:
    """Whether a term of scores lacks j, and depends on the remaining terms alone."""
    read = {access.tensor for access in find(rest, Access)}
    return j not in indices_of(term) and j in indices_of(rest) and follows_from(program, term, read)


def follows_from(program: ModelProgram, value: Expr, tensors: set[str]) -> bool:
    """Whether an expression depends on some tensors, directly or by statements, and on nothing else."""
    accesses = find(value, Access)
    statements = [program.statements.get(a.tensor) for a in accesses if a.tensor not in tensors]
    return bool(accesses) and all(
        statement is not None and follows_from(program, statement.value, tensors) for statement in statements
    )


def terms_of(value: Expr) -> list[Access]:
    """The tensors whose sum or choice an expression is: `x + m`, `where(c, x, -inf)`."""
    match value:
        case Access():
            return [value]
        case Cast(_, x):
            return terms_of(x)
        case Call("where", (_, x, Const(c))) | Call("where", (_, Const(c), x)) if c == -inf:
            return terms_of(x)
        case Call("add" | "sub", (left, right)):
            return [*terms_of(left), *terms_of(right)]
    return []


def indices_of(value: Expr) -> set[Expr]:
    """The index variables of an expression's accesses."""
    return {index for access in find(value, Access) for index in access.indices}


def scores_chain(program: ModelProgram, name: str, readers: dict[str, set[str]]) -> tuple[str, ...]:
    """The statements from scores to a product of queries and keys, each read by the one before alone."""
    statement = program.statements.get(name)
    if statement is None:
        return ()
    if find(statement.value, Reduce):
        return (name,) if len(find(statement.value, Reduce)) == 1 and is_product(statement) else ()
    for access in find(statement.value, Access):
        is_plain = all(isinstance(index, Index) for index in access.indices)
        if (
            is_plain
            and set(access.indices) == set(statement.target.indices)
            and readers[access.tensor] == {name}
        ):
            rest = scores_chain(program, access.tensor, readers)
            if rest:
                return (name, *rest)
    return ()


def is_product(statement: Assign) -> bool:
    """Whether a statement has a product of matrices, with one of the target's modes in one factor alone."""
    (reduction,) = find(statement.value, Reduce)
    match without_casts(reduction):
        case Reduce("sum", (_,), Call("mul", (Access(), Access()))):
            return len(statement.target.indices) > 1
    return False


def product_of(value: Expr) -> Product:
    """The product of queries and keys of scores."""
    (reduction,) = find(value, Reduce)
    left, right = factors(reduction.body)
    assert isinstance(left, Access) and isinstance(right, Access), "a product of two tensors"
    return Product(reduction, (left, right))


def is_of_rows(statement: Assign, value: Expr) -> bool:
    """Whether scores are of queries at the last mode but one, and of keys at the last."""
    i, j = statement.target.indices[-2:]
    product = product_of(value)
    (d,) = product.reduction.indices
    left, right = (set(factor.indices) for factor in product.factors)
    if j in left:
        left, right = right, left
    is_plain = all(isinstance(index, Index) for factor in product.factors for index in factor.indices)
    is_separated = i in left and j in right and i not in right and j not in left and Index(d) in left & right
    return is_plain and is_separated and set(statement.target.indices) <= left | right


def without_casts(value: Expr) -> Expr:
    """`float32(x) -> x`: kernels compute in their operands' dtype, and half precision in float32."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        return node.value if isinstance(node, Cast) and node.dtype.startswith(("float", "bfloat")) else node

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def scaled_first(value: Expr) -> Expr:
    """`x / c -> (1 / c) * x`, `x * c -> c * x` and `a * (b * x) -> (a * b) * x` around a sum."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        match node:
            case Call("div", (x, Const(c))) if c and find(x, Reduce):
                return scaled(1 / c, x)
            case Call("mul", (x, Const(c))) | Call("mul", (Const(c), x)) if find(x, Reduce):
                return scaled(c, x)
        return node

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def scaled(c: float, value: Expr) -> Expr:
    """`c * value`, with one factor."""
    match value:
        case Call("mul", (Const(b), x)):
            return scaled(c * b, x)
    return value if c == 1 else Call("mul", (Const(float(c)), value))


def put_in_form(program: ModelProgram, attention: Attention) -> list[str]:
    """Writes the statements of attention in textbook form, in place; returns their names."""
    names = [*write_scores(program, attention), attention.result]
    scores = program.statements[attention.scores]
    if attention.sink is not None:
        write_softmax_with_sink(program, attention.softmax, scores, attention.sink)
    weights = (
        program.statements[attention.path[-2]]
        if len(attention.path) > 1
        else program.statements[attention.softmax]
    )
    numerator, dropped = write_dropped(program, attention)
    write_mean(program, attention, replace(weights, value=numerator))
    for suffix, letter in LETTERS.items():
        if f"{attention.softmax}_{suffix}" in program.statements:
            names.append(f"{attention.softmax}_{suffix}")
            program.letters[names[-1]] = letter
    left, right = attention.factors
    query, key = (left, right) if scores.target.indices[-2] in left.indices else (right, left)
    values = attention.values
    program.letters |= {query.tensor: "Q", key.tensor: "K", values.tensor: "V"}
    if attention.sink is not None:
        program.letters[attention.sink.tensor] = "Z"
    return [*names, *dropped]


def write_scores(program: ModelProgram, attention: Attention) -> list[str]:
    """Writes the statement of scores, with a separate statement for a bound, whose result gradients read."""
    scores, value, names = program.statements[attention.scores], attention.value, [attention.scores]
    bounds = [c for c in find(value, Call) if c.function not in ARITHMETIC and find(c, Reduce)]
    if bounds:
        names.append(f"{attention.softmax}_capped")
        indices = scores.target.indices
        program.assign(names[-1], tuple(map(str, indices)), bounds[0], program.nodes[attention.softmax])
        value = exchanged(value, bounds[0], Access(names[-1], indices))
        program.letters[names[-1]] = "C"
    program.statements[attention.scores] = replace(scores, value=value)
    program.letters[attention.scores] = "S"
    return names


def write_dropped(program: ModelProgram, attention: Attention) -> tuple[Expr, list[str]]:
    """The numerator of the weights in the product with values, at the index variables of its statement.

    Dropped weights become a separate statement: each is drawn once, regardless of the width of the values.
    """
    weights, path, dropped = program.statements[attention.softmax], attention.path[:-1], list[str]()
    if attention.sink is not None:
        weights, path = program.statements[path[0]], path[1:]
        numerator = replace(weights, value=Access(f"{attention.softmax}_exp", weights.target.indices))
    else:
        numerator = replace(weights, value=quotient(weights)[0])
    for name in path:
        statement = program.statements[name]
        value = without_casts(placed(program, statement.value, numerator))
        numerator = replace(statement, value=value)
        if not isinstance(value, Access):
            program.statements[name], program.letters[name] = numerator, "D"
            dropped.append(name)
            numerator = replace(statement, value=statement.target)
    return numerator.value, dropped


def write_mean(program: ModelProgram, attention: Attention, weights: Assign) -> None:
    """`sum(j, p[i,j] * v[j,l]) -> sum(j, e[i,j] * v[j,l] / d[i])`, p = e / d; with a sink scaled afterwards.

    Args:
        weights: e at the index variables of p.
    """
    result = program.statements[attention.result]
    (access,) = [a for a in find(attention.mean, Access) if a != attention.values]
    product: Expr = Call("mul", (placed(program, access, weights), attention.values))
    if attention.sink is None:
        statement = program.statements[attention.softmax]
        total = replace(statement, value=quotient(statement)[1])
        product = Call("div", (product, placed(program, Access(attention.softmax, access.indices), total)))
        value: Expr = Reduce("sum", attention.mean.indices, product)
    else:
        mean = f"{attention.softmax}_mean"
        indices = tuple(map(str, result.target.indices))
        program.assign(
            mean, indices, Reduce("sum", attention.mean.indices, product), program.nodes[attention.softmax]
        )
        shrink, denominator = (
            Access(f"{attention.softmax}_{name}", access.indices[:-1]) for name in ("shrink", "whole")
        )
        scaled_mean = Call("mul", (Access(mean, result.target.indices), shrink))
        value = Call("div", (scaled_mean, denominator))
    program.statements[attention.result] = replace(result, value=value)


def quotient(weights: Assign) -> tuple[Expr, Expr]:
    """e and d of `p[i,j] = e[i,j] / d[i]`."""
    match without_casts(weights.value):
        case Call("div", (e, d)):
            return e, d
    raise AssertionError(f"{weights} is no softmax")


def name_as_textbooks(program: ModelProgram, attention: Attention) -> None:
    """Assigns the textbook names of the index variables of attention."""
    scores, result = program.statements[attention.scores], program.statements[attention.result]
    *lead, i, j = scores.target.indices
    sums = [
        r
        for name in (f"{attention.softmax}_capped", attention.scores)
        if name in program.statements
        for r in find(program.statements[name].value, Reduce)
    ]
    named = dict(zip(lead[::-1], OUTER[::-1], strict=False)) | {
        i: "i",
        j: "j",
        Index(sums[0].indices[0]): "k",
    }
    (access,) = [a for a in find(attention.mean, Access) if a != attention.values]
    value_indices = set(attention.values.indices) - set(access.indices)
    columns = [index for index in result.target.indices if index in value_indices]
    program.letters |= {str(index): letter for index, letter in named.items()}
    program.letters |= {str(index): "l" for index in columns}


def read_stored(program: ModelProgram, access: Access, rows: Index) -> Access:
    """`t[d,j] -> k[j,d]`, `repeated[g,r,j,d] -> k[g,j,d]`: a factor in its stored form by rows, without repeats.

    Args:
        rows: index variable of rows; the other one of the factor's matrix becomes the last.
    """
    stored_access = access
    while (statement := program.statements.get(access.tensor)) is not None:
        match without_casts(statement.value):
            case Access(tensor, indices) if all(isinstance(index, Index) for index in indices):
                is_by_rows = access.indices[-2:-1] == (rows,)
                is_once = len(indices) == len(access.indices)
                is_widened = isinstance(statement.value, Cast) and "16" in program.dtypes[tensor]
                read = placed(program, access, replace(statement, value=Access(tensor, indices)))
                assert isinstance(read, Access), "a view is of a tensor"
                access = read
                stored_access = stored_access if is_by_rows and is_once and not is_widened else access
            case _:
                break
    return stored_access
