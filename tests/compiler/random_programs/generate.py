"""Random programs with operands by seed, as tests of the compiler.

In: `draw(7)`. Out: a `Case`: statements in index notation, how their operands are stored, values for them.

A failure names its seed, and `draw(seed)` makes the same case again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from sparsify.compiler.einsum.affine import Affine
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.gradient.adjoint import adjoint
from sparsify.compiler.einsum.infer.extents import mode_extents
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Expr, Index, Program, Stored
from sparsify.compiler.einsum.rename import all_indices, rename_indices
from sparsify.compiler.ir.node import Node, map_children, walk
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.errors import UnsupportedProgramError
from sparsify.storage.format import Format
from tests.compiler.random_programs.data import EXTENTS, SMALL, Case, Data, fill_operands, place
from tests.compiler.random_programs.writer import PLAIN, Style, Writer

# Names that generated code or its compiler might use for something else.
ODD = ("w", "int", "p", "sizes", "A2_pos", "restrict")
NAMED = {
    1: (
        "dense",
        "compressed",
        "coo(1)",
        "grouped",
        "i/4: dense, i%4: grouped(2)",
        "i/3: compressed, i%3: dense",
    ),
    2: (
        *("csr", "csc", "coo", "dcsr", "dcsc", "csr", "csc", "csr", "csc"),
        *(
            "j: dense, i: dense",
            "compressed, dense",
            "j: compressed, i: dense",
            "dense, compressed(crd=int16)",
            "dense, compressed(pos=int64, crd=int8)",
        ),
        *("bcsr(2, 3)", "bcsr(4, 2)", "bcsc(2, 2)", "j: coordinate, i: coordinate"),
        *(
            "i/2: compressed, j/2: compressed, i%2: dense, j%2: dense",
            "i/4: dense, j: compressed, i%4: dense",
        ),
        *("nm(2, 4)", "nm(1, 3, group=2)", "i: dense, j/2: dense, j%2: grouped(1, crd=int8)"),
        *("i: dense, j/3: compressed, j%3: grouped(2)", "ell", "j: compressed, i: grouped"),
        "i/2: dense, j/4: dense, i%2: dense, j%4: sliced(2)",
        *(
            "dia",
            "i-j: compressed, j: dense",
            "j-i: dense, i: dense",
            "j/4: dense, i: dense, j%4: compressed",
        ),
    ),
    3: (
        *("csf", "coo(3)", "dense, dense, compressed", "dense, compressed, compressed"),
        *("j: compressed, k: dense, i: compressed", "k: compressed, i: compressed, j: compressed"),
        *("i: dense, k/2: dense, j: grouped, k%2: grouped(1)", "i: dense, j-k: compressed, k: dense"),
        "i: compressed, j/2: dense, k: compressed, j%2: dense",
    ),
    4: (
        *(
            "coo(4)",
            "csf(4)",
            "dense, compressed, dense, compressed",
            "l: dense, i: dense, k: compressed, j: dense",
        ),
        "i: dense, j: dense, k/2: dense, l: compressed, k%2: dense",
    ),
    5: (
        "coo(5)",
        "csf(5)",
        "dense, dense, compressed, dense, compressed",
        "m: dense, l: dense, j: dense, i: compressed, k: compressed",
    ),
    6: (
        "coo(6)",
        "csf(6)",
        "dense, compressed, dense, compressed, dense, dense",
        "compressed, dense, dense, dense, compressed, compressed",
    ),
}
# In blocks, of which the last one is cut where their size does not divide the extent.
BLOCKED = {
    rank: tuple(f for f in forms if "/" in f or f[:4] in ("bcsr", "bcsc")) for rank, forms in NAMED.items()
}
RESULTS = {
    1: ("compressed",),
    2: (
        *("csr", "csc", "dcsr", "coo", "dense, dense", "j: dense, i: dense"),
        *("csr", "csc", "dcsr", "coo", "bcsr(2, 3)", "dense, compressed(crd=int16)"),
    ),
    3: ("csf", "coo(3)", "dense, dense, compressed"),
    4: ("csf(4)", "coo(4)"),
    5: ("csf(5)", "coo(5)"),
    6: ("csf(6)", "coo(6)"),
}
DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "bool", "complex64", "complex128")
WIDTHS = (0, 16, 32, 64)
FILLS = (1.0, -1.0, float("inf"), float("-inf"))


def draw(
    seed: int,
    *,
    style: Style = PLAIN,
    data: Data = SMALL,
    windows: bool = False,
    typed: bool = False,
    assembled: bool = False,
    blocked: bool = False,
) -> Case:
    """The case of a seed.

    Args:
        style: of the statements.
        data: what the operands are made of.
        windows: some indices are affine or constants.
        typed: the operands have different dtypes.
        assembled: the last result is sparse, most operands too, and two threads compute.
        blocked: most operands are stored in blocks.
    """
    rng = np.random.default_rng(seed)
    statements = Writer(rng, style).statements()
    if windows:
        statements = tuple(
            _with_windows(s, np.random.default_rng([seed, n])) for n, s in enumerate(statements)
        )
    if rng.random() < 0.05:
        names = dict(zip(style.letters, ODD, strict=False))
        statements = tuple(rename_indices(s, names) for s in statements)
    dtype = str(rng.choice(["float32", "float64"]))
    ranks = {n.tensor: len(n.indices) for s in statements for n in walk(s.value) if isinstance(n, Access)}
    results = {s.target.tensor: len(s.target.indices) for s in statements}
    inputs = {name: rank for name, rank in ranks.items() if name not in results}
    guarded = {n.access.tensor for s in statements for n in walk(s.value) if isinstance(n, Stored)}
    dense = 0.1 if assembled else 0.35
    forms = BLOCKED if blocked else NAMED
    operands = {
        name: _operand(rng, rank, dtype, 0.0 if name in guarded else dense, forms)
        for name, rank in inputs.items()
    }
    if typed:
        operands = _with_dtypes(operands, statements, np.random.default_rng([seed, 5]))
    last = statements[-1].target
    formats = {}
    if len(last.indices) in RESULTS and (assembled or rng.random() < 0.25):
        formats[last.tensor] = Format(str(rng.choice(RESULTS[len(last.indices)])))
    outputs = tuple(results) if rng.random() < 0.3 else (last.tensor,)
    sizes = {name: int(rng.choice(EXTENTS)) for name in _without_mode(statements)} if windows else {}
    program = declare(statements, operands, outputs, formats=formats, sizes=sizes)
    threads = 2 if assembled else int(rng.choice([1, 2]))
    case = Case(seed, program, int(rng.choice(WIDTHS)), threads, data)
    fill_operands(case, rng, alike=_alike(program, statements))
    shapes = {name: values.shape for name, values in case.values.items()}
    case.program = declare(statements, operands, outputs, formats=formats, sizes=sizes, shapes=shapes)
    return case


def _with_dtypes(
    operands: dict[str, Operand], statements: tuple[Assign, ...], rng: np.random.Generator
) -> dict[str, Operand]:
    """Operands with one or two dtypes among them, and with representable fills.

    16-bit floats are rounded between statements, but not in the interpreters: programs with `sign` have none.
    """
    calls = {node.function for s in statements for node in walk(s.value) if isinstance(node, Call)}
    known = [*DTYPES, *(() if "sign" in calls else ("bfloat16", "float16"))]
    drawn = [str(dtype) for dtype in rng.choice(known, size=int(rng.choice([1, 1, 2])))]
    found = {}
    for name, operand in operands.items():
        dtype = str(rng.choice(drawn))
        whole = dtype.startswith("int")
        fill = operand.fill if "float" in dtype or (whole and abs(operand.fill) < 9) else 0.0
        found[name] = replace(operand, dtype=dtype, fill=fill)
    return found


def _with_windows(statement: Assign, rng: np.random.Generator) -> Assign:
    """Statement with some affine indices: shifted, scaled, a sum of two, or a constant."""
    names = all_indices((statement,))
    plain = list(statement.target.indices)

    def index(old: Expr) -> Expr:
        if rng.random() < 0.75 or not isinstance(old, Index):
            return old
        shift = int(rng.integers(-2, 3))
        factor = int(rng.choice([1, 1, 1, 2, 3, -1]))
        form = Affine(((old.name, factor),), shift if factor > 0 else 3)
        inside = [index.name for index in plain if isinstance(index, Index)]
        if rng.random() < 0.3 and inside and (other := str(rng.choice(inside))) != old.name:
            form = form.plus(Affine(((other, 1),)))
        if rng.random() < 0.1:
            form = form.over(2)
        return form.expression() if old.name in names else old

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return Access(node.tensor, tuple(map(index, node.indices)))
        return map_children(node, visit)

    return replace(statement, value=cast(Expr, visit(statement.value)))


def _alike(program: Program, statements: tuple[Assign, ...]) -> dict[str, str]:
    """First equal extent by extent; equal extents occur along diagonals."""
    given = [program.declaration(name) for name in program.inputs]
    whole = mode_extents(statements, {declared.name: len(declared.extents) for declared in given})
    first: dict[str, str] = {}
    return {
        own: first.setdefault(name, own)
        for declared in given
        for own, name in zip(declared.extents, whole[declared.name], strict=True)
    }


def _without_mode(statements: tuple[Assign, ...]) -> list[str]:
    """Index variables whose extent no operand determines."""
    results = {s.target.tensor for s in statements}
    reads = [
        n for s in statements for n in walk(s.value) if isinstance(n, Access) and n.tensor not in results
    ]
    given = {index.name for access in reads for index in access.indices if isinstance(index, Index)}
    return [name for name in all_indices(statements) if name not in given]


def draw_adjoint(seed: int, *, windows: bool = False) -> Case:
    """Gradients of a random program in most of its inputs; the results of the program are operands, too.

    Raises:
        UnsupportedProgramError: the program reads nothing.
    """
    case = draw(seed, windows=windows)
    if not case.program.inputs:
        raise UnsupportedProgramError(f"{case.program} has no gradients")
    rng = np.random.default_rng([seed, 2])
    wanted = tuple(name for name in case.program.inputs if rng.random() < 0.7) or case.program.inputs[:1]
    program = adjoint(case.program, wanted, {name: f"g_{name}" for name in case.program.outputs})
    given = {name: (case.values[name], case.stored[name]) for name in case.program.inputs}
    reverse = Case(seed, program, case.vector_bytes, case.threads)
    extents: dict[str, int] = dict(case.program.extents)
    for name in case.program.inputs:
        extents.update(zip(case.program.declaration(name).extents, case.values[name].shape, strict=True))
    results = interpret(case.program, given)
    for name in program.inputs:
        if name in case.values:
            reverse.values[name], reverse.stored[name] = case.values[name], case.stored[name]
            if name in case.tensors:
                reverse.tensors[name] = case.tensors[name]
        elif name in results:
            place(reverse, name, *results[name])
    fill_operands(reverse, rng, extents)
    return reverse


def _operand(
    rng: np.random.Generator, rank: int, dtype: str, dense: float, forms: Mapping[int, tuple[str, ...]]
) -> Operand:
    """Random format and dtype of an input; `dense` is the probability of a dense format."""
    if rank == 0 or rng.random() < dense:
        return Operand(Format(", ".join(["dense"] * rank) or "scalar"), dtype)
    form = Format(str(rng.choice(forms[rank] or NAMED[rank])))
    fill = float(rng.choice(FILLS)) if rng.random() < 0.12 else 0.0
    return Operand(form, dtype, fill, result_index_dtypes(form, str(rng.choice(["int32", "int64"]))))
