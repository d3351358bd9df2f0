"""The reference interpreter of loop IR: slow, exact about types, lanes and counts, and checked everywhere.

In: a kernel, `{"k_extent": 4}` and `{"A_vals": array, ...}`. Out: the outputs written in place, the arrays of
grown outputs returned. An access outside an array, a write to an input or a read of memory that was never
allocated is an `AssertionError` that names the access.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sparsify.compiler.dtypes import FLOATING, category
from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.marks import MARKS, padded
from sparsify.compiler.loops.nodes import type_of
from sparsify.compiler.node import Node

Array = NDArray[Any]

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
    """What a kernel leaves: its status, 0 when all went well, and its grown outputs by name."""

    status: int
    grown: dict[str, Array]


def interpret(
    function: nodes.Function, sizes: Mapping[str, int], buffers: Mapping[str, Array], threads: int = 1
) -> Result:
    """Runs a kernel on arrays, parallel loops chunk by chunk as `threads` threads would share them."""
    machine = Machine(function, dict(buffers), threads)
    for buffer in function.buffers:
        if not buffer.grown:
            assert buffer.name in buffers, f"no array was given for {buffer.name}"
            found = buffers[buffer.name].dtype
            assert found == array_dtype(buffer.dtype), (
                f"{buffer.name} is {buffer.dtype}, its array is {found}"
            )
    variables = {name: np.array([sizes[name]], np.int64) for name in function.sizes}
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
    """Memory and the rules of execution. Every value is an array with one element a lane."""

    function: nodes.Function
    buffers: dict[str, Array]
    threads: int
    constant: set[str] = field(default_factory=set)
    sharing: "Sharing | None" = None

    def __post_init__(self) -> None:
        self.constant |= {b.name for b in self.function.buffers if not b.output and not b.grown}
        for buffer in self.function.buffers:
            if buffer.grown:
                self.buffers.pop(buffer.name, None)

    # Expressions

    def value(self, expr: nodes.Expr, variables: dict[str, Array]) -> Array:
        """The lanes of `expr`."""
        kind = type_of(expr)
        result = self._value(expr, variables).astype(array_dtype(kind.dtype), copy=False)
        assert result.shape == (kind.lanes,), f"{expr} has {result.shape} lanes, its type says {kind.lanes}"
        return result

    def integer(self, expr: nodes.Expr, variables: dict[str, Array]) -> int:
        """A scalar index, bound or count."""
        return int(self.value(expr, variables)[0])

    def _value(self, expr: nodes.Expr, variables: dict[str, Array]) -> Array:
        match expr:
            case nodes.Var(name, _):
                assert name in variables, f"{name} is used before it is defined"
                return variables[name]
            case nodes.Literal(value, kind):
                return _full(kind.lanes, value, kind.dtype)
            case nodes.Op(name, args, kind):
                return self._operation(name, args, kind, variables)
            case nodes.Convert(operand, kind):
                return _converted(self.value(operand, variables), type_of(operand).dtype, kind.dtype)
            case nodes.Broadcast(operand, kind):
                return np.repeat(self.value(operand, variables), kind.lanes)
            case nodes.Lanes(start, kind):
                return self.value(start, variables) + np.arange(kind.lanes, dtype=kind.dtype)
            case nodes.Load(_, index, kind, _):
                first = self.integer(index, variables)
                return self._read(expr, np.arange(first, first + kind.lanes), variables)
            case nodes.Gather(_, indices, _, _):
                return self._read(expr, self.value(indices, variables), variables)
            case nodes.Horizontal(name, operand, _, count):
                lanes = self.value(operand, variables)[
                    : self._count(count, type_of(operand).lanes, variables)
                ]
                return np.array([_reduce(name, lanes)])
        raise AssertionError(f"unknown expression {expr!r}")

    def _operation(
        self, name: str, args: tuple[nodes.Expr, ...], kind: nodes.Type, variables: dict[str, Array]
    ) -> Array:
        first = self.value(args[0], variables)
        if kind.lanes == 1 and name in ("logical_and", "logical_or", "where"):
            # As in C++ the operands of scalars are evaluated only when they decide.
            if name == "where":
                return self.value(args[1] if first[0] else args[2], variables)
            return first if bool(first[0]) == (name == "logical_or") else self.value(args[1], variables)
        rest = [self.value(arg, variables) for arg in args[1:]]
        match name:
            case "fma":
                return np.asarray(first * rest[0] + rest[1])
            case "floordiv":
                return np.asarray(np.floor_divide(first, rest[0]))
        return np.asarray(FUNCTIONS[name].evaluate(first, *rest))

    def _count(self, count: nodes.Expr | None, lanes: int, variables: dict[str, Array]) -> int:
        if count is None:
            return lanes
        number = self.integer(count, variables)
        assert number >= 0, f"the count {count} is {number}"
        return min(number, lanes)

    def _read(self, expr: nodes.Load | nodes.Gather, indices: Array, variables: dict[str, Array]) -> Array:
        result = np.zeros(expr.type.lanes, array_dtype(expr.type.dtype))
        count = self._count(expr.count, expr.type.lanes, variables)
        memory = self._memory(expr.buffer, indices[:count], expr)
        assert memory.dtype == result.dtype, f"{expr} reads {memory.dtype} as {expr.type}"
        if self.sharing is not None:
            self.sharing.read(expr.buffer, indices[:count], expr)
        result[:count] = memory[indices[:count]]
        return result

    def _memory(self, buffer: str, indices: Array, access: Node) -> Array:
        assert buffer in self.buffers, f"{buffer} is not allocated where {access} uses it"
        memory = self.buffers[buffer]
        for index in indices:
            assert 0 <= index < memory.size, f"index {index} of {access} lies outside 0..{memory.size}"
        return memory

    # Statements

    def run(self, stmt: nodes.Stmt, variables: dict[str, Array]) -> None:
        """Executes a statement; `variables` changes in place."""
        match stmt:
            case nodes.Block(statements):
                for inner in statements:
                    self.run(inner, variables)
            case nodes.Comment() | nodes.Prefetch():
                pass
            case nodes.Declare(var, value, _) | nodes.Set(var, value):
                variables[var.name] = self.value(value, variables).copy()
            case nodes.Store(_, index, value, _):
                first = self.integer(index, variables)
                self._write(stmt, np.arange(first, first + type_of(value).lanes), variables)
            case nodes.Scatter(_, indices, _, _):
                self._write(stmt, self.value(indices, variables), variables)
            case nodes.Transpose(outputs, inputs):
                tile = np.stack([self.value(row, variables) for row in inputs])
                for output, lanes in zip(outputs, tile.T, strict=True):
                    variables[output.name] = lanes.copy()
            case nodes.HorizontalTogether(outputs, function, inputs):
                for output, value in zip(outputs, inputs, strict=True):
                    variables[output.name] = np.array([_reduce(function, self.value(value, variables))])
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
            case nodes.Allocate() | nodes.AllocateOutput() | nodes.Fill():
                self._allocate(stmt, variables)
            case nodes.Return(status):
                raise _Returned(status)
            case _:
                raise AssertionError(f"unknown statement {stmt!r}")

    def _write(self, stmt: nodes.Store | nodes.Scatter, indices: Array, variables: dict[str, Array]) -> None:
        value = self.value(stmt.value, variables)
        count = self._count(stmt.count, len(value), variables)
        assert stmt.buffer not in self.constant, f"{stmt} writes to an input"
        memory = self._memory(stmt.buffer, indices[:count], stmt)
        assert memory.dtype == value.dtype, f"{stmt} writes {value.dtype} to {memory.dtype}"
        if self.sharing is not None:
            self.sharing.write(stmt.buffer, indices[:count], stmt)
        for index, lane in zip(indices[:count], value[:count], strict=True):
            memory[index] = lane

    def _marks(self, stmt: nodes.Mark | nodes.TakeMarks, variables: dict[str, Array]) -> None:
        extent = self.integer(stmt.extent, variables)
        match stmt:
            case nodes.Mark(buffer, index, _):
                number = self.integer(index, variables)
                assert 0 <= number < extent, f"{stmt} is outside of {extent}"
                places = np.array([number, padded(extent) + number // MARKS])
                self._memory(buffer, places, stmt)[places] = 1
            case nodes.TakeMarks(var, buffer, marks, _, end):
                found = np.flatnonzero(self.buffers[marks][:extent])
                first = int(variables[var.name][0])
                if buffer is not None:
                    places = np.arange(first, first + len(found))
                    assert first + len(found) <= self.integer(end, variables), f"{stmt} passes its end"
                    self._memory(buffer, places, stmt)[places] = found
                self.buffers[marks][:] = 0
                variables[var.name] = np.array([first + len(found)], np.int64)

    def _control(
        self, stmt: nodes.For | nodes.While | nodes.If | nodes.ParallelFor, variables: dict[str, Array]
    ) -> None:
        match stmt:
            case nodes.For(var, begin, end, body, step):
                first, last = self.integer(begin, variables), self.integer(end, variables)
                for number in range(first, last, step):
                    variables[var.name] = np.array([number], var.type.dtype)
                    self.run(body, variables)
            case nodes.While(condition, body):
                while self.value(condition, variables)[0]:
                    self.run(body, variables)
            case nodes.If(condition, then, otherwise):
                if self.value(condition, variables)[0]:
                    self.run(then, variables)
                elif otherwise is not None:
                    self.run(otherwise, variables)
            case nodes.ParallelFor():
                self._parallel(stmt, variables)

    def _parallel(self, stmt: nodes.ParallelFor, variables: dict[str, Array]) -> None:
        extent = self.integer(stmt.extent, variables)
        chunks = self.threads * stmt.chunks_per_thread
        bounds = self._bounds(stmt, extent, chunks)
        self.sharing = Sharing({name: buffer.size for name, buffer in self.buffers.items()})
        for thread in range(self.threads):
            own = dict(variables)
            self.run(stmt.setup, own)
            for chunk in range(thread, chunks, self.threads):
                self.sharing.chunk = chunk
                own[stmt.begin.name] = np.array([bounds[chunk]])
                own[stmt.end.name] = np.array([bounds[chunk + 1]])
                self.run(stmt.body, own)
        self.sharing = None

    def _bounds(self, stmt: nodes.ParallelFor, extent: int, chunks: int) -> list[int]:
        """Where the chunks begin, and at last `extent`."""
        if stmt.balance is None:
            return [extent * chunk // chunks for chunk in range(chunks + 1)]
        positions = self.buffers[stmt.balance][: extent + 1].astype(np.int64)
        assert len(positions) == extent + 1, f"{stmt.balance} has fewer than {extent} + 1 positions"
        work = positions - positions[0] + stmt.row_cost * np.arange(extent + 1)
        inner = [int(np.searchsorted(work, work[-1] * chunk // chunks)) for chunk in range(chunks)]
        return [*inner, extent]

    def _allocate(
        self, stmt: nodes.Allocate | nodes.AllocateOutput | nodes.Fill, variables: dict[str, Array]
    ) -> None:
        match stmt:
            case nodes.Allocate(buffer, dtype, count, fill):
                number = self.integer(count, variables)
                assert number >= 0, f"{stmt} asks for {number} elements"
                self.buffers[buffer] = _full(number, _poison(dtype) if fill is None else fill, dtype)
                if self.sharing is not None:
                    self.sharing.forget(buffer)
            case nodes.AllocateOutput(buffer, dtype, count):
                self.buffers[buffer] = _full(self.integer(count, variables), _poison(dtype), dtype)
            case nodes.Fill(buffer, begin, count, value):
                first, number = self.integer(begin, variables), self.integer(count, variables)
                assert buffer not in self.constant, f"{stmt} writes to an input"
                ends = np.array([first, first + number - 1]) if number > 0 else np.array([], np.int64)
                if self.sharing is not None:
                    self.sharing.write(buffer, np.arange(first, first + number), stmt)
                self._memory(buffer, ends, stmt)[first : first + number] = self.value(value, variables)[0]


class Sharing:
    """Who has touched what inside a parallel loop: chunks that meet at an element depend on the threads.

    Attributes:
        chunk: the chunk that runs now.
        writers: of each element of the buffers from outside, the chunk that wrote it, -1 for none.
        readers: the chunk that read it, -1 for none, -2 for several.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.chunk = -1
        self.writers = {name: np.full(size, -1) for name, size in sizes.items()}
        self.readers = {name: np.full(size, -1) for name, size in sizes.items()}

    def forget(self, buffer: str) -> None:
        """`buffer` is a thread's own from now on."""
        self.writers.pop(buffer, None)
        self.readers.pop(buffer, None)

    def read(self, buffer: str, indices: Array, access: Node) -> None:
        """The chunk reads these elements."""
        if buffer not in self.writers:
            return
        self._check(self.writers[buffer][indices], access)
        readers = self.readers[buffer]
        others = (readers[indices] != -1) & (readers[indices] != self.chunk)
        readers[indices] = np.where(others, -2, self.chunk)

    def write(self, buffer: str, indices: Array, access: Node) -> None:
        """The chunk writes these elements."""
        if buffer not in self.writers:
            return
        self._check(self.writers[buffer][indices], access)
        self._check(self.readers[buffer][indices], access)
        self.writers[buffer][indices] = self.chunk

    def _check(self, before: Array, access: Node) -> None:
        met = (before != -1) & (before != self.chunk)
        assert not met.any(), f"two chunks of a parallel loop meet at an element of {access}"


def _reduce(name: str, lanes: Array) -> Any:
    if len(lanes):
        return REDUCTIONS[name].reduce(lanes).astype(lanes.dtype)
    if name in ("add", "mul"):
        return lanes.dtype.type(name == "mul")
    if lanes.dtype == bool:
        return name == "logical_and"
    if lanes.dtype.kind == "f":
        return lanes.dtype.type(np.inf if name == "min" else -np.inf)
    limits = np.iinfo(lanes.dtype)
    return lanes.dtype.type(limits.max if name == "min" else limits.min)


def _poison(dtype: str) -> Any:
    """What undefined memory holds: NaN, or an integer that is no index."""
    if dtype == "bool":
        return True
    return np.nan if category(dtype) >= FLOATING else np.iinfo(dtype).min


@cache
def array_dtype(dtype: str) -> np.dtype[Any]:
    """How numpy holds values of `dtype`; a bfloat16 by its bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def _full(count: int, value: Any, dtype: str) -> Array:
    """The same value many times."""
    return np.repeat(_converted(np.asarray([value]), "", dtype), count)


def _converted(values: Array, source: str, dtype: str) -> Array:
    """Values in another dtype; of a complex number the real part, of a bfloat16 by its bits."""
    if source == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = np.where(np.isnan(values), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
        return rounded.astype(np.uint16)
    if values.dtype.kind == "c" and category(dtype) == FLOATING:
        values = values.real
    return values.astype(dtype)
