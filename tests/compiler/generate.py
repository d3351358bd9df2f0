"""Random programs with operands: what the compiler must compute, from one number.

In: `draw(7)`. Out: a `Case`: statements in index notation, how their operands are stored, values for them.
A failure names its seed, and `draw(seed)` makes the same case again.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

import sparsify
from sparsify.compiler.einsum.affine import Affine
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.extents import declared_extents
from sparsify.compiler.einsum.gradient import adjoint
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Program, Reduce, Stored
from sparsify.compiler.einsum.rename import all_indices, rename_indices
from sparsify.compiler.einsum.sums import free_indices
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.compiler.node import Node, map_children, walk
from sparsify.storage.convert import level_columns
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

LETTERS = "ijklm"
# Names that generated code or its compiler might use for something else.
ODD = ("w", "int", "p", "sizes", "A2_pos")
EXTENTS = (1, 2, 3, 3, 4, 5, 7, 9)
# The interpreters visit the coordinates of a statement one after the other.
MOST_COORDINATES = 500
# Values that float32 adds and multiplies without error in the sums that occur here.
VALUES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
NAMED = {
    1: ("dense", "compressed", "coo(1)", "grouped", "i/4: dense, i%4: grouped(2)"),
    2: (
        *("csr", "csc", "coo", "dcsr", "dcsc", "csr", "csc"),
        *("j: dense, i: dense", "compressed, dense", "j: compressed, i: dense"),
        *(
            "bcsr(2, 3)",
            "bcsr(4, 2)",
            "bcsc(2, 2)",
            "j: coordinate, i: coordinate",
            "dense, compressed(crd=int16)",
        ),
        *("nm(2, 4)", "nm(1, 3, group=2)", "i: dense, j/2: dense, j%2: grouped(1, crd=int8)"),
        *(
            "dia",
            "i-j: compressed, j: dense",
            "j-i: dense, i: dense",
            "ell",
            "j: compressed, i: grouped",
            "i: dense, j/3: compressed, j%3: grouped(2)",
        ),
    ),
    3: (
        "csf",
        "coo(3)",
        "dense, dense, compressed",
        "dense, compressed, compressed",
        "j: compressed, k: dense, i: compressed",
        "i: dense, k/2: dense, j: grouped, k%2: grouped(1)",
    ),
    4: ("coo(4)", "compressed, compressed, compressed, compressed", "dense, compressed, dense, compressed"),
}
RESULTS = {
    1: ("compressed",),
    2: ("csr", "csc", "dcsr", "coo", "dense, dense", "j: dense, i: dense"),
    3: ("csf", "coo(3)"),
}
SMOOTH = ("neg", "abs", "square", "relu", "exp", "tanh", "sigmoid", "sign", "silu")
DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "bool", "complex64", "complex128")
FILLS = (1.0, -1.0, float("inf"), float("-inf"))


@dataclass
class Case:
    """A program, its operands and how to run it.

    Attributes:
        values: per input the dense array, the fill in unstored entries.
        stored: per input which entries are stored, those of padded blocks included.
        tensors: per sparse input the tensor itself.
        seed: what `draw` was asked for.
        doubtful: per result where IEEE arithmetic on dense arrays gives NaN; a fill may decide otherwise there.
    """

    seed: int
    program: Program
    vector_bytes: int
    threads: int
    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    stored: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    tensors: dict[str, SparseTensor] = field(default_factory=dict)
    doubtful: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __str__(self) -> str:
        tensors = "; ".join(
            f"{d} {list(self.values[d.name].shape)}"
            for d in self.program.declarations
            if d.name in self.values
        )
        text = "; ".join(map(str, self.program.statements))
        return f"seed {self.seed}: {text} with {tensors}; {self.vector_bytes} bytes, {self.threads} threads"


def draw_windowed(seed: int) -> Case:
    """The case of a seed, some of whose indices are affine or constants."""
    return draw(seed, windows=True)


def draw_typed(seed: int) -> Case:
    """The case of a seed, whose operands have different dtypes."""
    return draw(seed, typed=True)


def draw(seed: int, *, windows: bool = False, typed: bool = False) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    statements = _Writer(rng).statements()
    if windows:
        statements = tuple(
            _with_windows(s, np.random.default_rng([seed, n])) for n, s in enumerate(statements)
        )
    if rng.random() < 0.05:
        statements = tuple(rename_indices(s, dict(zip(LETTERS, ODD, strict=True))) for s in statements)
    dtype = str(rng.choice(["float32", "float64"]))
    ranks = {n.tensor: len(n.indices) for s in statements for n in walk(s.value) if isinstance(n, Access)}
    results = {s.target.tensor: len(s.target.indices) for s in statements}
    inputs = {name: rank for name, rank in ranks.items() if name not in results}
    guarded = {n.access.tensor for s in statements for n in walk(s.value) if isinstance(n, Stored)}
    operands = {name: _operand(rng, rank, dtype, name in guarded) for name, rank in inputs.items()}
    if typed:
        operands = _with_dtypes(operands, statements, np.random.default_rng([seed, 5]))
    last = statements[-1].target
    formats = {}
    if len(last.indices) in RESULTS and rng.random() < 0.25:
        formats[last.tensor] = Format(str(rng.choice(RESULTS[len(last.indices)])))
    outputs = tuple(results) if rng.random() < 0.3 else (last.tensor,)
    sizes = {name: int(rng.choice(EXTENTS)) for name in _without_mode(statements)} if windows else {}
    program = declare(statements, operands, outputs, formats=formats, sizes=sizes)
    case = Case(seed, program, int(rng.choice([0, 16, 32])), int(rng.choice([1, 2])))
    fill_operands(case, rng)
    return case


def _with_dtypes(
    operands: dict[str, Operand], statements: tuple[Assign, ...], rng: np.random.Generator
) -> dict[str, Operand]:
    """The operands with one or two dtypes among them, and fills that these hold.

    Between statements 16-bit floats are rounded, and in the interpreters they are not: where a sign could come of
    that there are none.
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
    """The statement with some of its indices made affine: shifted, scaled, a sum of two, or a constant."""
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


def _without_mode(statements: tuple[Assign, ...]) -> list[str]:
    """The index variables that no operand gives an extent."""
    results = {s.target.tensor for s in statements}
    reads = [
        n for s in statements for n in walk(s.value) if isinstance(n, Access) and n.tensor not in results
    ]
    given = {index.name for access in reads for index in access.indices if isinstance(index, Index)}
    return [name for name in all_indices(statements) if name not in given]


def draw_adjoint(seed: int, *, windows: bool = False) -> Case:
    """The gradients of a drawn program in all its inputs; its results are operands like the others."""
    case = draw(seed, windows=windows)
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


def fill_operands(case: Case, rng: np.random.Generator, extents: dict[str, int] | None = None) -> None:
    """Draws values and patterns for the inputs that have none."""
    extents = dict(case.program.extents) if extents is None else extents
    draw_extents(case.program, rng, extents)
    for name in case.program.inputs:
        if name in case.values:
            continue
        declared = case.program.declaration(name)
        shape = [extents[mode] for mode in declared.extents]
        drawn = rng.choice(VALUES, size=shape)
        density = float(rng.choice([0.0, 0.2, 0.5, 0.5, 1.0]))
        mask = rng.random(shape) < density
        if declared.pattern_of is not None:
            mask = case.stored[declared.pattern_of]
        place(case, name, drawn, mask)


def draw_extents(program: Program, rng: np.random.Generator, extents: dict[str, int]) -> None:
    """Draws the extents that are not known yet; the widest are halved while a statement has too many coordinates."""
    sizes = (0, *EXTENTS) if rng.random() < 0.15 else EXTENTS
    large = program.declarations[0].extents[-1:] if rng.random() < 0.3 else ()
    modes = [mode for name in program.inputs for mode in program.declaration(name).extents]
    fresh = [mode for mode in dict.fromkeys(modes) if mode not in extents]
    for mode in fresh:
        extents[mode] = int(rng.choice((11, 17) if mode in large else sizes))
    while fresh and _coordinates(program, extents) > MOST_COORDINATES:
        widest = max(fresh, key=extents.__getitem__)
        if extents[widest] == 1:
            return
        extents[widest] = (extents[widest] + 1) // 2


def _coordinates(program: Program, extents: dict[str, int]) -> int:
    """The number of coordinates of the statement that has most of them."""
    shapes = {name: [extents[e] for e in program.declaration(name).extents] for name in program.inputs}
    known = declared_extents(program, shapes)
    return max(prod(known.get(name, 1) for name in all_indices((s,))) for s in program.statements)


def place(case: Case, name: str, drawn: NDArray[np.float64], mask: NDArray[np.bool_]) -> None:
    """Makes the tensor of an input from the entries in `mask`."""
    declared = case.program.declaration(name)
    drawn = array_of(torch.from_numpy(drawn).to(getattr(torch, declared.dtype)))
    if declared.format.is_dense and declared.format.ordering == tuple(range(drawn.ndim)):
        case.values[name], case.stored[name] = drawn, np.ones(drawn.shape, bool)
        return
    mask = mask if declared.pattern_of is not None else held(mask, declared.format)
    values = torch.from_numpy(drawn[mask]).to(getattr(torch, declared.dtype))
    coordinates = torch.from_numpy(np.argwhere(mask).T.copy())
    if not mask.ndim:
        coordinates = torch.zeros(0, int(mask))
    if declared.pattern_of is not None:
        pattern = case.tensors[declared.pattern_of].pattern
        at = pattern.coordinates().clamp(max=10**6)
        inside = pattern.inside()
        found = torch.full((pattern.nnz,), declared.fill, dtype=values.dtype)
        kept = torch.arange(pattern.nnz) if inside is None else inside.nonzero().squeeze(1)
        found[kept] = torch.from_numpy(drawn[tuple(at[:, kept].numpy())]).to(values.dtype)
        tensor = SparseTensor(pattern, found, declared.fill)
    else:
        tensor = sparsify.tensor((coordinates, values, drawn.shape), declared.format, fill=declared.fill)
    case.tensors[name] = tensor
    case.values[name], case.stored[name] = dense_of(tensor)


def held(mask: NDArray[np.bool_], form: Format) -> NDArray[np.bool_]:
    """The entries of a mask that a format can hold: of each group the first ones."""
    kept = mask.copy()
    for number, stored in enumerate(form.levels):
        if stored.level.holds_all:
            continue
        coordinates = np.argwhere(kept)
        columns = level_columns(form, list(torch.from_numpy(coordinates.T.copy())), mask.shape)
        groups: dict[tuple[int, ...], set[int]] = {}
        for entry, place in enumerate(coordinates):
            group = groups.setdefault(tuple(int(c[entry]) for c in columns[:number]), set())
            here = int(columns[number][entry])
            if here in group or len(group) < stored.level.n:
                group.add(here)
            else:
                kept[tuple(place)] = False
    return kept


def array_of(values: torch.Tensor) -> NDArray[np.float64]:
    """Values as float64, or complex128."""
    return values.to(torch.complex128 if values.dtype.is_complex else torch.float64).resolve_conj().numpy()


def dense_of(tensor: SparseTensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values of a sparse tensor as an array, and which entries are stored."""
    stored = np.zeros(tuple(tensor.shape), bool)
    at = tensor.pattern.coordinates()
    inside = tensor.pattern.inside()
    at = at if inside is None else at[:, inside]
    if at.shape[1]:
        stored[tuple(at.numpy())] = True
    values = np.full(stored.shape, tensor.fill, complex if tensor.dtype.is_complex else float)
    entries = tensor.values() if inside is None else tensor.values()[inside]
    if at.shape[1]:
        values[tuple(at.numpy())] = array_of(entries)
    return values, stored


def _operand(rng: np.random.Generator, rank: int, dtype: str, guarded: bool) -> Operand:
    """How an input is stored."""
    if rank == 0 or (rng.random() < 0.35 and not guarded):
        return Operand(Format(", ".join(["dense"] * rank) or "scalar"), dtype)
    form = Format(str(rng.choice(NAMED[rank])))
    fill = float(rng.choice(FILLS)) if rng.random() < 0.12 else 0.0
    return Operand(form, dtype, fill, result_index_dtypes(form, str(rng.choice(["int32", "int64"]))))


class _Writer:
    """Writes statements; tensors are called A, B, ... as they occur."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.ranks: dict[str, int] = {}
        self.results: dict[str, int] = {}

    def statements(self) -> tuple[Assign, ...]:
        """One to three statements; later ones may read earlier ones."""
        count = int(self.rng.choice([1, 1, 1, 2, 3]))
        found: list[Assign] = []
        for number in range(count):
            rank = int(self.rng.choice([0, 1, 1, 2, 2, 2, 3]))
            target = Access(f"Y{number}", tuple(Index(name) for name in self.pick(LETTERS[:4], rank)))
            found += self.statement(target)
            self.results[target.tensor] = rank
        return tuple(found)

    def statement(self, target: Access) -> list[Assign]:
        """One assignment, or two that reduce into one tensor."""
        names = tuple(index.name for index in target.indices if isinstance(index, Index))
        kind = self.rng.random()
        if kind < 0.12:
            monoid = str(self.rng.choice(["sum", "max", "min"]))
            more = self.pick([name for name in LETTERS if name not in names], int(self.rng.integers(0, 2)))
            return [
                Assign(target, monoid, self.covered((*names, *more), self.expression(1, (*names, *more))))
                for _ in range(int(self.rng.integers(1, 3)))
            ]
        depth = 1 if kind < 0.5 else 2 if kind < 0.9 else 3
        return [Assign(target, None, self.covered(names, self.expression(depth, names)))]

    def covered(self, names: tuple[str, ...], expr: Expr) -> Expr:
        """`expr` with a factor or term that reads the index variables it lacks: loops need extents."""
        missing = tuple(name for name in names if name not in free_indices(expr))
        if not missing:
            return expr
        return Call(str(self.rng.choice(["mul", "mul", "add"])), (expr, self.access(missing)))

    def expression(self, depth: int, names: tuple[str, ...]) -> Expr:
        """Any expression over the index variables `names`."""
        if depth == 0:
            return self.leaf(names)
        match self.rng.random():
            case x if x < 0.35:
                return self.reduction(depth, names)
            case x if x < 0.55:
                return Call("mul", (self.expression(depth - 1, names), self.expression(depth - 1, names)))
            case x if x < 0.75:
                function = str(self.rng.choice(["add", "add", "sub", "max", "min"]))
                return Call(function, (self.expression(depth - 1, names), self.expression(depth - 1, names)))
            case x if x < 0.88:
                return Call(str(self.rng.choice(SMOOTH)), (self.expression(depth - 1, names),))
            case x if x < 0.95 and names:
                guard = self.access(names)
                if guard.tensor not in self.results:
                    no = self.number() if self.rng.random() < 0.5 else self.expression(depth - 1, names)
                    return Call("where", (Stored(guard), self.expression(depth - 1, names), no))
        return self.leaf(names)

    def reduction(self, depth: int, names: tuple[str, ...]) -> Expr:
        """A product or another expression reduced over one or two more index variables."""
        more = self.pick([name for name in LETTERS if name not in names], int(self.rng.choice([1, 1, 2])))
        if not more:
            return self.leaf(names)
        inside = (*names, *more)
        if self.rng.random() < 0.6:
            parts = [self.access(self.part(inside)) for _ in range(int(self.rng.integers(1, 4)))]
            body: Expr = parts[0]
            for part in parts[1:]:
                body = Call("mul", (body, part))
        else:
            body = self.expression(depth - 1, inside)
        monoid = str(self.rng.choice(["sum", "sum", "sum", "sum", "max", "min"]))
        return Reduce(monoid, more, self.covered(more, body))

    def leaf(self, names: tuple[str, ...]) -> Expr:
        return self.number() if self.rng.random() < 0.08 else self.access(names)

    def number(self) -> Const:
        return Const(float(self.rng.choice([0.0, 0.0, 1.0, 0.5, -2.0])))

    def access(self, names: tuple[str, ...]) -> Access:
        """A tensor at these index variables in some order: a new one, or one that there is."""
        order = self.pick(names, len(names))
        if len(order) > 4:
            order = order[:4]
        if order and len(order) < 4 and self.rng.random() < 0.04:
            # One mode more, that is read along the diagonal.
            order = (*order, str(self.rng.choice(order)))
        known = [name for name, rank in {**self.ranks, **self.results}.items() if rank == len(order)]
        if known and self.rng.random() < 0.3:
            return Access(str(self.rng.choice(known)), tuple(map(Index, order)))
        name = "ABCDEFGHPQRSTUVWX"[len(self.ranks)] if len(self.ranks) < 17 else f"A{len(self.ranks)}"
        self.ranks[name] = len(order)
        return Access(name, tuple(map(Index, order)))

    def part(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Some of the index variables, most of the time two."""
        count = min(len(names), int(self.rng.choice([1, 2, 2, 2, 3])))
        return self.pick(names, count)

    def pick(self, names: "tuple[str, ...] | list[str] | str", count: int) -> tuple[str, ...]:
        """`count` of the names in any order."""
        count = min(count, len(names))
        return tuple(str(name) for name in self.rng.permutation(list(names))[:count]) if count else ()
