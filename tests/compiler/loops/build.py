"""Short names for building loop IR by hand in tests."""

from sparsify.compiler.loops.nodes import (
    INT,
    Block,
    Buffer,
    Expr,
    For,
    Function,
    Literal,
    Load,
    Op,
    Stmt,
    Type,
    Var,
    type_of,
)

F32 = Type("float32")
F64 = Type("float64")
I32 = Type("int32")


def var(name: str, type: Type = INT) -> Var:
    return Var(name, type)


def lit(value: float, type: Type = INT) -> Literal:
    return Literal(value, type)


def op(name: str, *args: Expr) -> Op:
    """Operation with the type of its last operand; comparisons are bool."""
    type = type_of(args[-1])
    is_bool = name in ("eq", "ne", "lt", "le", "gt", "ge")
    return Op(name, args, Type("bool", type.lanes) if is_bool else type)


def add(x: Expr, y: Expr) -> Op:
    return op("add", x, y)


def mul(x: Expr, y: Expr) -> Op:
    return op("mul", x, y)


def load(buffer: str, index: Expr, type: Type, count: Expr | None = None) -> Load:
    return Load(buffer, index, type, count)


def block(*statements: Stmt) -> Block:
    return Block(statements)


def loop(name: str, begin: Expr, end: Expr, *body: Stmt, step: int = 1) -> For:
    return For(var(name), begin, end, Block(body), step)


def kernel(sizes: str, buffers: str, *body: Stmt, vector_bytes: int = 32, comment: str = "") -> Function:
    """`buffers` reads `A:float32 >Y:float32 *C:int32`: `>` marks outputs, `*` grown ones."""
    parsed = []
    for text in buffers.split():
        name, _, dtype = text.partition(":")
        parsed.append(Buffer(name.lstrip(">*"), dtype, name[0] in ">*", name[0] == "*"))
    return Function(tuple(sizes.split()), tuple(parsed), Block(body), vector_bytes, comment)


def lanes_for(dtype: str, vector_bytes: int) -> int:
    size = {"float32": 4, "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1}[dtype]
    return max(1, vector_bytes // size)
