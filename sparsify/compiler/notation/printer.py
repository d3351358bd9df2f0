"""Text of concrete index notation, on one line and indented.

In: `Forall("i", Forall("j", y[i] += A[i,j] * x[j]))`. Out: `forall i: forall j: y[i] += A[i,j] * x[j]`.
"""

from sparsify.compiler.einsum import nodes as einsum
from sparsify.compiler.ir.node import text_of
from sparsify.compiler.notation import nodes


def statement(stmt: nodes.Statement | einsum.Assign) -> str:
    """The text of a statement on one line; a body reaches as far as possible, `;` included."""
    match stmt:
        case nodes.Sequence(statements):
            last = len(statements) - 1
            return "; ".join(_member(s, closed=n < last) for n, s in enumerate(statements))
        case nodes.Let(_, body) | nodes.Forall(_, body, _) | nodes.If(_, body):
            return f"{head(stmt)} {statement(body)}"
        case _:
            return str(stmt)


def indented(stmt: nodes.Statement | einsum.Assign, depth: int = 0) -> str:
    """The text of a statement with a line for each loop, `let`, `if` and assignment, two spaces a level."""
    match stmt:
        case nodes.Sequence(statements):
            return "\n".join(indented(s, depth) for s in statements)
        case nodes.Let(_, body) | nodes.Forall(_, body, _) | nodes.If(_, body):
            return f"{'  ' * depth}{head(stmt)}\n{indented(body, depth + 1)}"
        case _:
            return f"{'  ' * depth}{stmt}"


def folded(stmt: nodes.Statement | einsum.Assign, width: int = 100, depth: int = 0) -> str:
    """As `indented`, with each nest around a single assignment on one line if shorter than `width`."""
    match stmt:
        case nodes.Sequence(statements):
            return "\n".join(folded(s, width, depth) for s in statements)
        case nodes.Let(_, body) | nodes.Forall(_, body, _) | nodes.If(_, body):
            line = f"{'  ' * depth}{statement(stmt)}"
            if _is_chain(stmt) and len(line) <= width:
                return line
            return f"{'  ' * depth}{head(stmt)}\n{folded(body, width, depth + 1)}"
        case _:
            return f"{'  ' * depth}{stmt}"


def _is_chain(stmt: nodes.Statement | einsum.Assign) -> bool:
    """Whether only loops and conditions surround one assignment."""
    while isinstance(stmt, nodes.Forall | nodes.If):
        stmt = stmt.body
    return isinstance(stmt, einsum.Assign)


def head(stmt: nodes.Statement) -> str:
    """The head of a statement, `parallel forall i by positions of A:`."""
    match stmt:
        case nodes.Forall(index, _, kind):
            return f"{_loop(index, kind)}:"
        case nodes.Let(temporaries, _):
            return f"let {', '.join(map(temporary, temporaries))}:"
        case nodes.If(condition, _):
            return f"if {condition}:"
        case _:
            raise AssertionError(f"{type(stmt).__name__} has no body")


def temporary(temp: nodes.Temporary) -> str:
    """The text of a temporary, `w[k]: float32 in register`."""
    modes = f"[{','.join(temp.indices)}]" if temp.indices else ""
    text = f"{temp.name}{modes}: {temp.dtype} in {temp.scope}"
    if temp.layout and temp.layout != tuple(range(len(temp.indices))):
        text += f" layout ({','.join(map(str, temp.layout))})"
    if temp.pattern_of is not None:
        text += f" pattern of {temp.pattern_of}[{','.join(temp.pattern_indices)}]"
    return f"{text}{' listed' * temp.listed}{' marked' * temp.marked}"


def relation(rel: nodes.Relation) -> str:
    """The text of a relation in schedule syntax, `split k ko ki 64 tail 32 16 8`."""
    match rel:
        case nodes.Split(index, outer, inner, size, tail, masked):
            text = f"split {index} {outer} {inner} {size}"
            return text + (f" tail {' '.join(map(str, tail))}" if tail else " masked" if masked else "")
        case nodes.Fuse(first, second, fused):
            return f"fuse {first} {second} {fused}"
        case nodes.Position(index, position, tensor):
            return f"pos {index} {position} {tensor}"
        case nodes.Prefetch(tensor, distance):
            return f"prefetch {tensor} {distance}"
        case _:
            raise AssertionError(f"no text for {type(rel).__name__}")


def notation(tree: nodes.Notation, *, multiline: bool = False) -> str:
    """The text of a whole notation: declarations, relations and the body, on one line or indented."""
    lines = [str(declared) for declared in tree.declarations]
    lines += map(relation, tree.relations)
    lines.append(indented(tree.body) if multiline else statement(tree.body))
    return "\n".join(lines)


def _member(stmt: nodes.Statement | einsum.Assign, closed: bool) -> str:
    """A member of a sequence, in parentheses if the next member would be parsed as part of the body."""
    open_ended = closed and not isinstance(stmt, einsum.Assign)
    return f"({statement(stmt)})" if open_ended or isinstance(stmt, nodes.Sequence) else statement(stmt)


def _loop(index: str, kind: nodes.Kind) -> str:
    """The text of a loop including the kind, `vector forall k`."""
    match kind:
        case nodes.Serial():
            return f"forall {index}"
        case nodes.Vector():
            return f"vector forall {index}"
        case nodes.Unrolled():
            return f"unrolled forall {index}"
        case nodes.Transposed():
            return f"transposed forall {index}"
        case nodes.Parallel(policy, by, chunks, hubs):
            text = f"parallel forall {index}"
            if policy != "static":
                text += f" {policy}"
            if by:
                text += f" by positions of {by}"
            return text + (f" chunks {chunks}" if chunks != 1 else "") + (f" hubs {hubs}" if hubs else "")
        case _:
            raise AssertionError(f"no text for {type(kind).__name__}")


text_of.register(nodes.Statement, statement)
text_of.register(nodes.Temporary, temporary)
text_of.register(nodes.Relation, relation)
text_of.register(nodes.Notation, notation)
