"""Text of einsum programs, with the fewest parentheses.

In: `Call("mul", (Call("add", (a, b)), c))`. Out: `(a + b) * c`. `parse` reads the text back.

Source of the notation: Kjolstad, Kamil, Chou, Lugato and Amarasinghe, The tensor algebra compiler, 2017.
"""

from math import inf, isnan

from sparsify.compiler.einsum import nodes
from sparsify.compiler.einsum.functions import ATOM, COMPARISON, FUNCTIONS, NEGATION, POWER
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.ir.node import text_of
from sparsify.storage.format import StoredLevel
from sparsify.storage.level.levels import spelled


def expression(expr: nodes.Expr) -> str:
    """The text of an expression, `relu(sum(j, A[i,j] * T[j,k]) + b[k])`."""
    match expr:
        case nodes.Const(value):
            return _number(value)
        case nodes.Index(name):
            return name
        case nodes.Access(tensor, indices):
            return f"{tensor}[{','.join(map(_compact, indices))}]" if indices else tensor
        case nodes.Reduce(monoid, indices, body):
            return f"{monoid}({', '.join(indices)}, {expression(body)})"
        case nodes.Stored(access):
            return f"stored({expression(access)})"
        case nodes.Extent(name):
            return f"extent({name})"
        case nodes.Call(name, args):
            return _call(name, args)
        case nodes.Cast(dtype, value):
            return f"{dtype}({expression(value)})"
        case _:
            raise AssertionError(f"no text for {type(expr).__name__}")


def assignment(assign: nodes.Assign) -> str:
    """The text of a statement, `d[i] += P[i,j]`."""
    operator = "=" if assign.monoid is None else MONOIDS[assign.monoid].assign
    return f"{expression(assign.target)} {operator} {expression(assign.value)}"


def declaration(declared: nodes.Declaration) -> str:
    """The text of a declaration, `A[i,j]: float32 dense(i) compressed(j); fill -inf; pattern of B`."""
    name, dtype, levels = declaration_parts(declared)
    parts = [f"{name}: {dtype} {levels}".rstrip()]
    if declared.fill != 0:
        parts.append(f"fill {_number(declared.fill)}")
    if any(pos or crd for pos, crd in declared.index_dtypes):
        parts.append("index " + ", ".join(f"{pos or '-'}/{crd or '-'}" for pos, crd in declared.index_dtypes))
    if declared.pattern_of is not None:
        parts.append(f"pattern of {declared.pattern_of}")
    if declared.selection is not None:
        parts.append(str(declared.selection))
    elif declared.drops:
        parts.append("drops fills")
    if declared.interior is not None:
        parts.append(str(declared.interior))
    return "; ".join(parts)


def declaration_parts(declared: nodes.Declaration) -> tuple[str, str, str]:
    """Name with modes, dtype and levels of a declaration, `A[i,j]`, `float32`, `dense(i) compressed(j)`."""
    modes = f"[{','.join(declared.extents)}]" if declared.extents else ""
    levels = " ".join(_level(stored, declared.extents) for stored in declared.format.levels)
    return f"{declared.name}{modes}", declared.dtype, levels


def program(prog: nodes.Program) -> str:
    """The text of a program: a line for each declaration and each statement, inputs and outputs named."""
    lines = [f"in {', '.join(prog.inputs)}", f"out {', '.join(prog.outputs)}"]
    if prog.extents:
        lines.append("extent " + ", ".join(f"{name} = {size}" for name, size in prog.extents))
    lines += map(declaration, prog.declarations)
    lines += map(assignment, prog.statements)
    return "\n".join(lines)


def _level(stored: StoredLevel, extents: tuple[str, ...]) -> str:
    """A level with its expression, `compressed(j)` or `dense(i%16)`."""
    stores = stored.expression
    text = extents[stores.mode]
    if stores.kind in ("block", "within"):
        text += f"{'/' if stores.kind == 'block' else '%'}{stores.size}"
    elif stores.other is not None:
        text += f"-{extents[stores.other]}"
    return spelled(stored.level.name, (text, *stored.level.parameters))


def _number(value: float | int | bool) -> str:
    """A literal that parses to the same number, `-inf`."""
    if isinstance(value, bool | int):
        return str(value)
    if isnan(value):
        return "nan"
    return {inf: "inf", -inf: "-inf"}.get(value, repr(value))


def _compact(index: nodes.Expr) -> str:
    """The text of an index of an access, without spaces, `2*h+r-1`."""
    return expression(index).replace(" ", "")


def _call(name: str, args: tuple[nodes.Expr, ...]) -> str:
    """The text of a function applied to arguments."""
    function = FUNCTIONS.get(name)
    if function is None or not function.symbol:
        texts = [expression(arg) for arg in args]
        if name in MONOIDS and args and isinstance(args[0], nodes.Index):
            texts[0] = f"({texts[0]})"  # max(j, ...) would read back as a reduction over j
        return f"{name}({', '.join(texts)})"
    if function.arity == 1:
        return function.symbol + _operand(args[0], NEGATION, literal=True)
    # Comparisons do not chain and powers group to the right; all other operators group to the left.
    grade = function.precedence
    left = grade + (grade in (COMPARISON, POWER))
    right = grade + (grade != POWER)
    if grade == POWER:
        right = NEGATION
    return f"{_operand(args[0], left)} {function.symbol} {_operand(args[1], right)}"


def _operand(expr: nodes.Expr, least: int, literal: bool = False) -> str:
    """The text of an operand, in parentheses if it binds less tightly than `least`.

    With `literal`, a number takes parentheses too: `-(1)` is a negation, `-1` a number.
    """
    text = expression(expr)
    return f"({text})" if _precedence(expr) < least or (literal and isinstance(expr, nodes.Const)) else text


def _precedence(expr: nodes.Expr) -> int:
    """Precedence of the text of `expr`."""
    match expr:
        case nodes.Call(name, _):
            return FUNCTIONS[name].precedence if name in FUNCTIONS else ATOM
        case nodes.Const(value) if _number(value).startswith("-"):
            return NEGATION
        case _:
            return ATOM


text_of.register(nodes.Expr, expression)
text_of.register(nodes.Assign, assignment)
text_of.register(nodes.Declaration, declaration)
text_of.register(nodes.Program, program)
