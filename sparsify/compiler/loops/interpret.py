"""Reference interpreter of loop IR: slow, exact about types, lanes and counts, and checked everywhere.

In: a kernel, `{"k_extent": 4}` and `{"A_vals": array, ...}`. Out: the outputs written in place, the arrays of
grown outputs returned. An access outside an array, a write to an input or a read of unallocated memory
is an `AssertionError` with the access.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.packed_numbers import dot_bfloat16, dot_uint8_int8
from sparsify.compiler.einsum.select import selected
from sparsify.compiler.ir.dtypes import STORED_HALVES
from sparsify.compiler.ir.node import Node
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.bitset import MARKS, padded
from sparsify.compiler.loops.nodes import type_of
from sparsify.compiler.loops.numpy_values import Value, array_dtype, converted, full, poison, unsigned
from sparsify.compiler.loops.race_check import Array, Places, Sharing

Variables = dict[str, Value]

# Operations faster by operators than by numpy functions on scalars.
OPERATORS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "fma": lambda x, y, z: x * y + z,
    "add_dot_bfloat16": dot_bfloat16,
    "add_dot_uint8_int8": dot_uint8_int8,
    "floordiv": np.floor_divide,
    "held": lambda x: x,
    "count_bits": lambda x: np.int64(unsigned(x).bit_count()),
    "lowest_bit": lambda x: np.int64((unsigned(x) & -unsigned(x)).bit_length() - 1),
    "drop_bit": lambda x: x & (x - 1),
    "lookup": lambda places, *table: np.concatenate(table)[places],
}
REDUCTIONS: Final = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "logical_or": np.logical_or,
    "logical_and": np.logical_and,
}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a kernel: the status, 0 for success, and the grown outputs by name."""

    status: int
    grown: dict[str, Array]


def interpret(
    function: nodes.Function, sizes: Mapping[str, int], buffers: Mapping[str, Array], threads: int = 1
) -> Result:
    """Runs a kernel on arrays; parallel loops run chunk by chunk, as shared by `threads` threads."""
    machine = Machine(function, dict(buffers), threads)
    for buffer in function.buffers:
        if not buffer.grown:
            assert buffer.name in buffers, f"no array was given for {buffer.name}"
            found = buffers[buffer.name].dtype
            assert found == array_dtype(buffer.dtype), (
                f"{buffer.name} is {buffer.dtype}, its array is {found}"
            )
    variables: Variables = {name: np.int64(sizes[name]) for name in function.sizes}
    status = 0
    try:
        with np.errstate(all="ignore"):
            machine.run(function.body, variables)
    except _Returned as returned:
        status = returned.status
    grown = {
        b.name: machine.buffers[b.name] for b in function.buffers if b.grown and b.name in machine.buffers
    }
    return Result(status, grown)


class _Returned(Exception):
    """A `return` inside the kernel."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Machine:
    """Memory and the rules of execution."""

    function: nodes.Function
    buffers: dict[str, Array]
    threads: int
    constant: set[str] = field(default_factory=set)
    literals: dict[int, Value] = field(default_factory=dict)
    tables: dict[str, tuple[str, str]] = field(default_factory=dict)
    sharing: Sharing | None = None

    def __post_init__(self) -> None:
        self.constant |= {b.name for b in self.function.buffers if not b.output and not b.grown}
        for buffer in self.function.buffers:
            if buffer.grown:
                self.buffers.pop(buffer.name, None)

    # Expressions

    def value(self, expr: nodes.Expr, variables: Variables) -> Value:
        """`expr`: a numpy scalar, or an array of lanes."""
        result = EVALUATE[type(expr)](self, expr, variables)
        kind = type_of(expr)
        dtype = array_dtype(kind.dtype)
        if result.dtype is not dtype:
            result = result.astype(dtype)
        assert result.size == kind.lanes, f"{expr} has {result.size} lanes, its type says {kind.lanes}"
        return result[0] if kind.lanes == 1 and result.ndim else result

    def integer(self, expr: nodes.Expr, variables: Variables) -> int:
        """A scalar index, bound or count."""
        return int(self.value(expr, variables))

    def _variable(self, expr: nodes.Var, variables: Variables) -> Value:
        assert expr.name in variables, f"{expr.name} is used before it is defined"
        return variables[expr.name]

    def _literal(self, expr: nodes.Literal, variables: Variables) -> Value:
        if id(expr) not in self.literals:
            self.literals[id(expr)] = full(expr.type.lanes, expr.value, expr.type.dtype)
        return self.literals[id(expr)]

    def _operation(self, expr: nodes.Op, variables: Variables) -> Value:
        name, args, lanes = expr.function, expr.args, expr.type.lanes
        first = self.value(args[0], variables)
        if lanes == 1 and name in ("logical_and", "logical_or", "where"):
            # As in C++, scalar operands are evaluated only if needed.
            if name == "where":
                return self.value(args[1] if first else args[2], variables)
            return first if bool(first) == (name == "logical_or") else self.value(args[1], variables)
        rest = [self.value(arg, variables) for arg in args[1:]]
        result = (OPERATORS.get(name) or FUNCTIONS[name].evaluate)(first, *rest)
        return np.asarray(result)[()] if lanes == 1 else result

    def _convert(self, expr: nodes.Convert, variables: Variables) -> Value:
        return converted(self.value(expr.value, variables), type_of(expr.value).dtype, expr.type.dtype)

    def _broadcast(self, expr: nodes.Broadcast, variables: Variables) -> Value:
        return np.repeat(self.value(expr.value, variables), expr.type.lanes)

    def _lanes(self, expr: nodes.Lanes, variables: Variables) -> Value:
        return self.value(expr.start, variables) + np.arange(expr.type.lanes, dtype=expr.type.dtype)

    def _load(self, expr: nodes.Load, variables: Variables) -> Value:
        first = self.integer(expr.index, variables)
        if expr.type.lanes > 1 or expr.count is not None:
            return self._read(expr, np.arange(first, first + expr.type.lanes), variables)
        memory = self._memory(expr.buffer, first, expr)
        assert memory.dtype is array_dtype(expr.type.dtype), f"{expr} reads {memory.dtype} as {expr.type}"
        if self.sharing is not None:
            self.sharing.read(expr.buffer, first, expr)
        return memory[first]

    def _gather(self, expr: nodes.Gather, variables: Variables) -> Value:
        return self._read(expr, np.atleast_1d(self.value(expr.indices, variables)), variables)

    def _bits(self, expr: nodes.Bits, variables: Variables) -> Value:
        first = self.integer(expr.index, variables)
        places = np.arange(first, first + max(1, expr.count // 8))
        found = int.from_bytes(self._memory(expr.buffer, places, expr)[places].tobytes(), "little")
        found = found >> expr.first & (1 << expr.count) - 1
        return np.int64(found - (1 << 64) if found >> 63 else found)

    def _expand(self, expr: nodes.Expand, variables: Variables) -> Value:
        is_set = self._set_lanes(expr.bits, expr.type.lanes, variables)
        result = np.zeros(len(is_set), array_dtype(expr.type.dtype))
        first = self.integer(expr.index, variables)
        places = np.arange(first, first + int(is_set.sum()))
        assert not len(places) or places[-1] < self.integer(expr.end, variables), f"{expr} reads past its end"
        result[is_set] = self._memory(expr.buffer, places, expr)[places]
        return result

    def _lane_bits(self, expr: nodes.LaneBits, variables: Variables) -> Value:
        return self._set_lanes(expr.bits, expr.type.lanes, variables)

    def _set_lanes(self, bits: nodes.Expr, lanes: int, variables: Variables) -> Array:
        """The lanes with set bits."""
        return (self.integer(bits, variables) >> np.arange(lanes) & 1).astype(bool)

    def _horizontal(self, expr: nodes.Horizontal, variables: Variables) -> Value:
        lanes = np.atleast_1d(self.value(expr.value, variables))
        return _reduce(expr.function, lanes[: self._count(expr.count, len(lanes), variables)])

    def _count(self, count: nodes.Expr | None, lanes: int, variables: Variables) -> int:
        if count is None:
            return lanes
        number = self.integer(count, variables)
        assert number >= 0, f"the count {count} is {number}"
        return min(number, lanes)

    def _read(self, expr: nodes.Load | nodes.Gather, indices: Array, variables: Variables) -> Value:
        result = np.zeros(expr.type.lanes, array_dtype(expr.type.dtype))
        count = self._count(expr.count, expr.type.lanes, variables)
        memory = self._memory(expr.buffer, indices[:count], expr)
        assert memory.dtype == result.dtype, f"{expr} reads {memory.dtype} as {expr.type}"
        if self.sharing is not None:
            self.sharing.read(expr.buffer, indices[:count], expr)
        result[:count] = memory[indices[:count]]
        return result

    def _memory(self, buffer: str, indices: Places, access: Node) -> Array:
        memory = self.buffers.get(buffer)
        assert memory is not None, f"{buffer} is not allocated where {access} uses it"
        for index in (indices,) if isinstance(indices, int) else indices:
            assert 0 <= index < memory.size, f"index {index} of {access} lies outside 0..{memory.size}"
        return memory

    # Statements

    def run(self, stmt: nodes.Stmt, variables: Variables) -> None:
        """Executes a statement; `variables` changes in place."""
        match stmt:
            case nodes.Block(statements):
                for inner in statements:
                    self.run(inner, variables)
            case nodes.Comment() | nodes.Prefetch():
                pass
            case nodes.Declare(var, value, _) | nodes.Set(var, value):
                variables[var.name] = self.value(value, variables)
            case nodes.Store(_, index, value, _):
                first = self.integer(index, variables)
                lanes = type_of(value).lanes
                self._write(stmt, first if lanes == 1 else np.arange(first, first + lanes), variables)
            case nodes.Scatter(_, indices, _, _):
                self._write(stmt, np.atleast_1d(self.value(indices, variables)), variables)
            case nodes.Transpose(outputs, inputs):
                tile = np.stack([self.value(row, variables) for row in inputs])
                variables.update(zip((output.name for output in outputs), tile.T.copy(), strict=True))
            case nodes.HorizontalTogether(outputs, function, inputs):
                for output, value in zip(outputs, inputs, strict=True):
                    variables[output.name] = _reduce(function, self.value(value, variables))
            case nodes.For() | nodes.While() | nodes.If() | nodes.ParallelFor():
                self._control(stmt, variables)
            case nodes.Sort(buffer, count):
                number = self.integer(count, variables)
                assert buffer not in self.constant, f"{stmt} writes to an input"
                ends = np.array([0, number - 1]) if number > 0 else np.array([], np.int64)
                self._memory(buffer, ends, stmt)[:number].sort()
            case nodes.Enumerate(buffer, flags, count):
                found = np.flatnonzero(self.buffers[flags][: self.integer(count, variables)])
                self._memory(buffer, np.arange(len(found)), stmt)[: len(found)] = found
            case nodes.Mark() | nodes.TakeMarks():
                self._marks(stmt, variables)
            case nodes.Table() | nodes.Enter() | nodes.SortTable() | nodes.ClearTable():
                self._tables(stmt, variables)
            case nodes.Compress():
                self._compress(stmt, variables)
            case nodes.Allocate() | nodes.AllocateOutput() | nodes.Fill():
                self._allocate(stmt, variables)
            case nodes.Return(status):
                raise _Returned(status)
            case _:
                raise AssertionError(f"unknown statement {stmt!r}")

    def _write(self, stmt: nodes.Store | nodes.Scatter, indices: Places, variables: Variables) -> None:
        value = self.value(stmt.value, variables)
        assert stmt.buffer not in self.constant, f"{stmt} writes to an input"
        if value.size > 1 or stmt.count is not None:
            count = self._count(stmt.count, value.size, variables)
            indices, value = np.atleast_1d(indices)[:count], np.atleast_1d(value)[:count]
        memory = self._memory(stmt.buffer, indices, stmt)
        assert memory.dtype == value.dtype, f"{stmt} writes {value.dtype} to {memory.dtype}"
        if self.sharing is not None:
            self.sharing.write(stmt.buffer, indices, stmt)
        # If several lanes write one element, the last one wins.
        memory[indices] = value

    def _marks(self, stmt: nodes.Mark | nodes.TakeMarks, variables: Variables) -> None:
        extent = self.integer(stmt.extent, variables)
        match stmt:
            case nodes.Mark(buffer, index, _):
                number = self.integer(index, variables)
                assert 0 <= number < extent, f"{stmt} is outside of {extent}"
                places = np.array([number, padded(extent) + number // MARKS])
                self._memory(buffer, places, stmt)[places] = 1
            case nodes.TakeMarks(var, buffer, marks, _, end):
                found = np.flatnonzero(self.buffers[marks][:extent])
                first = int(variables[var.name])
                if buffer is not None:
                    places = np.arange(first, first + len(found))
                    assert first + len(found) <= self.integer(end, variables), f"{stmt} passes its end"
                    self._memory(buffer, places, stmt)[places] = found
                self.buffers[marks][:] = 0
                variables[var.name] = np.int64(first + len(found))

    def _tables(
        self, stmt: nodes.Table | nodes.Enter | nodes.SortTable | nodes.ClearTable, variables: Variables
    ) -> None:
        match stmt:
            case nodes.Table(table, buffer, keys, dtype):
                self.tables[table] = (buffer, keys)
                self.buffers[buffer], self.buffers[keys] = (
                    full(0, poison(dtype), dtype),
                    np.array([], np.int64),
                )
                if self.sharing is not None:
                    self.sharing.forget(buffer)
                    self.sharing.forget(keys)
            case nodes.Enter(var, table, key):
                buffer, keys = self.tables[table]
                number, values = self.integer(key, variables), self.buffers[buffer]
                found = np.flatnonzero(self.buffers[keys] == number)
                variables[var.name] = np.int64(found[0] if len(found) else len(values))
                if not len(found):
                    self.buffers[keys] = np.append(self.buffers[keys], np.int64(number))
                    self.buffers[buffer] = np.append(
                        values, full(1, poison(values.dtype.name), values.dtype.name)
                    )
            case nodes.SortTable(table, count):
                buffer, keys = self.tables[table]
                order = np.argsort(self.buffers[keys])
                assert len(order) == self.integer(count, variables), f"{stmt} sorts {len(order)} entries"
                self.buffers[keys], self.buffers[buffer] = (
                    self.buffers[keys][order],
                    self.buffers[buffer][order],
                )
            case nodes.ClearTable(table):
                for name in self.tables[table]:
                    self.buffers[name] = self.buffers[name][:0]

    def _compress(self, stmt: nodes.Compress, variables: Variables) -> None:
        begin, count = self.integer(stmt.begin, variables), self.integer(stmt.count, variables)
        read = np.arange(begin, begin + max(0, count))
        source = self._memory(stmt.source, read, stmt)[read]
        if stmt.selection is None:
            kept = np.flatnonzero(source != self.value(stmt.fill, variables))
        else:
            dtype = type_of(stmt.fill).dtype
            wide = "float32" if dtype in STORED_HALVES else dtype
            source = converted(source, wide, dtype)
            scores = torch.from_numpy(converted(source, dtype, wide))
            kept = np.flatnonzero(selected(stmt.selection, scores).numpy())
        next_ = int(variables[stmt.var.name])
        if stmt.buffer is not None:
            places = np.arange(next_, next_ + len(kept))
            assert next_ + len(kept) <= self.integer(stmt.end, variables), f"{stmt} passes its end"
            numbers = self.integer(stmt.first, variables) + kept
            for buffer, found in ((stmt.buffer, numbers), (stmt.values, source[kept])):
                self._memory(buffer, places, stmt)[places] = found
                if self.sharing is not None:
                    self.sharing.write(buffer, places, stmt)
        variables[stmt.var.name] = np.int64(next_ + len(kept))

    def _control(
        self, stmt: nodes.For | nodes.While | nodes.If | nodes.ParallelFor, variables: Variables
    ) -> None:
        match stmt:
            case nodes.For(var, begin, end, body, step):
                first, last = self.integer(begin, variables), self.integer(end, variables)
                of_dtype = array_dtype(var.type.dtype).type
                for number in range(first, last, step):
                    variables[var.name] = of_dtype(number)
                    self.run(body, variables)
            case nodes.While(condition, body):
                while self.value(condition, variables):
                    self.run(body, variables)
            case nodes.If(condition, then, otherwise):
                if self.value(condition, variables):
                    self.run(then, variables)
                elif otherwise is not None:
                    self.run(otherwise, variables)
            case nodes.ParallelFor():
                self._parallel(stmt, variables)

    def _parallel(self, stmt: nodes.ParallelFor, variables: Variables) -> None:
        extent = self.integer(stmt.extent, variables)
        chunks = self.threads * stmt.chunks_per_thread
        bounds = self._bounds(stmt, extent, chunks)
        self.sharing = Sharing({name: buffer.size for name, buffer in self.buffers.items()}, self.threads)
        for thread in range(self.threads):
            own = dict(variables)
            self.run(stmt.setup, own)
            for chunk in range(thread, chunks, self.threads):
                self.sharing.chunk = chunk
                own[stmt.begin.name] = np.int64(bounds[chunk])
                own[stmt.end.name] = np.int64(bounds[chunk + 1])
                self.run(stmt.body, own)
        self.sharing = None

    def _bounds(self, stmt: nodes.ParallelFor, extent: int, chunks: int) -> list[int]:
        """The starts of the chunks, followed by `extent`."""
        if stmt.balance is None:
            return [extent * chunk // chunks for chunk in range(chunks + 1)]
        positions = self.buffers[stmt.balance][: extent + 1].astype(np.int64)
        assert len(positions) == extent + 1, f"{stmt.balance} has fewer than {extent} + 1 positions"
        work = positions - positions[0] + stmt.row_cost * np.arange(extent + 1)
        inner = [int(np.searchsorted(work, work[-1] * chunk // chunks)) for chunk in range(chunks)]
        return [*inner, extent]

    def _allocate(
        self, stmt: nodes.Allocate | nodes.AllocateOutput | nodes.Fill, variables: Variables
    ) -> None:
        match stmt:
            case nodes.Allocate(buffer, dtype, count, fill):
                number = self.integer(count, variables)
                assert number >= 0, f"{stmt} asks for {number} elements"
                self.buffers[buffer] = full(number, poison(dtype) if fill is None else fill, dtype)
                if self.sharing is not None:
                    self.sharing.forget(buffer)
            case nodes.AllocateOutput(buffer, dtype, count):
                self.buffers[buffer] = full(self.integer(count, variables), poison(dtype), dtype)
            case nodes.Fill(buffer, begin, count, value):
                first, number = self.integer(begin, variables), self.integer(count, variables)
                assert buffer not in self.constant, f"{stmt} writes to an input"
                ends = np.array([first, first + number - 1]) if number > 0 else np.array([], np.int64)
                if self.sharing is not None:
                    self.sharing.write(buffer, np.arange(first, first + number), stmt)
                self._memory(buffer, ends, stmt)[first : first + number] = self.value(value, variables)


def _reduce(name: str, lanes: Array) -> Any:
    if len(lanes):
        return REDUCTIONS[name].reduce(lanes).astype(lanes.dtype)
    if name in ("add", "mul"):
        return lanes.dtype.type(name == "mul")
    if lanes.dtype == bool:
        return np.bool_(name == "logical_and")
    if lanes.dtype.kind == "f":
        return lanes.dtype.type(np.inf if name == "min" else -np.inf)
    limits = np.iinfo(lanes.dtype)
    return lanes.dtype.type(limits.max if name == "min" else limits.min)


EVALUATE: Final[Mapping[type[nodes.Expr], Callable[[Machine, Any, Variables], Value]]] = {
    nodes.Var: Machine._variable,
    nodes.Literal: Machine._literal,
    nodes.Op: Machine._operation,
    nodes.Convert: Machine._convert,
    nodes.Broadcast: Machine._broadcast,
    nodes.Lanes: Machine._lanes,
    nodes.Load: Machine._load,
    nodes.Gather: Machine._gather,
    nodes.Bits: Machine._bits,
    nodes.Expand: Machine._expand,
    nodes.LaneBits: Machine._lane_bits,
    nodes.Horizontal: Machine._horizontal,
}
