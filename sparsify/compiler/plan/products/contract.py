"""Contraction of several operands as products of two or three: the order of the sums.

In: `Y[i,l] = sum(j, k, A[i,j] * B[j,k] * C[k,l])`, A and B sparse, C narrow and dense.
Out: `T[j,l] = sum(k, B[j,k] * C[k,l]); Y[i,l] = sum(j, A[i,j] * T[j,l])`.

The path is the cheapest by `contraction_path.py`; one nest over all operands is among the candidates. A temporary with
a sparse factor is stored sparse: coordinates without terms then contribute nothing, as in the original sum. If sparse
factors leave one variable of the temporary, and most rows are nonempty, the temporary is dense, and a truth value a
row tells whether a term reaches the row:

In: `Y[i,l] = sum(j, k, A[i,j] * A[j,k] * C[k,l])`, A sparse, C dense.
Out: `R[j] = or(k, stored(A[j,k])); T[j,l] = sum(k, A[j,k] * C[k,l]); Y[i,l] = sum(j, where(R[j], A[i,j] * T[j,l], 0))`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, cast

from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Const,
    Declaration,
    Expr,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.products import product, product_factors
from sparsify.compiler.einsum.rename import all_indices
from sparsify.compiler.ir.node import Node, find, holds
from sparsify.compiler.ir.rewrite import bottom_up
from sparsify.compiler.loops.lower.declared import DeclaredTensors
from sparsify.compiler.plan.prepare.expand_blocks import taken_apart, unblocked
from sparsify.compiler.plan.products.contraction_path import Part, Paths
from sparsify.compiler.schedule.cost.iterations import Nest, is_plain, nest_of
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format

# Dtypes in which sums of rounded partial sums lose no more precision than one sum.
WIDE: Final = ("float32", "float64", "complex64", "complex128", "int64")


@dataclass(frozen=True, slots=True)
class Contracted:
    """A program after its products were split.

    Attributes:
        program: statements, one for each temporary.
        stored: expected numbers of entries of sparse temporaries.
    """

    program: Program
    stored: Mapping[str, int]


def contract(program: Program, sizes: Sizes) -> Contracted:
    """`program` with each product of three and more operands along its cheapest path; the same object if unchanged."""
    statements: list[Assign] = []
    declared = list(program.declarations)
    stored: dict[str, int] = {}
    for statement in program.statements:
        known = replace(program, declarations=tuple(declared))
        split = _Split(taken_apart(known, unblocked(known, statement)), statement, sizes)
        statements += split.statements()
        declared += split.declared
        stored |= split.stored
    if len(statements) == len(program.statements):
        return Contracted(program, {})
    return Contracted(replace(program, statements=tuple(statements), declarations=tuple(declared)), stored)


class _Split:
    """One statement, and the preceding statements of its temporaries."""

    def __init__(self, program: Program, statement: Assign, sizes: Sizes) -> None:
        self.program, self.statement, self.sizes = program, statement, sizes
        self.declared: list[Declaration] = []
        self.stored: dict[str, int] = {}
        self.before: list[Assign] = []
        self.reached: dict[str, Access] = {}
        self.taken = {d.name for d in program.declarations} | set(all_indices(program.statements))

    def statements(self) -> list[Assign]:
        """The statements of the temporaries, then the statement that reads them."""
        statement = self.statement
        kept = [index.name for index in statement.target.indices if isinstance(index, Index)]
        if self.program.declaration(statement.target.tensor).dtype not in WIDE:
            return [statement]
        if statement.monoid == "sum":
            free = {n.name for n in find(statement.value, Index)}
            summed = tuple(sorted(free - set(kept)))
            if summed and not holds(statement.value, Reduce):
                value = self.split(Reduce("sum", summed, statement.value), statement.target)
                if isinstance(value, Reduce):
                    statement = replace(statement, value=value.body)
                elif value is not None:
                    statement = Assign(statement.target, None, value)
            return [*self.before, statement]
        if statement.monoid is not None:
            return [statement]

        def rule(node: Node) -> Node | None:
            is_sum = isinstance(node, Reduce) and node.monoid == "sum"
            return self.split(cast(Reduce, node), statement.target) if is_sum else None

        split = cast(Expr, bottom_up(statement.value, rule))
        return [*self.before, replace(statement, value=split)] if self.before else [statement]

    def split(self, node: Reduce, target: Access) -> Expr | None:
        """`sum(j, k, A * B * C) -> sum(j, A * T)` after `T = sum(k, B * C)`, `None` if not cheaper."""
        factors = product_factors(node.body)
        accesses = [factor for factor in factors or () if isinstance(factor, Access)]
        declared = {d.name: d for d in self.program.declarations}
        if len(accesses) < 3 or not all(is_plain(a, declared[a.tensor]) for a in accesses):
            return None
        dtypes = {declared[a.tensor].dtype for a in (*accesses, self.statement.target)}
        if len(dtypes) > 1 or not set(node.indices) <= set(all_indices((node.body,))):
            return None
        # A sum that is the whole value is computed at the stored coordinates of the result only.
        free = tuple(n for n in dict.fromkeys(all_indices((target, node.body))) if n not in node.indices)
        is_all = node == self.statement.value or self.statement.monoid is not None
        written = target if is_all else Access("", tuple(Index(n) for n in free))
        nest = nest_of(self.program, written, node.body, self.sizes)
        if nest is None:
            return None
        tensors = DeclaredTensors(declared)
        # A tensor with fill 0 that shares a pattern is stored exactly at the entries of the pattern's owner.
        stored = [access if tensors.fill_of(access) else tensors.root_of(access) for access in accesses]
        path = Paths(nest, stored).best()
        if not path.parts or all(not part.parts for part in path.parts):
            return None
        constants = [factor for factor in factors or () if not isinstance(factor, Access)]
        rest = [self.emit(part, nest, accesses) for part in path.parts]
        body = self.guarded(product([*constants, *rest]), rest)
        summed = tuple(n for n in node.indices if n in all_indices((body,)))
        return Reduce("sum", summed, body) if summed else body

    def emit(self, part: Part, nest: Nest, accesses: list[Access]) -> Access:
        """The access to a part's value, after emitting the statements that compute the part."""
        if not part.parts:
            return accesses[part.factors.bit_length() - 1]
        inner = [self.emit(child, nest, accesses) for child in part.parts]
        name = self.name()
        names = tuple(nest.variables[bit.bit_length() - 1] for bit in part.modes)
        target = Access(name, tuple(map(Index, names)))
        body = product(list(inner))
        if not part.rows or any(child.is_sparse for child in part.parts):
            body = self.guarded(body, inner)
        summed = tuple(n for n in dict.fromkeys(all_indices((body,))) if n not in names)
        self.before.append(Assign(target, None, Reduce("sum", summed, body) if summed else body))
        made = self.declare(name, names, part, nest, accesses)
        self.declared.append(made)
        if part.rows:
            self.reached[name] = self.rows_reached(part, inner, nest, made)
        if part.is_sparse:
            self.stored[name] = round(part.entries)
        # An enclosing sum reads the temporaries declared here.
        declarations = {d.name: d for d in (*self.program.declarations, *self.declared)}
        self.program = replace(self.program, declarations=tuple(declarations.values()))
        self.sizes = self.sizes.expecting(self.stored)
        return target

    def guarded(self, body: Expr, factors: list[Access]) -> Expr:
        """`a * T -> where(R, a * T, 0)` for each factor with unreached rows."""
        for condition in dict.fromkeys(self.reached[f.tensor] for f in factors if f.tensor in self.reached):
            body = Call("where", (condition, body, Const(0)))
        return body

    def rows_reached(self, part: Part, factors: list[Access], nest: Nest, made: Declaration) -> Access:
        """Whether a row of a temporary is reached: by an entry of each sparse factor, in reached rows of the others."""
        row = nest.variables[part.rows.bit_length() - 1]
        known = dict.fromkeys(self.reached[f.tensor] for f in factors if f.tensor in self.reached)
        stored = [Stored(f) for f, child in zip(factors, part.parts, strict=True) if child.is_sparse]
        if not stored:
            (found,) = known
            return found
        value: Expr = Const(value=True)
        for condition in (*known, *reversed(stored)):
            value = (
                condition
                if value == Const(value=True)
                else Call("where", (condition, value, Const(value=False)))
            )
        summed = tuple(n for n in dict.fromkeys(all_indices((value,))) if n != row)
        target = Access(self.name("R"), (Index(row),))
        self.before.append(Assign(target, None, Reduce("or", summed, value) if summed else value))
        extent = made.extents[part.modes.index(part.rows)]
        self.declared.append(Declaration(target.tensor, (extent,), _levels(("dense",)), "bool"))
        return target

    def declare(
        self, name: str, names: tuple[str, ...], part: Part, nest: Nest, accesses: list[Access]
    ) -> Declaration:
        """The declaration of a temporary: dense, or with compressed rows."""
        declared = {d.name: d for d in self.program.declarations}
        extents: dict[str, str] = {}
        for access in (*accesses, self.statement.target):
            for index, extent in zip(access.indices, declared[access.tensor].extents, strict=True):
                extents.setdefault(cast(Index, index).name, extent)
        dtype = declared[accesses[0].tensor].dtype
        shape = tuple(extents[n] for n in names)
        if not part.is_sparse:
            return Declaration(name, shape, _levels(("dense",) * len(names)), dtype)
        rows = nest.extents[nest.variables.index(names[0])]
        first = "dense" if len(names) == 2 and rows <= part.entries else "compressed"
        kinds = [first, *["compressed"] * (len(names) - 1)]
        wide = {d for a in accesses for pair in declared[a.tensor].index_dtypes for d in pair if d}
        integer = "int32" if wide == {"int32"} else "int64"
        dtypes = tuple(("", "") if kind == "dense" else (integer, integer) for kind in kinds)
        return Declaration(name, shape, _levels(tuple(kinds)), dtype, index_dtypes=dtypes)

    def name(self, letter: str = "T") -> str:
        """The first unused name of `T`, `T1`, `T2`, ..."""
        number = 0
        while (name := f"{letter}{number or ''}") in self.taken:
            number += 1
        self.taken.add(name)
        return name


@lru_cache
def _levels(kinds: tuple[str, ...]) -> Format:
    """The format of these levels, memoized."""
    return Format(", ".join(kinds))
