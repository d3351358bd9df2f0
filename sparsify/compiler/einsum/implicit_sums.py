"""Placement of the implicit sums of a statement.

In: `Y[i,k] = relu(A[i,j] * T[j,k] + b[k])`. Out: `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.

An index variable missing on the left is summed
- in each term of a sum separately,
- around a product or quotient if it is an index of one of the factors or occurs in several of them,
- inside the only factor or argument that contains it, if that is a sum, a product in parentheses or a call:
  a function call is never crossed.
`x ** y` counts as a product of `x`. The order of the sums is the order of appearance of the variables.
"""

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Expr, Index, Reduce, Stored
from sparsify.compiler.ir.node import Node, children, map_children
from sparsify.errors import EinsumError

TERMS = ("add", "sub", "neg")
CHAIN = ("mul", "div")


def make_sums_explicit(assign: Assign) -> Assign:
    """`assign` with a `sum` for each index variable of its right side missing on its left side.

    With a monoid, `y[i] += ...`, the whole right side is reduced and the statement stays as it is.

    Raises:
        EinsumError: an index variable to sum lies in several arguments of a function call.
    """
    if assign.monoid is not None:
        return assign
    missing = tuple(name for name in free_indices(assign.value) if name not in free_indices(assign.target))
    if not missing:
        return assign
    return Assign(assign.target, None, _place(assign.value, missing))


def free_indices(node: Node) -> tuple[str, ...]:
    """The free index variables of `node`, bound by no reduction inside, in order of appearance."""
    found: dict[str, None] = {}

    def visit(current: Node, bound: frozenset[str]) -> None:
        if isinstance(current, Index) and current.name not in bound:
            found[current.name] = None
        if isinstance(current, Reduce):
            bound |= frozenset(current.indices)
        for child in children(current):
            visit(child, bound)

    visit(node, frozenset())
    return tuple(found)


def _place(expr: Expr, missing: tuple[str, ...]) -> Expr:
    """`expr` with sums over its variables among `missing`."""
    here = tuple(name for name in free_indices(expr) if name in missing)
    if not here:
        return expr
    if isinstance(expr, Call) and expr.function in TERMS:
        return Call(expr.function, tuple(_place(arg, here) for arg in expr.args))
    around = tuple(name for name in here if _is_summed_around(expr, name))
    inside = tuple(name for name in here if name not in around)
    body = _place_inside(expr, inside) if inside else expr
    return Reduce("sum", around, body) if around else body


def _place_inside(expr: Expr, missing: tuple[str, ...]) -> Expr:
    """`expr` with the sums inside its factors, or inside the arguments of its call."""
    if isinstance(expr, Call) and expr.function in CHAIN:
        args = tuple(_place_inside(a, missing) if _in_chain(a) else _place(a, missing) for a in expr.args[:1])
        return Call(expr.function, args + tuple(_place(a, missing) for a in expr.args[1:]))
    if isinstance(expr, Call):
        for name in missing:
            holders = [str(arg) for arg in expr.args if name in free_indices(arg)]
            if len(holders) > 1:
                raise EinsumError(
                    f"{name} is missing on the left and lies in {len(holders)} arguments of {expr.function}: "
                    f"{', '.join(holders)}; write the sums, as in sum({name}, {holders[0]})"
                )

    def place(child: Node) -> Node:
        return _place(child, missing) if isinstance(child, Expr) else child

    return map_children(expr, place)


def _is_summed_around(expr: Expr, name: str) -> bool:
    """Whether the sum over `name` encloses `expr`, which contains `name`, instead of a subexpression."""
    match expr:
        case Index() | Access() | Stored():
            return True
        case Call(function, _) if function in CHAIN:
            holders = [factor for factor in _factors(expr) if name in free_indices(factor)]
            return (
                len(holders) > 1
                or isinstance(holders[0], (Index, Access, Stored))
                or _is_power(holders[0], name)
            )
        case Call("pow", (base, exponent)):
            return name in free_indices(exponent) or (_is_summed_around(base, name) and not _in_chain(base))
        case _:
            return False


def _is_power(expr: Expr, name: str) -> bool:
    """Whether `expr` is a power enclosed by the sum over `name`."""
    return isinstance(expr, Call) and expr.function == "pow" and _is_summed_around(expr, name)


def _in_chain(expr: Expr) -> bool:
    """Whether `expr` is a product or a quotient."""
    return isinstance(expr, Call) and expr.function in CHAIN


def _factors(expr: Expr) -> list[Expr]:
    """The factors of a product or quotient; a parenthesized one on the right counts as one."""
    factors: list[Expr] = []
    while isinstance(expr, Call) and expr.function in CHAIN:
        factors.append(expr.args[1])
        expr = expr.args[0]
    return [expr, *reversed(factors)]
