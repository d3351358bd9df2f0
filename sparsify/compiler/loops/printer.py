"""The textbook form of loop IR.

In: `For(p, begin, end, body)`. Out: `for p in A2_pos[i]..A2_pos[i + 1]:` and the indented body.
"""

from typing import Final

from sparsify.compiler.ir.node import text_of
from sparsify.compiler.loops import nodes

INDENT: Final = "  "

OR, AND, COMPARISON, SUM, PRODUCT, PREFIX, POWER, ATOM = range(1, 9)
INFIX: Final = {
    "logical_or": ("or", OR),
    "logical_and": ("and", AND),
    "eq": ("==", COMPARISON),
    "ne": ("!=", COMPARISON),
    "lt": ("<", COMPARISON),
    "le": ("<=", COMPARISON),
    "gt": (">", COMPARISON),
    "ge": (">=", COMPARISON),
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "floordiv": ("//", PRODUCT),
    "mod": ("%", PRODUCT),
    "pow": ("**", POWER),
}
PREFIXES: Final = {"neg": "-", "logical_not": "not "}


def expression(expr: nodes.Expr) -> str:
    """`expr` on one line, with no more parentheses than needed."""
    return _expression(expr)[0]


def statement(stmt: nodes.Stmt) -> str:
    """`stmt` as indented lines."""
    return "\n".join(_lines(stmt))


def function(kernel: nodes.Function) -> str:
    """The arguments and the body of a kernel."""
    arguments = [*kernel.sizes, *(_argument(buffer) for buffer in kernel.buffers)]
    lines = [f"kernel({', '.join(arguments)}), vectors of {kernel.vector_bytes} bytes:"]
    if kernel.comment:
        lines = [*(f"# {line}" for line in kernel.comment.splitlines()), *lines]
    return "\n".join([*lines, *_indented(kernel.body)])


def _argument(buffer: nodes.Buffer) -> str:
    role = "grown " if buffer.grown else "out " if buffer.output else ""
    return f"{role}{buffer.name}: {buffer.dtype}"


def _within(expr: nodes.Expr, precedence: int) -> str:
    text, own = _expression(expr)
    return text if own >= precedence else f"({text})"


def _range(index: nodes.Expr, lanes: int, count: nodes.Expr | None) -> str:
    if lanes == 1 and count is None:
        return expression(index)
    limit = "" if count is None else f" if < {expression(count)}"
    return f"{expression(index)} ..{lanes}{limit}"


def _limit(count: nodes.Expr | None) -> str:
    return "" if count is None else f" if < {expression(count)}"


def _expression(expr: nodes.Expr) -> tuple[str, int]:
    match expr:
        case nodes.Var(name, _):
            return name, ATOM
        case nodes.Literal(constant, kind):
            text = str(constant) if kind.lanes == 1 else f"{constant}x{kind.lanes}"
            return text, PREFIX if text.startswith("-") else ATOM
        case nodes.Op(name, args, _):
            return _operation(name, args)
        case nodes.Convert(value, target) | nodes.Broadcast(value, target):
            return f"{target}({expression(value)})", ATOM
        case nodes.Lanes(start, kind):
            return f"{_within(start, ATOM)}..{kind.lanes}", ATOM
        case nodes.Load(buffer, index, kind, count):
            return f"{buffer}[{_range(index, kind.lanes, count)}]", ATOM
        case nodes.Gather(buffer, indices, _, count):
            return f"{buffer}[{expression(indices)}{_limit(count)}]", ATOM
        case nodes.Bits(buffer, index, count, first):
            return f"bits({buffer}[{expression(index)}], {first} ..{count})", ATOM
        case nodes.Expand(buffer, index, bits, _, kind):
            return f"{buffer}[{expression(index)} ..{kind.lanes} at {expression(bits)}]", ATOM
        case nodes.LaneBits(bits, kind):
            return f"lanes({expression(bits)} ..{kind.lanes})", ATOM
        case nodes.Horizontal(name, value, _, count):
            return f"horizontal {name}({expression(value)}{_limit(count)})", ATOM
        case _:
            raise AssertionError(f"unknown expression {type(expr).__name__}")


def _operation(name: str, args: tuple[nodes.Expr, ...]) -> tuple[str, int]:
    if name in INFIX and len(args) == 2:
        symbol, precedence = INFIX[name]
        left = _within(args[0], precedence)
        right = _within(args[1], precedence if name in ("add", "mul") else precedence + 1)
        return f"{left} {symbol} {right}", precedence
    if name in PREFIXES:
        return f"{PREFIXES[name]}{_within(args[0], PREFIX)}", PREFIX
    return f"{name}({', '.join(expression(arg) for arg in args)})", ATOM


def _indented(stmt: nodes.Stmt) -> list[str]:
    lines = _lines(stmt) or ["pass"]
    return [INDENT + line for line in lines]


def _lines(stmt: nodes.Stmt) -> list[str]:
    match stmt:
        case nodes.Block(statements):
            return [line for inner in statements for line in _lines(inner)]
        case nodes.Comment(text):
            return [f"# {line}" for line in text.splitlines()]
        case nodes.For(var, begin, end, body, step):
            stride = f" step {step}" if step != 1 else ""
            return [f"for {var.name} in {expression(begin)}..{expression(end)}{stride}:", *_indented(body)]
        case nodes.While(condition, body):
            return [f"while {expression(condition)}:", *_indented(body)]
        case nodes.If(condition, then, otherwise):
            rest = [] if otherwise is None else ["else:", *_indented(otherwise)]
            return [f"if {expression(condition)}:", *_indented(then), *rest]
        case nodes.ParallelFor():
            return _parallel(stmt)
        case _:
            return [_line(stmt)]


def _line(stmt: nodes.Stmt) -> str:
    match stmt:
        case nodes.Declare(var, value, mutable):
            return f"{'var ' if mutable else ''}{var.name}: {var.type} = {expression(value)}"
        case nodes.Set(var, value):
            return f"{var.name} = {expression(value)}"
        case nodes.Store(buffer, index, value, count):
            return f"{buffer}[{_range(index, nodes.type_of(value).lanes, count)}] = {expression(value)}"
        case nodes.Scatter(buffer, indices, value, count):
            return f"{buffer}[{expression(indices)}{_limit(count)}] = {expression(value)}"
        case nodes.Transpose(outputs, inputs):
            names = ", ".join(output.name for output in outputs)
            return f"{names} = transpose({', '.join(map(expression, inputs))})"
        case nodes.HorizontalTogether(outputs, function, inputs):
            names = ", ".join(output.name for output in outputs)
            return f"{names} = horizontal {function}({', '.join(map(expression, inputs))})"
        case nodes.Allocate(buffer, dtype, count, fill):
            initial = "" if fill is None else f" = {fill}"
            return f"scratch {buffer}: {dtype}[{expression(count)}]{initial}"
        case nodes.Fill(buffer, begin, count, value):
            return f"fill {buffer}[{expression(begin)} ..{_within(count, ATOM)}] = {expression(value)}"
        case nodes.Sort(buffer, count):
            return f"sort {buffer}[0 ..{_within(count, ATOM)}]"
        case nodes.Enumerate(buffer, flags, count):
            return f"{buffer} = enumerate {flags}[0 ..{_within(count, ATOM)}]"
        case nodes.Mark(buffer, index, _):
            return f"mark {expression(index)} in {buffer}"
        case nodes.TakeMarks(var, buffer, marks, extent, _):
            into = "" if buffer is None else f"{buffer}[{var.name} ..] and "
            return f"{into}{var.name} += marks of {marks}[0 ..{_within(extent, ATOM)}]"
        case nodes.Table(table, buffer, keys, dtype):
            return f"table {table}: {keys} of int64, {buffer} of {dtype}"
        case nodes.Enter(var, table, key):
            return f"{var.name} = place of {expression(key)} in {table}"
        case nodes.SortTable(table, count):
            return f"sort {table}[0 ..{_within(count, ATOM)}]"
        case nodes.ClearTable(table):
            return f"clear {table}"
        case nodes.Compress(var, buffer, values, source, begin, count, _, fill, _, selection):
            into = "" if buffer is None else f"{buffer}, {values}[{var.name} ..] and "
            read = f"{source}[{expression(begin)} ..{_within(count, ATOM)}]"
            which = f"entries of {read} that are not {expression(fill)}" if selection is None else ""
            return f"{into}{var.name} += {which or f'{selection} entries of {read}'}"
        case nodes.Prefetch(buffer, index):
            return f"prefetch {buffer}[{expression(index)}]"
        case nodes.AllocateOutput(buffer, dtype, count):
            return f"output {buffer}: {dtype}[{expression(count)}]"
        case nodes.Return(status):
            return f"return {status}"
        case _:
            raise AssertionError(f"unknown statement {type(stmt).__name__}")


def _parallel(stmt: nodes.ParallelFor) -> list[str]:
    how = "dynamic" if stmt.dynamic else "static"
    balance = "" if stmt.balance is None else f" by {stmt.balance} + {stmt.row_cost} * rows"
    head = (
        f"parallel {stmt.begin.name}, {stmt.end.name} in chunks(0..{expression(stmt.extent)}{balance}), "
        f"{how} {stmt.chunks_per_thread}, work {expression(stmt.work)}:"
    )
    setup = _lines(stmt.setup)
    inner = ["setup:", *(INDENT + line for line in setup)] if setup else []
    return [head, *(INDENT + line for line in inner), *_indented(stmt.body)]


text_of.register(nodes.Expr, expression)
text_of.register(nodes.Stmt, statement)
text_of.register(nodes.Function, function)
