"""Parallel loops: each becomes a function run by one thread, called directly for little work.

In: `parallel i_begin, i_end in chunks(0..n by A2_pos): ...`. Out: the function `region_1(thread, threads, ...)`
in the unit and, in the kernel, one call of the region, or a call by every thread of an OpenMP region.

A separate function keeps pointers restricted and values in registers; capturing by reference loses both.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sparsify.compiler.cpp import names
from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit, indent
from sparsify.compiler.cpp.scratch import fits_stack
from sparsify.compiler.cpp.statements import Statements
from sparsify.compiler.ir.node import Node, children, find, holds
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import type_of

OPENMP: Final = (
    'extern "C" int omp_get_thread_num() noexcept;\nextern "C" int omp_get_num_threads() noexcept;'
)
# Below this multiple of the work worth a second thread, each thread gets few chunks: finding the starts of
# chunks costs more than unequal finishing times of threads.
LARGE: Final = 64
FEW_CHUNKS: Final = 4


def outline(statements: Statements, stmt: nodes.ParallelFor) -> list[str]:
    """The call of a parallel loop; adds the function of the loop to the unit."""
    e, unit = statements.expressions, statements.unit
    unit.declare("openmp", OPENMP)
    number = len(unit.regions) + 1
    name = e.fresh(f"region_{number}")
    captured = _captured(statements, stmt)
    may_fail = _may_fail(stmt)
    unit.regions.append(_region(statements, stmt, name, captured, may_fail))

    lines = []
    arguments = [e.name(variable) for variable in captured]
    work, one, many = e.fresh(f"work_{number}"), ["0", "1"], ["omp_get_thread_num()", "omp_get_num_threads()"]
    lines.append(f"const int64_t {work} = {e.index(stmt.work)};")
    if stmt.dynamic:
        counter, chunks = e.fresh(f"next_{number}"), e.fresh(f"chunks_{number}")
        few, most = min(FEW_CHUNKS, stmt.chunks_per_thread), stmt.chunks_per_thread
        share = f"{work} < {LARGE} * serial_threshold ? {few} : {most}"
        lines.append(f"int64_t {counter} = 0;")
        lines.append(f"const int64_t {chunks} = context->threads * ({share});")
        one, many = [*one, f"&{counter}", "1"], [*many, f"&{counter}", chunks]
    serial = f"{name}({', '.join([*one, *arguments])})"
    spread = f"{name}({', '.join([*many, *arguments])})"
    test = f"if ({work} < serial_threshold || context->threads == 1) {{"
    pragma = "#pragma omp parallel num_threads((int)context->threads)"
    if not may_fail:
        return [*lines, test, f"  {serial};", "} else {", pragma, f"  {spread};", "}"]
    status = e.fresh(f"status_{number}")
    store = f"__atomic_store_n(&{status}, 1, __ATOMIC_RELAXED)"
    return [
        *lines,
        f"int64_t {status} = 0;",
        *[test, f"  {status} = {serial};", "} else {", pragma, f"  if ({spread}) {store};", "}"],
        f"if ({status}) return {status};",
    ]


def computes_in_regions(body: nodes.Stmt) -> bool:
    """Whether loops surround parallel loops, and only count, allocate and move numbers.

    g++ need not spend time on the surrounding loops: the computing loops are functions of their own.
    """
    around = list(_around(body))
    has_loops = any(isinstance(node, nodes.For | nodes.While) for node in around)
    has_regions = any(isinstance(node, nodes.ParallelFor) for node in around)
    return has_loops and has_regions and not any(map(_computes, around))


def _around(node: Node) -> Iterator[Node]:
    """The nodes outside of parallel loops, and the parallel loops themselves."""
    yield node
    if not isinstance(node, nodes.ParallelFor):
        for child in children(node):
            yield from _around(child)


def _computes(node: Node) -> bool:
    """Whether a node does more than counting: floating point arithmetic, or a step on vectors."""
    match node:
        case nodes.Op() | nodes.Convert() | nodes.Broadcast():
            return _is_fraction(node.type)
        case nodes.Fill(value=value):
            return _is_fraction(type_of(value))
        case (
            nodes.Sort()
            | nodes.TakeMarks()
            | nodes.Enter()
            | nodes.Compress()
            | nodes.Horizontal()
            | nodes.HorizontalTogether()
        ):
            return True
        case nodes.Gather() | nodes.Scatter() | nodes.Transpose():
            return True
    return False


def _is_fraction(type: nodes.Type) -> bool:
    return types.is_float(type.dtype) or type.dtype.startswith("complex")


def _may_fail(stmt: nodes.ParallelFor) -> bool:
    return holds(stmt, nodes.Table) or any(not fits_stack(node) for node in find(stmt, nodes.Allocate))


def _captured(statements: Statements, stmt: nodes.ParallelFor) -> list[str]:
    """Variables and buffers captured by the region from outside, in order of appearance."""
    known = {**statements.variables, **statements.expressions.buffers}
    region = nodes.Block((nodes.Set(stmt.begin, stmt.extent), stmt.setup, stmt.body))
    mentioned = names.mentioned(region)
    if stmt.balance is not None:
        mentioned.insert(0, stmt.balance)
    inside = _declared(region) | {stmt.begin.name, stmt.end.name}
    return [name for name in dict.fromkeys(mentioned) if name in known and name not in inside]


DECLARING: Final = (
    nodes.Declare,
    nodes.For,
    nodes.Transpose,
    nodes.HorizontalTogether,
    nodes.Allocate,
    nodes.Table,
)


def _declared(region: nodes.Stmt) -> set[str]:
    found: set[str] = set()
    for node in find(region, *DECLARING):
        match node:
            case nodes.Declare(var=var) | nodes.For(var=var):
                found.add(var.name)
            case nodes.Transpose(outputs=outputs) | nodes.HorizontalTogether(outputs=outputs):
                found |= {output.name for output in outputs}
            case nodes.Allocate(buffer=buffer):
                found.add(buffer)
            case nodes.Table(table, buffer, keys):
                found |= {table, buffer, keys}
    return found


def _region(
    statements: Statements, stmt: nodes.ParallelFor, name: str, captured: list[str], may_fail: bool
) -> str:
    e = statements.expressions
    parameters = ["int64_t thread", "int64_t threads"]
    if stmt.dynamic:
        parameters += ["int64_t *next", "int64_t chunks"]
    parameters += [_parameter(statements, variable) for variable in captured]
    result = "int64_t" if may_fail else "void"
    inner = replace(statements, mutable=set())
    lines = [*inner.lines(stmt.setup)]
    lines += [f"const int64_t extent = {e.index(stmt.extent)};"]
    simple = stmt.chunks_per_thread == 1 and not stmt.dynamic
    chunk, chunks = ("thread", "threads") if simple else ("chunk", "chunks")
    inner.variables |= {stmt.begin.name: nodes.INT, stmt.end.name: nodes.INT}
    body = [
        f"const int64_t {e.name(stmt.begin.name)} = {_split(statements, stmt, chunk, chunks)};",
        f"const int64_t {e.name(stmt.end.name)} = {_split(statements, stmt, f'{chunk} + 1', chunks)};",
        *inner.lines(stmt.body),
    ]
    if simple:
        lines += body
    else:
        if not stmt.dynamic:
            lines.append(f"const int64_t chunks = threads * {stmt.chunks_per_thread};")
        lines += [_loop(stmt.dynamic), *indent(body), "}"]
    if may_fail:
        lines.append("return 0;")
    # g++ treats functions called only by cold functions as cold.
    marks = "noinline, hot" if statements.unit.computes_in_regions else "noinline"
    head = f"static __attribute__(({marks})) {result} {name}("
    listed = ",\n".join(indent(indent(parameters)))
    return "\n".join([head, f"{listed}) {{", *indent(lines), "}"])


def _loop(dynamic: bool) -> str:
    if dynamic:
        return "for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {"
    return "for (int64_t chunk = thread; chunk < chunks; chunk += threads) {"


def _split(statements: Statements, stmt: nodes.ParallelFor, chunk: str, chunks: str) -> str:
    e = statements.expressions
    if stmt.balance is None:
        return f"{statements.unit.use('split', 'int64', 1)}({chunk}, {chunks}, extent)"
    helper = statements.unit.use("split_positions", e.buffers[stmt.balance], 1)
    return f"{helper}({chunk}, {chunks}, extent, {e.name(stmt.balance)}, {stmt.row_cost})"


def _parameter(statements: Statements, name: str) -> str:
    e = statements.expressions
    if name in e.buffers:
        constant = any(b.name == name and not b.output and not b.grown for b in statements.function.buffers)
        return f"{'const ' if constant else ''}{types.ELEMENTS[e.buffers[name]]} *__restrict {e.name(name)}"
    return f"const {e.type(statements.variables[name], e.masks.get(name, 0))} {e.name(name)}"


def _define_split(unit: Unit, dtype: str, lanes: int) -> str:
    return """\
// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}"""


def _define_split_positions(unit: Unit, dtype: str, lanes: int) -> str:
    element = types.ELEMENTS[dtype]
    return f"""\
// Where part `chunk` of `chunks` parts of the rows 0..extent begins, each with equal positions + row_cost * rows.
static __attribute__((noinline)) int64_t split_positions_{dtype}(
    int64_t chunk, int64_t chunks, int64_t extent, const {element} *positions, int64_t row_cost) {{
  if (chunk >= chunks) return extent;
  const int64_t total = (int64_t)positions[extent] - positions[0] + row_cost * extent;
  const int64_t target = total / chunks * chunk + total % chunks * chunk / chunks;
  int64_t low = 0, high = extent;
  while (low < high) {{
    const int64_t middle = (low + high) / 2;
    if ((int64_t)positions[middle] - positions[0] + row_cost * middle < target) low = middle + 1;
    else high = middle;
  }}
  return low;
}}"""


TEMPLATES: Final[dict[str, Template]] = {"split": _define_split, "split_positions": _define_split_positions}
