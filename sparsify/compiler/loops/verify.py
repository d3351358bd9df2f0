"""Checks that a kernel of loop IR is well formed; a violation is an `AssertionError` that quotes the code.

In: a `Function`. Out: nothing, if types agree, names are defined before use and only mutable variables are
set, buffers are declared and inputs only read, and parallel loops neither return nor set outer variables.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.ir.dtypes import BYTES, FLOATING, STORED_HALVES, category, real
from sparsify.compiler.ir.node import Node
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import ADDED_DOTS, type_of

DTYPES: Final = frozenset(BYTES)
INDEX_DTYPES: Final = ("int16", "int32", "int64")
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
LOGIC: Final = ("logical_and", "logical_or", "logical_xor", "logical_not")
# On the bits of an integer: count of set bits, number of the lowest set bit, all but the lowest.
ON_BITS: Final = ("count_bits", "lowest_bit", "drop_bit")
OF_LOOPS: Final = {
    "fma": 3,
    "floordiv": 2,
    "held": 1,
    **dict.fromkeys(ON_BITS, 1),
    **dict.fromkeys(ADDED_DOTS.values(), 3),
}
ARITIES: Final = {**OF_LOOPS, **{name: f.arity for name, f in FUNCTIONS.items() if not f.body}}
BIT_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
REDUCTIONS: Final = ("add", "mul", "min", "max", "logical_or", "logical_and")


def verify(function: nodes.Function) -> None:
    """Raises `AssertionError` if the kernel is not well formed."""
    arguments = [*function.sizes, *(buffer.name for buffer in function.buffers)]
    for name in arguments:
        assert arguments.count(name) == 1, f"two arguments are called {name}"
    scope = Scope(
        dict.fromkeys(function.sizes, nodes.INT),
        {buffer.name: buffer.dtype for buffer in function.buffers},
        writable={b.name for b in function.buffers if b.output or b.grown},
        grown={b.name for b in function.buffers if b.grown},
    )
    for buffer in function.buffers:
        assert buffer.dtype in DTYPES, f"{buffer.name} has the unknown dtype {buffer.dtype}"
    scope.check(function.body)


def _is_index(type: nodes.Type) -> bool:
    return type.lanes == 1 and type.dtype in INDEX_DTYPES


@dataclass
class Scope:
    """Definitions in scope: variables with their types, buffers with their dtypes."""

    variables: dict[str, nodes.Type]
    buffers: dict[str, str]
    mutable: set[str] = field(default_factory=set)
    writable: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    parallel: bool = False

    def inner(self) -> "Scope":
        """A nested scope; definitions end with the scope."""
        return replace(
            self,
            variables=dict(self.variables),
            buffers=dict(self.buffers),
            mutable=set(self.mutable),
            writable=set(self.writable),
        )

    def define(self, var: nodes.Var, where: Node, mutable: bool = False) -> None:
        """Defines a new variable."""
        assert var.name not in self.variables, f"{var.name} is defined twice, again in {where}"
        assert var.name not in self.buffers, f"{var.name} is a buffer and a variable, in {where}"
        assert var.type.dtype in DTYPES, f"{where} has the unknown dtype {var.type.dtype}"
        self.variables[var.name] = var.type
        if mutable:
            self.mutable.add(var.name)

    # Expressions

    def type(self, expr: nodes.Expr) -> nodes.Type:
        """The checked type of `expr`."""
        self._expression(expr)
        return type_of(expr)

    def index(self, expr: nodes.Expr, where: Node) -> None:
        """Checks that `expr` is a scalar integer."""
        assert _is_index(self.type(expr)), f"{expr} in {where} is {type_of(expr)}, not a scalar integer"

    def count(self, expr: nodes.Expr | None, where: Node) -> None:
        """Checks that a count is a scalar integer."""
        if expr is not None:
            self.index(expr, where)

    def buffer(self, name: str, where: Node) -> str:
        """The dtype of a defined buffer."""
        assert name in self.buffers, f"no buffer {name} is defined where {where} uses it"
        return self.buffers[name]

    def _expression(self, expr: nodes.Expr) -> None:
        kind = type_of(expr)
        assert kind.lanes >= 1 and kind.dtype in DTYPES, f"{expr} has the impossible type {kind}"
        match expr:
            case nodes.Var(name, _):
                assert name in self.variables, f"{name} is used before it is defined"
                assert self.variables[name] == kind, f"{name} is {self.variables[name]}, used as {kind}"
            case nodes.Literal(value, _):
                whole = category(kind.dtype) >= FLOATING or value == int(value)
                assert whole, f"the constant {value} is no {kind.dtype}"
            case nodes.Op(name, args, _):
                self._operation(expr, name, [self.type(arg) for arg in args])
            case nodes.Convert(value, _):
                assert self.type(value).lanes == kind.lanes, f"{expr} changes the number of lanes"
            case nodes.Broadcast(value, _) | nodes.Lanes(value, _):
                wanted = nodes.Type(kind.dtype)
                assert self.type(value) == wanted, f"{expr} needs a scalar {kind.dtype}, has {type_of(value)}"
            case nodes.Load(buffer, index, _, count):
                assert self.buffer(buffer, expr) == kind.dtype, (
                    f"{expr} reads {self.buffers[buffer]} as {kind}"
                )
                self.index(index, expr)
                self.count(count, expr)
            case nodes.Gather(buffer, indices, _, count):
                assert self.buffer(buffer, expr) == kind.dtype, (
                    f"{expr} reads {self.buffers[buffer]} as {kind}"
                )
                self._indices(indices, kind.lanes, expr)
                self.count(count, expr)
            case nodes.Bits(buffer, index, size, first):
                fits = size in BIT_COUNTS and (first + size <= 8 or first == 0)
                assert self.buffer(buffer, expr) == "int8" and fits, f"{expr} is no bits of bytes"
                self.index(index, expr)
            case nodes.Expand(buffer, index, bits, end, _):
                assert self.buffer(buffer, expr) == kind.dtype, (
                    f"{expr} reads {self.buffers[buffer]} as {kind}"
                )
                for part in (index, bits, end):
                    self.index(part, expr)
            case nodes.LaneBits(bits, _):
                assert kind.dtype == "bool", f"{expr} makes {kind}"
                self.index(bits, expr)
            case nodes.Horizontal(name, value, _, count):
                assert name in REDUCTIONS, f"{expr} combines lanes by {name}, which is none of {REDUCTIONS}"
                dtype = self.type(value).dtype
                assert (dtype == "bool") == (name in LOGIC) and kind == nodes.Type(dtype), (
                    f"{expr} makes {kind} of {type_of(value)}"
                )
                self.count(count, expr)

    def _indices(self, indices: nodes.Expr, lanes: int, where: Node) -> None:
        found = self.type(indices)
        fits = found.lanes == lanes and found.dtype in INDEX_DTYPES
        assert fits, f"{where} has indices of type {found} for {lanes} lanes"

    def _operation(self, expr: nodes.Op, name: str, args: list[nodes.Type]) -> None:
        kind = expr.type
        if name == "lookup":
            fits = (
                args[0] == nodes.Type("int64", kind.lanes) and {*args[1:]} == {kind} and kind.dtype != "bool"
            )
            assert fits, f"{expr} needs a number for each lane, and vectors of {kind} that are no masks"
            return
        assert name in ARITIES, f"{expr} calls the unknown function {name}"
        assert len(args) == ARITIES[name], f"{name} takes {ARITIES[name]} operands, {expr} has {len(args)}"
        for arg in (kind, *args):
            assert arg.dtype not in STORED_HALVES, f"{expr} computes in {arg}, which is for memory"
        if name in COMPARISONS:
            fits = args[0] == args[1] and kind == nodes.Type("bool", args[0].lanes)
        elif name in LOGIC:
            fits = args.count(kind) == len(args) and kind.dtype == "bool"
        elif name == "where":
            fits = args == [nodes.Type("bool", kind.lanes), kind, kind]
        elif name in ("abs", "real"):
            fits = kind.dtype == real(args[0].dtype) != "bool" and kind.lanes == args[0].lanes
        elif name in FUNCTIONS and FUNCTIONS[name].of_integers:
            operand = nodes.Type(FUNCTIONS[name].operands, kind.lanes)
            fits = kind.dtype == FUNCTIONS[name].result and args.count(operand) == len(args)
        elif name in ADDED_DOTS.values():
            dot = FUNCTIONS[next(dot for dot, added in ADDED_DOTS.items() if added == name)]
            packed = nodes.Type(dot.operands, kind.lanes)
            fits = kind.dtype == dot.result and args == [packed, packed, kind]
        elif name in ON_BITS:
            fits = args == [nodes.INT] == [kind]
        else:
            needs_float = name in FUNCTIONS and FUNCTIONS[name].result == "float"
            allowed = kind.dtype != "bool" and (category(kind.dtype) >= FLOATING or not needs_float)
            fits = allowed and args.count(kind) == len(args)
        assert fits, f"{expr} of type {kind} has operands of types {', '.join(map(str, args))}"

    # Statements

    def check(self, stmt: nodes.Stmt) -> None:
        """Checks `stmt` and adds its definitions to the scope."""
        match stmt:
            case nodes.Block(statements):
                for inner in statements:
                    self.check(inner)
            case nodes.Comment():
                pass
            case nodes.Declare(var, value, mutable):
                assert self.type(value) == var.type, f"{stmt} has a value of type {type_of(value)}"
                self.define(var, stmt, mutable)
            case nodes.Set(var, value):
                assert self.type(var) == self.type(value), f"{stmt} has a value of type {type_of(value)}"
                assert var.name in self.mutable, f"{stmt} sets a variable that is not mutable here"
            case nodes.Transpose(outputs, inputs):
                self._transpose(stmt, outputs, inputs)
            case nodes.HorizontalTogether(outputs, _, inputs):
                kinds = {self.type(value) for value in inputs}
                kind, count = kinds.pop(), len(outputs)
                fits = not kinds and count == len(inputs) <= kind.lanes and count & (count - 1) == 0
                assert fits, (
                    f"{stmt} needs as many vectors of one type as outputs, a power of two up to the lanes"
                )
                for output in outputs:
                    assert output.type == nodes.Type(kind.dtype), f"{stmt} makes scalars of {kind.dtype}"
                    self.define(output, stmt)
            case nodes.For() | nodes.While() | nodes.If() | nodes.ParallelFor():
                self._control(stmt)
            case nodes.Return():
                assert not self.parallel, "a parallel loop returns"
            case _:
                self._memory(stmt)

    def _transpose(
        self, stmt: nodes.Stmt, outputs: tuple[nodes.Var, ...], inputs: tuple[nodes.Expr, ...]
    ) -> None:
        types = {self.type(value) for value in inputs} | {output.type for output in outputs}
        assert len(types) == 1, f"{stmt} mixes types {sorted(map(str, types))}"
        lanes = outputs[0].type.lanes
        square = lanes == len(inputs) == len(outputs) and lanes & (lanes - 1) == 0
        assert square, f"{stmt} needs as many rows as lanes, a power of two"
        for output in outputs:
            self.define(output, stmt)

    def _write(self, buffer: str, stmt: nodes.Stmt) -> str:
        dtype = self.buffer(buffer, stmt)
        assert buffer in self.writable, f"{stmt} writes to the input {buffer}"
        return dtype

    def _table(self, stmt: nodes.Table | nodes.Enter | nodes.SortTable | nodes.ClearTable) -> None:
        match stmt:
            case nodes.Table(table, buffer, keys, dtype):
                assert dtype in DTYPES, f"{stmt} has the unknown dtype {dtype}"
                for name, kind in ((table, "int64"), (keys, "int64"), (buffer, dtype)):
                    assert name not in self.buffers, f"{name} is a buffer already, in {stmt}"
                    self.buffers[name] = kind
                self.writable |= {table, buffer}
            case nodes.Enter(var, table, key):
                self._write(table, stmt)
                assert var.name in self.mutable and var.type == nodes.INT, f"{stmt} sets {var.name}"
                self.index(key, stmt)
            case nodes.SortTable(table, count):
                self._write(table, stmt)
                self.index(count, stmt)
            case nodes.ClearTable(table):
                self._write(table, stmt)

    def _compress(self, stmt: nodes.Compress) -> None:
        match stmt:
            case nodes.Compress(var, into, values, source, begin, count, first, fill, end, selection):
                is_rounded = selection is not None and type_of(fill).dtype in STORED_HALVES
                dtype = "float32" if is_rounded else type_of(fill).dtype
                assert self.buffer(source, stmt) == dtype, f"{stmt} compares with another dtype"
                assert into is None or self._write(into, stmt) in INDEX_DTYPES, f"{stmt} writes numbers"
                assert into is None or self._write(values, stmt) == type_of(fill).dtype, f"{stmt} casts"
                assert var.name in self.mutable and var.type == nodes.INT, f"{stmt} sets {var.name}"
                for part in (begin, count, first, end):
                    self.index(part, stmt)

    def _memory(self, stmt: nodes.Stmt) -> None:
        match stmt:
            case nodes.Store(buffer, index, value, count):
                assert self._write(buffer, stmt) == self.type(value).dtype, f"{stmt} writes {type_of(value)}"
                self.index(index, stmt)
                self.count(count, stmt)
            case nodes.Scatter(buffer, indices, value, count):
                assert self._write(buffer, stmt) == self.type(value).dtype, f"{stmt} writes {type_of(value)}"
                self._indices(indices, type_of(value).lanes, stmt)
                self.count(count, stmt)
            case nodes.Fill(buffer, begin, count, value):
                wanted = nodes.Type(self._write(buffer, stmt))
                assert self.type(value) == wanted, f"{stmt} writes {type_of(value)} to {wanted}"
                self.index(begin, stmt)
                self.index(count, stmt)
            case nodes.Sort(buffer, count):
                assert self._write(buffer, stmt).startswith("int"), f"{stmt} sorts what are no integers"
                self.index(count, stmt)
            case nodes.Enumerate(buffer, flags, count):
                assert self._write(buffer, stmt) == "int64", f"{stmt} needs int64 for its numbers"
                assert self.buffer(flags, stmt) == "int8", f"{stmt} reads flags of int8"
                self.index(count, stmt)
            case nodes.Mark(buffer, index, extent):
                assert self._write(buffer, stmt) == "int8", f"{stmt} needs marks of int8"
                self.index(index, stmt)
                self.index(extent, stmt)
            case nodes.TakeMarks(var, into, marks, extent, end):
                assert self._write(marks, stmt) == "int8", f"{stmt} needs marks of int8"
                assert into is None or self._write(into, stmt) in INDEX_DTYPES, f"{stmt} writes numbers"
                assert var.name in self.mutable and var.type == nodes.INT, f"{stmt} sets {var.name}"
                self.index(extent, stmt)
                self.index(end, stmt)
            case nodes.Table() | nodes.Enter() | nodes.SortTable() | nodes.ClearTable():
                self._table(stmt)
            case nodes.Compress():
                self._compress(stmt)
            case nodes.Prefetch(buffer, index):
                self.buffer(buffer, stmt)
                self.index(index, stmt)
            case nodes.Allocate(buffer, dtype, count, _):
                self.index(count, stmt)
                taken = buffer in self.buffers or buffer in self.variables
                assert dtype in DTYPES and not taken, f"{stmt} is of unknown dtype or takes a name in use"
                self.buffers[buffer] = dtype
                self.writable.add(buffer)
            case nodes.AllocateOutput(buffer, dtype, count):
                self.index(count, stmt)
                assert buffer in self.grown, f"{stmt} allocates what is no grown output"
                assert self.buffers[buffer] == dtype, (
                    f"{stmt} differs from the declared {self.buffers[buffer]}"
                )
                assert not self.parallel, f"{stmt} lies in a parallel loop"
            case _:
                raise AssertionError(f"unknown statement {stmt!r}")

    def _control(self, stmt: nodes.For | nodes.While | nodes.If | nodes.ParallelFor) -> None:
        match stmt:
            case nodes.For(var, begin, end, body, step):
                self.index(begin, stmt)
                self.index(end, stmt)
                assert step > 0 and _is_index(var.type), (
                    f"{stmt} needs an integer variable and a positive step"
                )
                scope = self.inner()
                scope.define(var, stmt)
                scope.check(body)
            case nodes.While(condition, body):
                assert self.type(condition) == nodes.BOOL, f"{condition} in {stmt} is no scalar bool"
                self.inner().check(body)
            case nodes.If(condition, then, otherwise):
                assert self.type(condition) == nodes.BOOL, f"{condition} in {stmt} is no scalar bool"
                self.inner().check(then)
                if otherwise is not None:
                    self.inner().check(otherwise)
            case nodes.ParallelFor():
                self._parallel(stmt)

    def _parallel(self, stmt: nodes.ParallelFor) -> None:
        assert not self.parallel, "a parallel loop lies in another"
        threshold = self.variables.get("serial_threshold")
        assert threshold == nodes.INT, "a kernel with a parallel loop needs the size serial_threshold"
        self.index(stmt.extent, stmt)
        assert self.type(stmt.work) == nodes.INT, f"the work {stmt.work} is {type_of(stmt.work)}"
        assert stmt.chunks_per_thread >= 1 and stmt.row_cost >= 0, "a parallel loop needs a chunk a thread"
        if stmt.balance is not None:
            dtype = self.buffer(stmt.balance, stmt)
            assert dtype in ("int32", "int64"), f"{stmt.balance} balances a loop but is {dtype}"
        scope = self.inner()
        scope.parallel, scope.mutable = True, set()
        scope.check(stmt.setup)
        for var in (stmt.begin, stmt.end):
            assert var.type == nodes.INT, f"{var.name} bounds a chunk but is {var.type}"
            scope.define(var, stmt)
        scope.check(stmt.body)
