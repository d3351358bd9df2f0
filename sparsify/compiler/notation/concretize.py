"""Einsum program -> concrete index notation: every sum becomes a separate assignment, every index a loop.

In:  `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`
Out: `let w[i,k]: (forall i: forall k: forall j: w[i,k] += A[i,j] * T[j,k]);
      forall i: forall k: Y[i,k] = relu(w[i,k] + b[k])`
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

from sparsify.compiler.einsum import nodes as einsum
from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.einsum.rewrite.factor import factor
from sparsify.compiler.ir.dtypes import NUMBER, Kind, computing
from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.compiler.notation.nodes import (
    Forall,
    Let,
    Notation,
    Sequence,
    Split,
    Statement,
    Temporary,
)
from sparsify.errors import UnsupportedProgramError


def concretize(program: einsum.Program) -> Notation:
    """The notation of `program`: one loop nest per sum and statement, in order, without scheduling decisions."""
    program = factor(program)
    hoisted = _Hoist(program)
    for statement in program.statements:
        hoisted.add(statement)
    body: Statement = Sequence(tuple(hoisted.nests))
    if len(hoisted.nests) == 1 and isinstance(hoisted.nests[0], Statement):
        body = hoisted.nests[0]
    if hoisted.temporaries:
        body = Let(tuple(hoisted.temporaries), body)
    blocks = block_relations(program)
    for split in blocks:
        body = split_loops(body, split)
    return Notation(body, blocks, program.declarations, program.inputs, program.outputs, program.extents)


@dataclass(frozen=True, slots=True)
class InnerSum:
    """A scalar sum computed inside the loops over the index variables `free`, at its use."""

    temporary: Temporary
    free: tuple[str, ...]
    assign: einsum.Assign
    reduced: tuple[str, ...]


class _Hoist:
    """Collects the loop nests of a program and the temporaries for the inner sums."""

    def __init__(self, program: einsum.Program) -> None:
        self.program = program
        self.nests: list[Statement | einsum.Assign] = []
        self.temporaries: list[Temporary] = []
        self.names = {declaration.name for declaration in program.declarations}
        self.names |= set(all_indices(program.statements))
        self.kinds = {declared.name: declared_kind(declared) for declared in program.declarations}
        self.last = {statement.target.tensor: statement for statement in program.statements}
        self.accumulators: dict[str, str] = {}

    def add(self, statement: einsum.Assign) -> None:
        """Adds the nest of `statement`, after the nests of the inner sums."""
        target, monoid, value = statement.target, statement.monoid, statement.value
        reduced: tuple[str, ...] = ()
        declaration = self.program.declaration(target.tensor)
        if target.tensor not in self.program.outputs:
            self._add_temporary(target, declaration, computing(declaration.dtype))
        if monoid is None and isinstance(value, einsum.Reduce):
            dtype = self._dtype(value, declaration.dtype)
            monoid, reduced, value = value.monoid, value.indices, value.body
        elif monoid is not None:
            dtype = computing(declaration.dtype)
        else:
            dtype = declaration.dtype
        sums = target
        if _is_found(declaration) and dtype == "bool" != declaration.dtype:
            raise UnsupportedProgramError(
                f"{target} of {declaration.dtype}, whose pattern is not known, collects truth values",
                "write a statement of its own for the truth values, or give the result a dense format",
            )
        if (
            target.tensor in self.program.outputs
            and dtype != declaration.dtype
            and not _is_found(declaration)
        ):
            sums = self._accumulator(target, declaration, dtype)
        inner: list[InnerSum] = []
        value = self._hoist(value, index_names(target), declaration.dtype, inner)
        self.nests.append(nest(einsum.Assign(sums, monoid, value), reduced, inner=inner))
        if sums is not target and statement is self.last[target.tensor]:
            self.nests.append(nest(einsum.Assign(target, None, sums)))

    def _dtype(self, expr: einsum.Expr, wanted: str) -> str:
        """The accumulation dtype of a reduction; an expression of numbers alone takes the dtype of the result.

        Truth values keep their dtype.
        """
        kind = kind_of(expr, self.kinds)
        is_number = kind.strength == NUMBER and kind.dtype != "bool"
        return computing(wanted if is_number else kind.dtype)

    def _accumulator(
        self, target: einsum.Access, declaration: einsum.Declaration, dtype: str
    ) -> einsum.Access:
        """The accumulator of sums into a result of another dtype: a temporary stored like the result."""
        if target.tensor not in self.accumulators:
            self.accumulators[target.tensor] = self._fresh_name()
        sums = replace(target, tensor=self.accumulators[target.tensor])
        self._add_temporary(sums, declaration, dtype)
        return sums

    def _add_temporary(self, target: einsum.Access, declaration: einsum.Declaration, dtype: str) -> None:
        """The temporary for an intermediate tensor: dense, or by the positions of an operand."""
        if any(temporary.name == target.tensor for temporary in self.temporaries):
            return
        indices = tuple(index.name for index in target.indices if isinstance(index, einsum.Index))
        temporary = Temporary(target.tensor, indices, dtype)
        self.kinds[target.tensor] = declared_kind(replace(declaration, dtype=dtype))
        if not declaration.format.is_dense:
            root = pattern_access(self.program, replace(target, tensor=declaration.name))
            if root.tensor not in self.program.inputs:
                raise UnsupportedProgramError(
                    f"{declaration} is stored and its pattern is not that of an operand",
                    "compile the program without a schedule for all of it, or give it a dense format",
                )
            places = tuple(index.name for index in root.indices if isinstance(index, einsum.Index))
            temporary = replace(temporary, pattern_of=root.tensor, pattern_indices=places)
        self.temporaries.append(temporary)

    def _hoist(
        self, expr: einsum.Expr, order: tuple[str, ...], dtype: str, inner: list[InnerSum]
    ) -> einsum.Expr:
        """`expr` with each sum replaced by a temporary computed in an earlier nest.

        If `expr` equals the fill at most coordinates, sums of dense operands are added to `inner` instead, to be
        computed only at nonzero coordinates.
        """
        declarations = {declaration.name: declaration for declaration in self.program.declarations}
        is_sparse = infer_sparsity(expr, declarations).fill is not None

        def is_inner(node: einsum.Reduce) -> bool:
            alone = not holds(node.body, einsum.Reduce)
            return alone and infer_sparsity(node, declarations).fill is None

        def visit(node: Node) -> Node:
            if is_sparse and isinstance(node, einsum.Reduce) and is_inner(node):
                name = self._fresh_name()
                own_dtype = self._dtype(node, dtype)
                self.kinds[name] = Kind(own_dtype)
                scalar = einsum.Assign(einsum.Access(name), node.monoid, node.body)
                loops = tuple(n for n in index_names(node.body) if n not in node.indices)
                inner.append(InnerSum(Temporary(name, (), own_dtype), loops, scalar, node.indices))
                return scalar.target
            if not isinstance(node, einsum.Reduce):
                return map_children(node, visit)
            own: list[InnerSum] = []
            own_dtype = self._dtype(node, dtype)
            body = self._hoist(node.body, order, own_dtype, own)
            free = [name for name in index_names(node.body) if name not in node.indices]
            indices = tuple(sorted(free, key=lambda name: order.index(name) if name in order else len(order)))
            name = self._fresh_name()
            target = einsum.Access(name, tuple(einsum.Index(index) for index in indices))
            self.temporaries.append(Temporary(name, indices, own_dtype))
            self.kinds[name] = Kind(own_dtype)
            self.nests.append(nest(einsum.Assign(target, node.monoid, body), node.indices, inner=own))
            return target

        result = visit(expr)
        assert isinstance(result, einsum.Expr)
        return result

    def _fresh_name(self) -> str:
        """`w`, `w1`, `w2`, ...: the next unused tensor name."""
        number = 0
        while (name := f"w{number or ''}") in self.names:
            number += 1
        self.names.add(name)
        return name


def _is_found(declaration: einsum.Declaration) -> bool:
    """Whether the kernel computes the pattern of a result: sums are then held in separate workspaces."""
    return declaration.pattern_of is None and not declaration.format.is_dense


def nest(
    assign: einsum.Assign,
    reduced: tuple[str, ...] = (),
    *,
    outer: tuple[str, ...] = (),
    inner: Many[InnerSum] = (),
) -> Statement | einsum.Assign:
    """`assign` inside one loop per index variable, the variables of the target outermost.

    Args:
        reduced: reduction variables, not necessarily read by the assignment.
        outer: variables with loops outside already.
        inner: sums read by the assignment, each computed inside the last loop over a free variable of the sum.
    """
    target = index_names(assign.target)
    read = (*index_names(assign.value), *reduced)
    needed = [*target, *read, *(name for part in inner for name in part.free)]
    names = [name for name in dict.fromkeys(needed) if name not in outer]
    body: Statement | einsum.Assign = assign
    for depth in range(len(names), -1, -1):
        here = [s for s in inner if 1 + max((names.index(n) for n in s.free), default=-1) == depth]
        if here:
            sums = [nest(part.assign, part.reduced, outer=(*outer, *part.free)) for part in here]
            body = Let(tuple(part.temporary for part in here), Sequence((*sums, body)))
        if depth:
            body = Forall(names[depth - 1], body)
    return body


def index_names(node: Node) -> tuple[str, ...]:
    """The free index variables of `node`, in order of appearance."""
    bound = {name for inner in find(node, einsum.Reduce) for name in inner.indices}
    names = (inner.name for inner in find(node, einsum.Index))
    return tuple(dict.fromkeys(name for name in names if name not in bound))


def block_relations(program: einsum.Program) -> tuple[Split, ...]:
    """One split per index variable divided by a stored level, `i/16` and `i%16`: split i io ii 16."""
    splits: dict[str, Split] = {}
    taken = set(all_indices(program.statements))
    for access in _accesses(program.statements):
        for stored in program.declaration(access.tensor).format.levels:
            expression = stored.expression
            if expression.kind not in ("block", "within"):
                continue
            index = access.indices[expression.mode]
            if not isinstance(index, einsum.Index):
                continue
            name, size = index.name, expression.size
            outer, inner = (fresh(f"{name}{letter}", taken) for letter in "oi")
            split = splits.setdefault(name, Split(name, outer, inner, size))
            if split.size != size:
                raise UnsupportedProgramError(
                    f"{name} is stored in blocks of {split.size} and of {size}",
                    "convert one of the tensors to the block size of the other",
                )
    return tuple(splits.values())


def _accesses(nodes: Iterable[Node]) -> Iterable[einsum.Access]:
    return (inner for node in nodes for inner in find(node, einsum.Access))


def split_loops(body: Statement, split: Split) -> Statement:
    """`forall index: body -> forall outer: forall inner: body` at every loop over the index."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if isinstance(node, Forall) and node.index == split.index:
            return Forall(split.outer, Forall(split.inner, node.body), node.kind)
        return node

    result = visit(body)
    assert isinstance(result, Statement)
    return result
