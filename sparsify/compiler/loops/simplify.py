"""Simplification of loop IR: constant folding, propagation of constants and copies, dead code elimination.

In: `j * 1 + 0`, `for k in 0..1: ...`. Out: `j`, the body with 0 for `k`.
"""

import operator
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Final

from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.compiler.ir.rewrite import Rule, bottom_up, by_class, first, fixpoint
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import (
    ADDED_DOTS,
    Block,
    Convert,
    Declare,
    For,
    If,
    Literal,
    Op,
    Var,
    type_of,
)

FOLDS: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
INTEGERS: Final = ("int16", "int32", "int64")


def simplify(function: nodes.Function) -> nodes.Function:
    """Applies all rules to a kernel until none changes it."""
    body = function.body
    seen: dict[int, Node] = {}
    for _ in range(100):
        settled = _as_stmt(fixpoint(body, ANY_RULE, at=tuple(RULES), settled=seen))
        once = _declared_once(settled)
        inlined = _as_stmt(bottom_up(settled, _inline_single_trip(once), _inline_branch(once), at=(For, If)))
        body = _replace_copies(inlined, once)
        if body is settled:
            return function if body == function.body else replace(function, body=body)
    raise AssertionError("simplification does not settle")


def _as_stmt(node: Node) -> nodes.Stmt:
    assert isinstance(node, nodes.Stmt), "a rule made something else of a statement"
    return node


def _is_integer(type: nodes.Type) -> bool:
    return type.dtype in INTEGERS


# Expressions


def fold_integers(node: Node) -> Node | None:
    """`2 * 3 -> 6`, `1 < 2 -> true`."""
    match node:
        case Op(name, (Literal(x, kind), Literal(y, _)), type) if name in FOLDS and _is_integer(kind):
            if name in ("floordiv", "mod") and y == 0:
                return None
            return Literal(FOLDS[name](int(x), int(y)), type)
    return None


def fold_conversion(node: Node) -> Node | None:
    """`int64(3: int32) -> 3`, `int64(x: int64) -> x`."""
    match node:
        case Convert(value, type) if type_of(value) == type:
            return value
        case Convert(Literal(value, kind), type) if _is_integer(kind) and _is_integer(type):
            # Constants too large for the type stay converted.
            return Literal(value, type) if abs(value) < 2**15 else None
    return None


def constant_last(node: Node) -> Node | None:
    """`2 + x -> x + 2`, `2 * x -> x * 2` for integers."""
    match node:
        case Op("add" | "mul" as name, (Literal() as c, x), type) if _is_integer(type):
            return None if isinstance(x, Literal) else Op(name, (x, c), type)
    return None


def drop_neutral(node: Node) -> Node | None:
    """`x + 0 -> x`, `x - 0 -> x`, `x * 1 -> x`, `x // 1 -> x` for integers."""
    match node:
        case Op("add" | "sub", (x, Literal(0, _)), type) if _is_integer(type):
            return x
        case Op("mul" | "floordiv", (x, Literal(1, _)), type) if _is_integer(type):
            return x
    return None


def annihilate(node: Node) -> Node | None:
    """`x * 0 -> 0`, `x mod 1 -> 0`, `x - x -> 0` for integers."""
    match node:
        case Op("mul", (_, Literal(0, _)), type) | Op("mod", (_, Literal(1, _)), type) if _is_integer(type):
            return Literal(0, type)
        case Op("sub", (x, y), type) if _is_integer(type) and x == y:
            return Literal(0, type)
    return None


def divide_multiple(node: Node) -> Node | None:
    """`(x * 8 + 4) // 4 -> x * 2 + 1`, `(x * 8 + 5) mod 4 -> 1` for integers."""
    match node:
        case Op("floordiv" | "mod" as name, (value, Literal(int(c), _) as divisor), type) if (
            _is_integer(type) and c
        ):
            rest: Node = Literal(0, type)
            if isinstance(value, Op) and value.function == "add":
                value, rest = value.args
            match value, rest:
                case Op("mul", (x, Literal(int(a), _)), _), Literal(int(b), _) if a % c == 0:
                    if name == "mod":
                        return Literal(b % c, type)
                    whole = Op("mul", (x, Literal(a // c, divisor.type)), type)
                    return Op("add", (whole, Literal(b // c, type)), type)
    return None


def gather_constants(node: Node) -> Node | None:
    """`(x + 1) + 2 -> x + 3`, `(x - 1) + 2 -> x + 1`, `(x * 2) * 3 -> x * 6`, `(x + 1) + y -> (x + y) + 1`."""
    match node:
        case Op("add", (Op("add", (x, Literal(a, _)), _), Literal(b, _)), type) if _is_integer(type):
            return Op("add", (x, Literal(a + b, type)), type)
        case Op("sub", (Op("add", (x, Literal(a, _)), _), Literal(b, _)), type) if _is_integer(type):
            return Op("add", (x, Literal(a - b, type)), type)
        case Op("add", (Op("sub", (x, Literal(a, _)), _), Literal(b, _)), type) if _is_integer(type):
            return Op("add", (x, Literal(b - a, type)), type)
        case Op("mul", (Op("mul", (x, Literal(a, _)), _), Literal(b, _)), type) if _is_integer(type):
            return Op("mul", (x, Literal(a * b, type)), type)
        case Op("add", (Op("add", (x, Literal() as c), _), y), type) if _is_integer(type):
            return Op("add", (Op("add", (x, y), type), c), type)
    return None


def subtract_negative(node: Node) -> Node | None:
    """`x + -2 -> x - 2` for integers."""
    match node:
        case Op("add", (x, Literal(value, _)), type) if _is_integer(type) and value < 0:
            return Op("sub", (x, Literal(-value, type)), type)
        case Op("sub", (Op("sub", (x, Literal(a, _)), _), Literal(b, _)), type) if _is_integer(type):
            return Op("sub", (x, Literal(a + b, type)), type)
    return None


def drop_repeated(node: Node) -> Node | None:
    """`min(x, x) -> x`, `x and x -> x`, `where(c, x, x) -> x`."""
    match node:
        case Op("min" | "max" | "logical_and" | "logical_or", (x, y), _) if x == y:
            return x
        case Op("where", (_, x, y), _) if x == y:
            return x
    return None


def fold_logic(node: Node) -> Node | None:
    """`true and x -> x`, `false and x -> false`, `where(true, x, y) -> x`, `not true -> false`."""
    match node:
        case Op("logical_and", (Literal(value, _) as c, x), _) | Op(
            "logical_and", (x, Literal(value, _) as c), _
        ):
            return x if value else c
        case Op("logical_or", (Literal(value, _) as c, x), _) | Op(
            "logical_or", (x, Literal(value, _) as c), _
        ):
            return c if value else x
        case Op("logical_not", (Literal(value, _),), type):
            return Literal(not value, type)
        case Op("where", (Literal(value, _), x, y), _):
            return x if value else y
    return None


def drop_full_count(node: Node) -> Node | None:
    """`A[k ..8 if < 8] -> A[k ..8]`."""
    match node:
        case (
            nodes.Load(type=type, count=Literal(count, _)) | nodes.Gather(type=type, count=Literal(count, _))
        ):
            return replace(node, count=None) if count >= type.lanes else None
        case (
            nodes.Store(value=value, count=Literal(count, _))
            | nodes.Scatter(value=value, count=Literal(count, _))
        ):
            return replace(node, count=None) if count >= type_of(value).lanes else None
        case nodes.Horizontal(value=value, count=Literal(count, _)):
            return replace(node, count=None) if count >= type_of(value).lanes else None
    return None


def drop_single_lane(node: Node) -> Node | None:
    """Replaces a broadcast to one lane, or a horizontal operation over one, by the operand."""
    match node:
        case nodes.Broadcast(value, nodes.Type(_, 1)) | nodes.Lanes(value, nodes.Type(_, 1)):
            return value
        case nodes.Horizontal(_, value, _, None) if type_of(value).lanes == 1:
            return value
    return None


def add_dot(node: Node) -> Node | None:
    """`w + dot_bfloat16(x, y) -> add_dot_bfloat16(x, y, w)`, one instruction."""
    match node:
        case Op("add", (w, Op(name, (x, y), kind)), type) if name in ADDED_DOTS and kind == type:
            return Op(ADDED_DOTS[name], (x, y, w), type)
    return None


# Statements


def flatten(node: Node) -> Node | None:
    """`(a; (b; c)) -> a; b; c`, and `(a) -> a`."""
    match node:
        case Block((only,)):
            return only
        case Block(statements) if any(isinstance(inner, Block) for inner in statements):
            parts = [inner.statements if isinstance(inner, Block) else (inner,) for inner in statements]
            return Block(tuple(stmt for part in parts for stmt in part))
    return None


def drop_empty(node: Node) -> Node | None:
    """Removes loops and branches without statements, and loops without iterations."""
    match node:
        case For(_, Literal(begin, _), Literal(end, _), _, _) if begin >= end:
            return Block(())
        case For(body=Block(())) | If(then=Block(()), otherwise=None):
            return Block(())
        case If(condition, then, Block(())):
            return If(condition, then)
    return None


ARITHMETIC: Final[dict[str, Rule]] = {
    "add": first(fold_integers, constant_last, drop_neutral, gather_constants, subtract_negative, add_dot),
    "sub": first(fold_integers, drop_neutral, annihilate, gather_constants, subtract_negative),
    "mul": first(fold_integers, constant_last, drop_neutral, annihilate, gather_constants),
    "floordiv": first(fold_integers, drop_neutral, divide_multiple),
    "mod": first(fold_integers, annihilate, divide_multiple),
}
LOGIC: Final[dict[str, Rule]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), fold_integers),
    **dict.fromkeys(("min", "max"), first(fold_integers, drop_repeated)),
    **dict.fromkeys(("logical_and", "logical_or", "where"), first(drop_repeated, fold_logic)),
    "logical_not": fold_logic,
    "add": add_dot,
}


def simplify_operation(node: Node) -> Node | None:
    """The rules for the function of an operation; arithmetic rules apply to integers alone."""
    assert isinstance(node, Op)
    rules = ARITHMETIC if node.type.dtype in INTEGERS else LOGIC
    rule = rules.get(node.function) or LOGIC.get(node.function)
    return rule(node) if rule is not None else None


RULES: Final[dict[type[Node], tuple[Rule, ...]]] = {
    Op: (simplify_operation,),
    Convert: (fold_conversion,),
    nodes.Load: (drop_full_count,),
    nodes.Gather: (drop_full_count,),
    nodes.Store: (drop_full_count,),
    nodes.Scatter: (drop_full_count,),
    nodes.Horizontal: (drop_full_count, drop_single_lane),
    nodes.Broadcast: (drop_single_lane,),
    nodes.Lanes: (drop_single_lane,),
    Block: (flatten,),
    For: (drop_empty,),
    If: (drop_empty,),
}
ANY_RULE: Final = by_class(RULES)


# Rules on the whole kernel: a definition moved out of its scope must not clash with another one


DEFINING: Final = (
    Declare,
    For,
    nodes.Transpose,
    nodes.HorizontalTogether,
    nodes.Allocate,
    nodes.Table,
    nodes.ParallelFor,
)


def _definitions(stmt: Node) -> list[str]:
    """Names defined by `stmt`, once for each place."""
    found: list[str] = []
    for node in find(stmt, *DEFINING):
        match node:
            case Declare(var=var) | For(var=var):
                found.append(var.name)
            case nodes.Transpose(outputs=outputs) | nodes.HorizontalTogether(outputs=outputs):
                found += [output.name for output in outputs]
            case nodes.Allocate(buffer=buffer):
                found.append(buffer)
            case nodes.Table(table, buffer, keys):
                found += [table, buffer, keys]
            case nodes.ParallelFor(begin=begin, end=end):
                found += [begin.name, end.name]
    return found


def _declared_once(stmt: nodes.Stmt) -> frozenset[str]:
    return frozenset(name for name, times in Counter(_definitions(stmt)).items() if times == 1)


def _may_leave_scope(stmt: nodes.Stmt, once: frozenset[str]) -> bool:
    has_scratch = holds(stmt, nodes.Allocate, nodes.Table)
    return not has_scratch and once.issuperset(_definitions(stmt))


def _inline_single_trip(once: frozenset[str]) -> Rule:
    def inline_single_trip(node: Node) -> Node | None:
        """`for k in 2..3: body -> body with 2 for k`."""
        match node:
            case For(var, Literal(begin, _), Literal(end, _), body, step) if begin < end <= begin + step:
                if _may_leave_scope(body, once):
                    return _substitute(body, {var.name: Literal(begin, var.type)})
        return None

    return inline_single_trip


def _inline_branch(once: frozenset[str]) -> Rule:
    def inline_branch(node: Node) -> Node | None:
        """`if true: a else: b -> a`."""
        match node:
            case If(Literal(value, _), then, otherwise):
                taken = then if value else otherwise or Block(())
                return taken if _may_leave_scope(taken, once) else None
        return None

    return inline_branch


def _replace_copies(stmt: nodes.Stmt, once: frozenset[str]) -> nodes.Stmt:
    """`j = 3; f(j) -> f(3)`, and likewise for a name of another variable; unread variables are not declared."""
    used = Counter([var.name for var in find(stmt, Var)])
    declared = find(stmt, Declare)
    mutable = {node.var.name for node in declared if node.mutable}
    copies: dict[str, nodes.Expr] = {}
    for node in declared:
        match node:
            case Declare(var, Literal() as value, False) if var.name in once and var.type.lanes == 1:
                copies[var.name] = value
            case Declare(var, Var(source, _) as value, False) if var.name in once and source not in mutable:
                copies[var.name] = copies.get(source, value)
    unused = {node.var.name for node in declared if used[node.var.name] == 1}
    return _substitute(stmt, copies, unused) if copies or unused else stmt


def _substitute(stmt: nodes.Stmt, values: dict[str, nodes.Expr], unused: Container[str] = ()) -> nodes.Stmt:
    """`stmt` with values substituted for variables; drops the declarations of substituted and of unused variables."""

    def visit(node: Node) -> Node:
        match node:
            case Var(name):
                return values.get(name, node)
            case Declare(Var(name), _, _) if name in values or name in unused:
                return Block(())
        return map_children(node, visit)

    return _as_stmt(visit(stmt))
