"""`docs/compiler.md` and `docs/schedules.md` are complete: each node kind has a row, each directive an entry."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.einsum import nodes as einsum
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text import printer as einsum_printer
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.ir.node import Node
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops import printer as loop_printer
from sparsify.compiler.loops.lower import lower
from sparsify.compiler.loops.simplify import simplify
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation import printer as notation_printer
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.schedule import directives
from sparsify.compiler.schedule.directives import apply
from sparsify.storage.format import Format

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "compiler.md").read_text(encoding="utf-8")
SCHEDULES = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
PRINTERS = (einsum_printer, notation_printer, loop_printer)

i, j = einsum.Index("i"), einsum.Index("j")
A, x, y = einsum.Access("A", (i, j)), einsum.Access("x", (j,)), einsum.Access("y", (i,))
PRODUCT = einsum.Call("mul", (A, x))
SUM = einsum.Assign(y, "sum", PRODUCT)
DECLARED = einsum.Declaration("A", ("i", "j"), Format("csr"), "float32")
EINSUM: tuple[Node, ...] = (
    einsum.Const(0.5),
    i,
    A,
    PRODUCT,
    einsum.Cast("float64", A),
    einsum.Reduce("sum", ("j",), PRODUCT),
    einsum.Stored(A),
    einsum.Extent("j"),
    SUM,
    einsum.Selection(2, 4),
    DECLARED,
    einsum.Program((SUM,), (DECLARED,), ("A", "x"), ("y",)),
)
TEMPORARY = notation.Temporary("w", ("k",), "float32", "register")
NOTATION: tuple[Node, ...] = (
    notation.Forall("i", SUM, notation.Serial()),
    notation.Forall("i", SUM, notation.Parallel("dynamic", "A", 4)),
    notation.Forall("i", SUM, notation.Vector()),
    notation.Forall("i", SUM, notation.Unrolled()),
    notation.Forall("i", SUM, notation.Transposed()),
    notation.Sequence((SUM, SUM)),
    TEMPORARY,
    notation.Let((TEMPORARY,), SUM),
    notation.If(einsum.Call("lt", (i, j)), SUM),
    notation.Split("k", "ko", "ki", 64, (32, 8)),
    notation.Fuse("i", "k", "f"),
    notation.Position("j", "p", "A"),
    notation.Prefetch("x", 16),
    notation.Notation(SUM, (notation.Position("j", "p", "A"),), (), ("A", "x"), ("y",)),
)
SCHEDULE: tuple[Node, ...] = directives.Schedule.parse(
    "order i, j, k; split k ko ki 64 tail 32 8; fuse h i hi; join k in Y; merge j; pos j p A; "
    "precompute w at ko in register; distribute w; recompute S after m; rescale m at jo; "
    "pack P = B[j, ki] at ko in thread; vector ki; unroll i; parallel i dynamic A chunks 4; prefetch T 16; "
    "transpose i k in Y"
).directives
INT, FLOAT, VECTOR, MASK = (loops.Type(*t) for t in (("int64",), ("float32",), ("float32", 8), ("bool", 8)))
p, n, a, v, m = (
    loops.Var(name, kind) for name, kind in (("p", INT), ("n", INT), ("a", FLOAT), ("v", VECTOR), ("m", MASK))
)
ZERO, ONE = loops.Literal(0, INT), loops.Literal(0.5, FLOAT)
STORE = loops.Store("y_vals", p, a)
LOOPS: tuple[Node, ...] = (
    p,
    ONE,
    loops.Op("fma", (v, v, v), VECTOR),
    loops.Convert(p, FLOAT),
    loops.Broadcast(a, VECTOR),
    loops.Lanes(p, loops.Type("int64", 8)),
    loops.Load("x_vals", p, VECTOR, n),
    loops.Gather("x_vals", loops.Var("js", loops.Type("int64", 8)), VECTOR),
    loops.Bits("A_bits", p, 8),
    loops.Expand("A_vals", p, loops.Var("bits", INT), n, VECTOR),
    loops.LaneBits(loops.Var("bits", INT), MASK),
    loops.Horizontal("add", v, FLOAT),
    loops.Block((STORE, STORE)),
    loops.Comment("row by row"),
    loops.Declare(a, ONE, mutable=True),
    loops.Set(a, ONE),
    STORE,
    loops.Scatter("y_vals", loops.Var("js", loops.Type("int64", 8)), v),
    loops.Transpose((v, m), (v, m)),
    loops.HorizontalTogether((a, a), "add", (v, v)),
    loops.For(p, ZERO, n, STORE),
    loops.While(loops.Op("lt", (p, n), loops.BOOL), STORE),
    loops.If(loops.Op("lt", (p, n), loops.BOOL), STORE),
    loops.Allocate("w", "float32", n, 0.0),
    loops.Fill("w", ZERO, n, ONE),
    loops.Sort("crd", n),
    loops.Enumerate("crd", "flags", n),
    loops.Mark("marks", p, n),
    loops.TakeMarks(p, "crd", "marks", n, n),
    loops.Table("t", "w", "keys", "float32"),
    loops.Enter(p, "t", n),
    loops.SortTable("t", n),
    loops.ClearTable("t"),
    loops.Compress(p, "Y_crd", "Y_vals", "w", ZERO, n, ZERO, loops.Literal(0, FLOAT), n),
    loops.Prefetch("x_vals", p),
    loops.ParallelFor(loops.Var("i_begin", INT), loops.Var("i_end", INT), n, loops.Block(()), STORE, n),
    loops.AllocateOutput("Y_vals", "float32", n),
    loops.Return(1),
    loops.Function(("n",), (loops.Buffer("y_vals", "float32", output=True),), STORE, 32),
)
TABLES = {
    "Einsum program": (einsum, EINSUM),
    "Concrete index notation": (notation, NOTATION),
    "Schedule": (directives, SCHEDULE),
    "Loop IR": (loops, LOOPS),
}
# Nodes without a text of their own, printed with the node around them.
INSIDE = {"Serial", "Parallel", "Vector", "Unrolled", "Transposed", "Forall", "Buffer", "Schedule"}

CPP_SCHEDULE = (
    "split k ko ki 32 masked; order i, ko, j, ki; precompute a = Y at ko in register; vector ki; "
    "prefetch T 16; parallel i dynamic A"
)


def einsum_operand(levels: str) -> Operand:
    """A float32 operand in a format."""
    return Operand(Format(levels), "float32", index_dtypes=result_index_dtypes(Format(levels)))


def kinds(module: ModuleType) -> dict[str, type[Node]]:
    """The classes of nodes of a module that have no subclasses."""
    found = inspect.getmembers(module, lambda one: inspect.isclass(one) and issubclass(one, Node))
    return {
        name: one
        for name, one in found
        if one.__module__.startswith(module.__name__) and not one.__subclasses__()
    }


def section(title: str) -> str:
    """The part of the page below a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def name_of(node: Node) -> str:
    """The class of a node; of a loop in notation the class of its kind."""
    return type(node.kind if isinstance(node, notation.Forall) else node).__name__


def row_of(node: Node) -> str:
    """The start of a node's row: its class and its text, a code span for each line."""
    text = "<br>".join(f"`{line.strip()}`" for line in str(node).splitlines())
    return f"| `{name_of(node)}` | {text} |"


@pytest.mark.parametrize("title", TABLES)
def test_each_kind_of_node_has_a_row_with_its_text(title: str) -> None:
    _, examples = TABLES[title]
    rows = section(title).splitlines()
    missing = [row_of(node) for node in examples if not any(row.startswith(row_of(node)) for row in rows)]
    assert missing == []


@pytest.mark.parametrize("title", TABLES)
def test_examples_are_of_each_kind(title: str) -> None:
    module, examples = TABLES[title]
    shown = {name_of(node) for node in examples}
    assert set(kinds(module)) - shown <= INSIDE
    for name in set(kinds(module)) - shown:
        assert f"`{name}`" in section(title), name


def test_rows_of_cpp_are_lines_of_one_kernel() -> None:
    """Loop IR in the first column, the C++ that code generation emits in the second."""
    operands = {"T": einsum_operand("dense, dense"), "A": einsum_operand("csr")}
    plain = concretize(declare(parse("Y[i,k] = A[i,j] * T[j,k]"), operands))
    kernel = simplify(lower(apply(plain, directives.Schedule.parse(CPP_SCHEDULE)), 32))
    loop_lines, cpp_lines = (
        {line.strip() for line in text.splitlines()} for text in (str(kernel), emit(kernel))
    )
    rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \| ", section("C++"), re.MULTILINE)
    assert len(rows) > 8
    assert [left for left, _ in rows if left not in loop_lines] == []
    assert [right for _, right in rows if right not in cpp_lines] == []


@pytest.mark.parametrize(
    "form", [kind.form for kind in directives.DIRECTIVES], ids=lambda form: form.split()[0]
)
def test_each_directive_has_an_entry(form: str) -> None:
    """The form, the class, printed loops, the condition and refusals."""
    word = form.split()[0]
    entry = SCHEDULES.split(f"\n## {word}\n")[1].split("\n## ")[0]
    kind = next(kind for kind in directives.DIRECTIVES if kind.form == form)
    assert entry.strip().startswith(f"`{form}`")
    assert f"`{kind.__name__}`" in entry
    assert "**Legal when:**" in entry
    assert re.search(rf'assert \(?\s*(after|loops)\(\s*\w+,\s*"[^"]*{word} ', entry)
    assert "assert refusal(" in entry


def test_there_is_an_entry_for_nothing_else() -> None:
    words = [kind.form.split()[0] for kind in directives.DIRECTIVES]
    headings = re.findall(r"^## (.*)$", SCHEDULES, re.MULTILINE)
    assert headings == [*words, "Unknown directives"]
    assert {kind.__name__ for kind in directives.DIRECTIVES} == kinds(directives).keys() - {"Schedule"}
