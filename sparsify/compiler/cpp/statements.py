"""Statements of loop IR as lines of C++.

In: `for p in A2_pos[i]..A2_pos[i + 1]: ...`. Out:
`for (int64_t p = A2_pos[i], p_end = A2_pos[i + 1]; p < p_end; ++p) {` and the lines of the body.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sparsify.compiler.cpp import scratch
from sparsify.compiler.cpp.expressions import PREFIX, SUM, Expressions, unwidened, within
from sparsify.compiler.cpp.helpers import compress, types
from sparsify.compiler.cpp.helpers.unit import Unit, indent
from sparsify.compiler.einsum.nodes import Selection
from sparsify.compiler.ir.node import find, holds, walk
from sparsify.compiler.ir.status import OUT_OF_MEMORY
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import type_of

# Barrier in copy loops, against calls of memcpy by g++: calls are slow for the few remaining entries of a row.
SHORT: Final = '__asm__ volatile("");  // for a few entries: no calls'

# Upper limit of entry counts: larger numbers are no C++ integers.
LARGEST: Final = 2**62


@dataclass
class Statements:
    """Writes statements as lines.

    Attributes:
        outline: writes parallel loops, which become separate functions in the unit.
    """

    function: nodes.Function
    expressions: Expressions
    outline: Callable[["Statements", nodes.ParallelFor], list[str]]
    variables: dict[str, nodes.Type] = field(default_factory=dict)
    mutable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.variables |= dict.fromkeys(self.function.sizes, nodes.INT)

    @property
    def unit(self) -> Unit:
        """The translation unit."""
        return self.expressions.unit

    def indented(self, stmt: nodes.Stmt) -> list[str]:
        """The lines of `stmt`, indented by one step."""
        return indent(self.lines(stmt))

    def lines(self, stmt: nodes.Stmt) -> list[str]:
        """The lines of a statement."""
        text = self.expressions.text
        match stmt:
            case nodes.Block(statements):
                return self._block(statements)
            case nodes.Comment(comment):
                return [f"// {line}" for line in comment.splitlines()]
            case nodes.Declare(var, value, mutable):
                return [self._declare(var, value, mutable)]
            case nodes.Set(var, value):
                return [self._set(var, value)]
            case nodes.Store():
                return [self._store(stmt)]
            case nodes.Scatter():
                return [self._scatter(stmt)]
            case nodes.Transpose(outputs, inputs):
                return self._transpose(outputs, inputs)
            case nodes.HorizontalTogether(outputs, function, inputs):
                return self._together(outputs, function, inputs)
            case nodes.For():
                return self._for(stmt)
            case nodes.While(condition, body):
                copies = [SHORT] if _copies(body) else []
                return [f"while ({text(condition)}) {{", *indent(copies), *self.indented(body), "}"]
            case nodes.If():
                return self._if(stmt)
            case nodes.Allocate():
                return self._allocate(stmt)
            case nodes.Fill(buffer, begin, count, value):
                helper = self.unit.use("fill", self.expressions.buffers[buffer], 1)
                address = self.expressions.address(buffer, begin)
                return [f"{helper}({address}, {self.expressions.index(count)}, {text(value)});"]
            case nodes.Sort(buffer, count):
                helper = self.unit.use("sort", self.expressions.buffers[buffer], 1)
                return [f"{helper}({self.expressions.name(buffer)}, {self.expressions.index(count)});"]
            case nodes.Enumerate(buffer, flags, count):
                name, e = self.expressions.name, self.expressions
                helper = self.unit.use("enumerate", "int64", 1)
                return [f"{helper}({name(buffer)}, {name(flags)}, {e.index(count)});"]
            case nodes.Mark(buffer, index, extent):
                e = self.expressions
                helper = self.unit.use("mark", "int8", 1)
                return [f"{helper}({e.name(buffer)}, {e.index(extent)}, {e.index(index)});"]
            case nodes.TakeMarks():
                return [self._take_marks(stmt)]
            case nodes.Table() | nodes.Enter() | nodes.SortTable() | nodes.ClearTable():
                return self._table(stmt)
            case nodes.Compress():
                return [self._compress(stmt)]
            case nodes.Prefetch(buffer, index):
                return [f"__builtin_prefetch({self.expressions.address(buffer, index)});"]
            case nodes.ParallelFor():
                return self.outline(self, stmt)
            case nodes.AllocateOutput():
                return self._allocate_output(stmt)
            case nodes.Return(status):
                return [f"return {status};"]
        raise AssertionError(f"unknown statement {stmt!r}")

    def _block(self, statements: tuple[nodes.Stmt, ...]) -> list[str]:
        """The lines of statements, without declarations of indices read only from memory."""
        parts = [self.lines(inner) for inner in statements]
        for number, inner in enumerate(statements):
            match inner:
                case nodes.Declare(var, _, False) if var.name in self.expressions.loaded:
                    name = re.compile(rf"\b{re.escape(self.expressions.name(var.name))}\b")
                    later = (line for part in parts[number + 1 :] for line in part)
                    if not any(name.search(line) for line in later if not line.lstrip().startswith("//")):
                        parts[number] = []
        return [line for part in parts for line in part]

    def _take_marks(self, stmt: nodes.TakeMarks) -> str:
        e = self.expressions
        var, marks, extent = e.name(stmt.var.name), e.name(stmt.marks), e.index(stmt.extent)
        if stmt.buffer is None:
            return f"{var} += {self.unit.use('count_marks', 'int8', 1)}({marks}, {extent});"
        helper = self.unit.use("take_marks", e.buffers[stmt.buffer], 1)
        return f"{var} = {helper}({e.name(stmt.buffer)}, {var}, {e.index(stmt.end)}, {marks}, {extent});"

    def _table(self, stmt: nodes.Table | nodes.Enter | nodes.SortTable | nodes.ClearTable) -> list[str]:
        """A table, or a call of one of its functions; the kernel ends with a status if memory is exhausted."""
        e, table = self.expressions, self.expressions.name(stmt.table)
        failed = f"return {OUT_OF_MEMORY};"
        if isinstance(stmt, nodes.Table):
            e.tables[stmt.table] = stmt.dtype
            e.buffers |= {stmt.buffer: stmt.dtype, stmt.keys: "int64"}
            return [
                f"{self.unit.use('table', stmt.dtype, 1)} {table};",
                f"{types.ELEMENTS[stmt.dtype]} *&{e.name(stmt.buffer)} = {table}.values;",
                f"int64_t *&{e.name(stmt.keys)} = {table}.keys;",
            ]
        dtype = types.suffix(e.tables[stmt.table], 1)
        match stmt:
            case nodes.Enter(var, _, key):
                place = e.name(var.name)
                return [f"{place} = enter_{dtype}({table}, {e.index(key)});", f"if ({place} < 0) {failed}"]
            case nodes.SortTable():
                return [f"if (!sort_table_{dtype}({table})) {failed}"]
            case nodes.ClearTable():
                return [f"clear_table_{dtype}({table});"]

    def _compress(self, stmt: nodes.Compress) -> str:
        e = self.expressions
        var, dtype = e.name(stmt.var.name), e.buffers[stmt.source]
        source, count, fill = e.address(stmt.source, stmt.begin), e.index(stmt.count), e.index(stmt.fill)
        if stmt.selection is not None:
            return self._select(stmt, stmt.selection)
        if stmt.buffer is None:
            return f"{var} += {self.unit.use('count_kept', dtype, 1)}({source}, {count}, {fill});"
        is_native = self.function.vector_bytes == compress.NATIVE_BYTES
        lanes = compress.NATIVE_BYTES // types.BYTES[dtype] if is_native else 1
        helper = self.unit.use(f"compress_{e.buffers[stmt.buffer]}", dtype, lanes)
        into = f"{e.name(stmt.buffer)}, {e.name(stmt.values)}, {var}, {e.index(stmt.end)}"
        return f"{var} = {helper}({into}, {source}, {e.index(stmt.first)}, {count}, {fill});"

    def _select(self, stmt: nodes.Compress, selection: Selection) -> str:
        """The call that stores, or counts, the largest entries of blocks."""
        e = self.expressions
        var, count = e.name(stmt.var.name), e.index(stmt.count)
        kept = min(selection.kept, LARGEST)
        size = min(selection.size, LARGEST) or f"({count} > 0 ? {count} : 1)"
        if stmt.buffer is None:
            helper = self.unit.use("count_selected", "int64", 1)
            return f"{var} += {helper}({count}, {kept}, {size});"
        sign = "signed_" if selection.is_signed else ""
        helper = self.unit.use(f"select_{sign}{e.buffers[stmt.buffer]}", nodes.type_of(stmt.fill).dtype, 1)
        into = f"{e.name(stmt.buffer)}, {e.name(stmt.values)}, {var}, {e.index(stmt.end)}"
        read = f"{e.address(stmt.source, stmt.begin)}, {e.index(stmt.first)}, {count}"
        return f"{var} = {helper}({into}, {read}, {kept}, {size});"

    def _declare(self, var: nodes.Var, value: nodes.Expr, mutable: bool) -> str:
        e = self.expressions
        self.variables[var.name] = var.type
        if mutable:
            self.mutable.add(var.name)
        else:
            self.mutable.discard(var.name)
        qualifier = "" if mutable else "const "
        if var.type.dtype == "bool" and var.type.lanes > 1:
            width = e.mask_bytes(value) or 4
            e.masks[var.name] = width
            initial = e.mask(value, width)[0]
        else:
            width = 0
            initial = e.index(value)
            self._note_loaded(var, value, mutable)
        return f"{qualifier}{e.type(var.type, width)} {e.name(var.name)} = {initial};"

    def _note_loaded(self, var: nodes.Var, value: nodes.Expr, mutable: bool) -> None:
        """Records a vector of indices in constant memory: gathers then read each index directly from memory."""
        self.expressions.loaded.pop(var.name, None)
        match unwidened(value):
            case nodes.Load(buffer, index, type) as load if type.lanes > 1 and not mutable:
                constant = any(b.name == buffer and not b.output for b in self.function.buffers)
                if constant and not any(n.name in self.mutable for n in find(index, nodes.Var)):
                    self.expressions.loaded[var.name] = load

    def _set(self, var: nodes.Var, value: nodes.Expr) -> str:
        e = self.expressions
        if var.type.dtype == "bool" and var.type.lanes > 1:
            return f"{e.name(var.name)} = {e.mask(value, e.masks[var.name])[0]};"
        match value:
            case nodes.Op("fma", (left, right, third), type) if third == var:
                product = e.text(nodes.Op("mul", (left, right), type))
                return f"{e.name(var.name)} += {product};"
            case nodes.Op("add", (first, other), _) if first == var:
                return f"{e.name(var.name)} += {e.text(other)};"
        return f"{e.name(var.name)} = {e.index(value)};"

    def _store(self, stmt: nodes.Store) -> str:
        e = self.expressions
        type = type_of(stmt.value)
        count = None if _covers(stmt.count, type.lanes) else stmt.count
        if type.lanes == 1:
            guard = "" if count is None else f"if ({within(e.write(count), SUM)} > 0) "
            return f"{guard}{e.name(stmt.buffer)}[{e.index(stmt.index)}] = {e.text(stmt.value)};"
        dtype, value = self._stored(stmt.value)
        address = e.address(stmt.buffer, stmt.index)
        if dtype != type.dtype:
            address = f"(int8_t *){address}"
        if count is None:
            return f"{self.unit.use('store', dtype, type.lanes)}({address}, {value});"
        return f"{self.unit.use('store_part', dtype, type.lanes)}({address}, {value}, {e.index(count)});"

    def _stored(self, value: nodes.Expr) -> tuple[str, str]:
        """The dtype in memory and the text of a vector; masks are stored as bytes 0 and 1."""
        type = type_of(value)
        if type.dtype != "bool":
            return type.dtype, self.expressions.text(value)
        return "int8", f"{within(self.expressions.mask(value, 1), SUM)} & 1"

    def _scatter(self, stmt: nodes.Scatter) -> str:
        e = self.expressions
        lanes = type_of(stmt.value).lanes
        if lanes == 1:
            return self._store(nodes.Store(stmt.buffer, stmt.indices, stmt.value, stmt.count))
        dtype, value = self._stored(stmt.value)
        address = e.name(stmt.buffer)
        if dtype != type_of(stmt.value).dtype:
            address = f"(int8_t *){address}"
        arguments = f"{address}, {e.text(stmt.indices)}, {value}"
        if stmt.count is None or _covers(stmt.count, lanes):
            return f"{self.unit.use('scatter', dtype, lanes)}({arguments});"
        return f"{self.unit.use('scatter_part', dtype, lanes)}({arguments}, {e.index(stmt.count)});"

    def _transpose(self, outputs: tuple[nodes.Var, ...], inputs: tuple[nodes.Expr, ...]) -> list[str]:
        e = self.expressions
        kind = outputs[0].type
        self.variables |= {output.name: output.type for output in outputs}
        pairs = zip(outputs, inputs, strict=True)
        lines = [f"{e.type(kind)} {e.name(output.name)} = {e.text(value)};" for output, value in pairs]
        if kind.lanes == 1:
            return lines
        rows = ", ".join(e.name(output.name) for output in outputs)
        return [*lines, f"{self.unit.use('transpose', kind.dtype, kind.lanes)}({rows});"]

    def _together(
        self, outputs: tuple[nodes.Var, ...], function: str, inputs: tuple[nodes.Expr, ...]
    ) -> list[str]:
        e, kind = self.expressions, nodes.type_of(inputs[0])
        self.variables |= {output.name: output.type for output in outputs}
        helper = self.unit.use(f"reduce_{function}_of_{len(outputs)}", kind.dtype, kind.lanes)
        whole = f"{e.name(outputs[0].name)}_together"
        lines = [f"const auto {whole} = {helper}({', '.join(e.text(value) for value in inputs)});"]
        for lane, output in enumerate(outputs):
            lines.append(f"const {e.type(output.type)} {e.name(output.name)} = {whole}[{lane}];")
        return lines

    def _for(self, stmt: nodes.For) -> list[str]:
        e = self.expressions
        self.variables[stmt.var.name] = stmt.var.type
        name, type = e.name(stmt.var.name), e.type(stmt.var.type)
        start = f"{type} {name} = {e.index(stmt.begin)}"
        end = within((e.index(stmt.end), SUM), SUM)
        if not self._is_fixed(stmt.end):
            # Evaluated once, as the loop's range is.
            bound = e.fresh(f"{stmt.var.name}_end")
            start, end = f"{start}, {bound} = {end}", bound
        step = f"++{name}" if stmt.step == 1 else f"{name} += {stmt.step}"
        return [f"for ({start}; {name} < {end}; {step}) {{", *self.indented(stmt.body), "}"]

    def _is_fixed(self, expr: nodes.Expr) -> bool:
        """Whether `expr` can be evaluated again at no cost, with the same result."""
        match expr:
            case nodes.Var(name, _):
                return name not in self.mutable
            case nodes.Literal():
                return True
            case nodes.Op("add" | "sub", args, _):
                return all(self._is_fixed(arg) for arg in args)
        return False

    def _if(self, stmt: nodes.If) -> list[str]:
        lines = [f"if ({self.expressions.text(stmt.condition)}) {{", *self.indented(stmt.then)]
        match stmt.otherwise:
            case None:
                return [*lines, "}"]
            case nodes.If() as chained:
                first, *rest = self._if(chained)
                return [*lines, f"}} else {first}", *rest]
            case otherwise:
                return [*lines, "} else {", *self.indented(otherwise), "}"]

    def _allocate(self, stmt: nodes.Allocate) -> list[str]:
        e = self.expressions
        e.buffers[stmt.buffer] = stmt.dtype
        lines = scratch.lines(e, stmt)
        if stmt.fill is not None:
            fill = types.literal(stmt.fill, stmt.dtype)
            helper = self.unit.use("fill", stmt.dtype, 1)
            lines.append(f"{helper}({e.name(stmt.buffer)}, {e.index(stmt.count)}, {fill});")
        return lines

    def _allocate_output(self, stmt: nodes.AllocateOutput) -> list[str]:
        e = self.expressions
        slot = next(n for n, buffer in enumerate(self.function.buffers) if buffer.name == stmt.buffer)
        element, name = types.ELEMENTS[stmt.dtype], e.name(stmt.buffer)
        count = within(e.write(stmt.count), SUM)
        size = within(e.write(stmt.count), PREFIX)
        return [
            f"{name} = ({element} *)context->allocate(context->state, {slot}, {size} * {types.BYTES[stmt.dtype]});",
            f"if (!{name} && {count} > 0) return {OUT_OF_MEMORY};",
        ]


def _covers(count: nodes.Expr | None, lanes: int) -> bool:
    match count:
        case None:
            return True
        case nodes.Literal(value, _):
            return value >= lanes
    return False


def _copies(body: nodes.Stmt) -> bool:
    """Whether a loop consists of stores alone."""
    plain = nodes.Block | nodes.Declare | nodes.Set | nodes.Store | nodes.Expr
    return holds(body, nodes.Store) and all(isinstance(n, plain) for n in walk(body))
