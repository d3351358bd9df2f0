"""Golden C++ for each schedule template and each node of the loop IR, at vectors of 32 bytes on every machine.

A row has a small program and the schedules of one template for fixed sizes; its golden file has the first schedule that
`shows` a part of its text, and the C++. `MODULES` names the golden of each module of the templates.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.parse import read
from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops import batch_reductions, hoist_loads, lower, nodes, simplify
from sparsify.compiler.loops import verify as loops
from sparsify.compiler.notation import verify as notation
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import templates
from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.schedule.templates import sparse_linear
from sparsify.compiler.schedule.templates.candidates import candidates
from sparsify.compiler.schedule.templates.compressed_rows import dropped
from sparsify.compiler.schedule.templates.experts import experts
from sparsify.compiler.schedule.templates.gemm import tiles
from sparsify.compiler.schedule.templates.heavy_rows import with_hubs
from sparsify.compiler.schedule.templates.joint_reductions import aggregates
from sparsify.compiler.schedule.templates.joint_statements import joined
from sparsify.compiler.schedule.templates.panels import panels
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.row_nests import row_nests
from sparsify.compiler.schedule.templates.row_chain.strategies import row_ways
from sparsify.compiler.schedule.templates.sddmm import sampled
from sparsify.compiler.schedule.templates.spgemm import scattered
from sparsify.storage.format import Format
from tests.scenarios.test_built_kernels import KERNELS as BUILT_BY_HAND

BYTES, LANES, ITEM = 32, 8, 4
Make = Callable[[Notation], Iterable[Schedule]]
SOFTMAX = """m[i] max= S[i,j]; P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i])); d[i] += P[i,j];
Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])"""
ENTRIES = f"S[i,j] = where(stored(M[i,j]), a[i] * b[j], -inf); {SOFTMAX}"
BLOCKS = f"S[i,j] = where(stored(M[i,j]), sum(k, Q[i,k] * K[j,k]), -inf); {SOFTMAX}"
HEADS = "S[h,i,j] = where(stored(M[i,j]), a[j,h] + b[i,h], -inf); " + SOFTMAX.replace("[i", "[h,i").replace(
    "V[j,l]", "V[j,h,l]"
).replace("Y[h,i,l]", "Y[i,h,l]")
MESH = Sizes({"i": 30_000, "j": 30_000, "k": 7}, {"A": 1_500_000}, crowdings={"A": 0.9})
WEIGHT = Sizes({"t": 64, "n": 64, "k": 64}, {"W": 400})
ONE_ROW = Sizes({"t": 1, "n": 64, "k": 64}, {"W": 2000})
BATCH = Sizes({"b": 8, "m": 64, "k": 64, "n": 64}, {"W": 4000})


@dataclass(frozen=True)
class Golden:
    """A program, and the schedules of a template.

    Attributes:
        make: notation -> schedules; a text is a schedule.
        shows: a part of the schedule's text.
        result: format of the result, inferred for "".
        drops: whether entries equal to the fill are not stored.
        sizes: extents known at compile time.
        dtype: dtype of the operands.
    """

    text: str
    formats: dict[str, str]
    make: Make | str
    shows: str = ""
    result: str = ""
    drops: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    dtype: str = "float32"


def ways(notation: Notation) -> Iterable[Schedule]:
    """The schedules of a row-wise chain, in an order that depends on the machine."""
    return [way.schedule for way in row_ways(row_chain(notation), LANES, ITEM, UNKNOWN)]


def linear(sizes: Sizes) -> Make:
    return lambda n: sparse_linear.schedules(panels(n), LANES, ITEM, sizes)


def every(sizes: Sizes) -> Make:
    return lambda n: candidates(n, LANES, ITEM, sizes)


D2 = "dense, dense"
D3 = "dense, dense, dense"
CHAIN = {"M": "csr", "a": "dense", "b": "dense", "V": D2}
BLOCKED = {"M": "bcsr(8,8)", "Q": D2, "K": D2, "V": D2}
SLICES = "i/16: dense, j/64: dense, i%16: dense, j%64: sliced(16, crd=int8)"
SPGEMM = "Y[i,k] += A[i,j] * B[j,k]"
TEMPLATES = {
    "sddmm": Golden(
        "S[i,j] = A[i,j] * sum(k, P[i,k] * Q[j,k])",
        {"A": "csr", "P": D2, "Q": D2},
        lambda n: sampled(n).schedules(LANES, ITEM, UNKNOWN),
    ),
    "spgemm": Golden(
        SPGEMM,
        {"A": "csr", "B": "csr"},
        lambda n: scattered(n).schedules(UNKNOWN, ()),
        "listed",
        result="csr",
    ),
    "gemm": Golden(
        "C[i,k] += A[i,j] * W[j,k]", {"A": D2, "W": D2}, lambda n: tiles(n).schedules(LANES, ITEM, UNKNOWN)
    ),
    "compressed_rows": Golden(
        "Y[i,k] = relu(T[i,k])", {"T": D2}, lambda n: dropped(n).schedules(LANES), result="csr", drops=True
    ),
    "sparse_linear": Golden(
        "Y[t,n] += X[t,k] * W[n,k]", {"X": D2, "W": "j/64: dense, i: dense, j%64: compressed"}, linear(WEIGHT)
    ),
    "sparse_linear_row": Golden(
        "Y[t,n] += X[t,k] * W[n,k]", {"X": D2, "W": "i: dense, j/64: dense, j%64: bitmap"}, linear(ONE_ROW)
    ),
    "experts": Golden(
        "H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * W[e,h,d])); Y[t,o] += H[t,e,h] * V[e,o,h]",
        {"G": "j: dense, i: compressed", "X": D2, "W": D3, "V": D3},
        lambda n: experts(n).schedules(LANES, ITEM, UNKNOWN),
    ),
    "entry_rows": Golden(ENTRIES, CHAIN, ways, "precompute S at i in thread", sizes={"l": 8}),
    "entry_chunks": Golden(ENTRIES, CHAIN, ways, "rescale m at pc", sizes={"l": 8}),
    "entry_heads": Golden(
        HEADS, {"M": "csr", "a": D2, "b": D2, "V": D3}, ways, "order S: i, j, h", sizes={"h": 2, "l": 8}
    ),
    "block_rows": Golden(
        BLOCKS, BLOCKED, ways, "precompute S at io in thread", sizes={"i": 64, "j": 64, "k": 8, "l": 8}
    ),
    "block_chunks": Golden(
        BLOCKS, BLOCKED, ways, "rescale m at jo", sizes={"i": 64, "j": 64, "k": 8, "l": 8}
    ),
    "row_nests": Golden(
        "S[i,k] += A[i,j] * X[j,k]; w[i] += S[i,k]; m[i] = w[i] / 2; Y[i,k] = S[i,k] - m[i]",
        {"A": "csr", "X": D2},
        lambda n: row_nests(n).schedules(LANES, ITEM, UNKNOWN),
    ),
    "joint_reductions": Golden(
        "s[i,f] += A[i,j] * X[j,f]; m[i,f] max= where(stored(A[i,j]), X[j,f], -inf); Y[i,f] = s[i,f] + m[i,f]",
        {"A": "csr", "X": D2},
        lambda n: aggregates(n).schedules(LANES, ITEM, UNKNOWN),
    ),
    "joint_statements": Golden(
        "m[i] max= A[i,j]; P[i,j] = where(stored(A[i,j]), exp(A[i,j] - m[i]), 0); y[i] += P[i,j] * x[j]",
        {"A": "csr", "x": "dense"},
        joined,
        "precompute m at i in thread",
    ),
    "padded_rows": Golden(SPGEMM, {"A": "csc", "B": D2}, every(MESH), "in memory"),
    "one_nest": Golden(
        "y[i] += A[i,j] * x[j]",
        {"A": "csr", "x": "dense"},
        every(Sizes({"i": 1000, "j": 1000}, {"A": 16_000})),
        "split p po pi 4",
    ),
    "heavy_rows": Golden(
        "y[i] += A[i,j] * x[j]",
        {"A": "csr", "x": "dense"},
        lambda n: with_hubs(
            n,
            Schedule.parse("order i, j; precompute w = y at i in register; parallel i dynamic A"),
            Sizes({"i": 4000, "j": 4000}, {"A": 8_000_000}, rows={"A": 1 << 22}),
        ),
        "hubs",
    ),
    "transposed_copies": Golden(
        "Y[b,m,n] += X[b,m,k] * W[b,k,n]",
        {"X": D3, "W": "dense, dense, compressed"},
        every(BATCH),
        "X_copy",
        D3,
    ),
}
# Nodes that no template shows above.
LOOPS = {
    "slices": Golden("Y[t,n] += X[t,k] * W[n,k]", {"X": D2, "W": SLICES}, linear(ONE_ROW)),
    "marks": Golden(
        SPGEMM,
        {"A": "csr", "B": "csr"},
        lambda n: scattered(n).schedules(UNKNOWN, ()),
        "marked",
        result="csr",
    ),
    "hash_workspace": Golden(
        "Y[i,j] += A[k,i] * B[k,j]",
        {"A": "csr", "B": "csr"},
        "order k, i, j; precompute w = Y at root in memory listed",
        result="csr",
    ),
    "dot_products": Golden(
        "Y[t,n] = sum(k, dot_bfloat16(X[t,k], W[n,k]))",
        {"X": D2, "W": "dense, compressed"},
        linear(WEIGHT),
        dtype="int32",
    ),
    "strided_vectors": Golden("Y[i,k] = 2 * X[i,k]", {"X": D2}, "order k, i; vector i"),
    "hash_table": Golden("y[i] += A[i,j] * H[i,j]", {"A": "csr", "H": "dense, hash"}, "order i, j"),
}
MODULES = {
    **{name: name for name in TEMPLATES},
    "candidates": "padded_rows",
    "expert_nests": "experts",
    "panels": "sparse_linear",
    "chain": "entry_rows",
    "chunks": "entry_chunks",
    "two_pass": "entry_chunks",
    "strategies": "block_chunks",
    "block_cost": "block_rows",
    "entry_cost": "entry_rows",
}
ABSTRACT = {"Expr", "Stmt", "Node"}


def operand(text: str, dtype: str) -> Operand:
    """An operand with 32-bit arrays, but for fixed dtypes."""
    form = Format(text)
    arrays = [
        tuple(
            getattr(s.level, role, None) or "int32" if role in s.level.arrays else ""
            for role in ("pos", "crd")
        )
        for s in form.levels
    ]
    return Operand(form, dtype, 0.0, tuple((pos, crd) for pos, crd in arrays))


def program(row: Golden) -> Program:
    """The program of a row."""
    statements = read(row.text).statements
    name = statements[-1].target.tensor
    operands = {tensor: operand(form, row.dtype) for tensor, form in row.formats.items()}
    formats = {name: Format(row.result)} if row.result else {}
    return infer_format(
        declare(
            statements,
            operands,
            (name,),
            formats=formats,
            sizes=row.sizes,
            drops=(name,) if row.drops else (),
        )
    )


def compiled(row: Golden) -> tuple[Schedule, nodes.Function]:
    """The first schedule that shows the wanted part, and the loops."""
    plain = concretize(program(row))
    made = [Schedule.parse(row.make)] if isinstance(row.make, str) else row.make(plain)
    schedule = next(s for s in made if row.shows in str(s))
    scheduled = apply(plain, schedule)
    notation.verify(scheduled)
    function = simplify.simplify(lower.lower(scheduled, BYTES))
    function = hoist_loads.hold(batch_reductions.together(function))
    loops.verify(function)
    return schedule, function


@pytest.mark.parametrize("name", [*TEMPLATES, *LOOPS])
def test_golden(name, golden):
    schedule, function = compiled((TEMPLATES | LOOPS)[name])
    header = "\n".join(f"// {directive}" for directive in schedule.directives)
    golden(f"cpp/templates/{name}.cpp", f"{header}\n{emit(function)}")


def test_every_template_has_a_golden():
    folder = Path(inspect.getfile(templates)).parent
    modules = {path.stem for path in folder.rglob("*.py") if path.stem != "__init__"}
    assert modules == MODULES.keys() and set(MODULES.values()) <= TEMPLATES.keys()


def test_every_node_has_a_golden():
    functions = [compiled(row)[1] for row in (TEMPLATES | LOOPS).values()]
    functions += [simplify.simplify(make()) for make in BUILT_BY_HAND.values()]
    shown = {type(node).__name__ for function in functions for node in walk(function)}
    classes = {
        name
        for name, value in vars(nodes).items()
        if inspect.isclass(value) and issubclass(value, nodes.Node) and value.__module__ == nodes.__name__
    }
    assert classes - ABSTRACT == shown
