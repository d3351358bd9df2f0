"""Plans: a program cut into statements, each a kernel of its own or a dense product of torch.

In: `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.
Out: `T = torch.mm(X, W.t())`, then one generated kernel for `Y`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Index, Program, Reduce
from sparsify.compiler.node import walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.storage.format import Format, StoredLevel


@dataclass(frozen=True, slots=True)
class DenseProduct:
    """`result[i,k] = sum(j, left[i,j] * right[j,k])` over dense matrices by torch's product."""

    result: str
    left: str
    right: str
    left_transposed: bool
    right_transposed: bool

    def __call__(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The product."""
        left, right = values[self.left], values[self.right]
        left = left.t() if self.left_transposed else left
        return torch.mm(left, right.t() if self.right_transposed else right)

    def __str__(self) -> str:
        right = f"{self.right}.t()" if self.right_transposed else self.right
        return f"{self.result} = torch.mm({self.left}{'.t()' if self.left_transposed else ''}, {right})"


@dataclass(frozen=True, slots=True)
class Step:
    """What one kernel computes, mostly one statement; `twins` are operands to be read in another mode ordering."""

    program: Program
    twins: tuple[tuple[str, Format], ...] = ()

    @property
    def result(self) -> str:
        """The tensor that the step computes, the first one of several."""
        return self.program.outputs[0]


def steps(program: Program, *, scheduled: bool = False) -> tuple[DenseProduct | Step, ...]:
    """The steps of `program` in order; a dense product is one of torch.

    When a schedule says how to loop, the whole program is one step.
    """
    if scheduled and len(program.statements) > 1:
        return (_whole(program),)
    found: list[DenseProduct | Step] = []
    for statement in program.statements:
        product = None if scheduled else dense_product(program, statement)
        found.append(product if product is not None else _step(program, statement))
    return tuple(found)


def dense_product(program: Program, statement: Assign) -> DenseProduct | None:
    """`statement` as a product of two dense matrices, `None` when it is anything else."""
    value = statement.value
    if statement.monoid is not None or not isinstance(value, Reduce) or value.monoid != "sum":
        return None
    match value.body:
        case Call("mul", (Access() as left, Access() as right)):
            pass
        case _:
            return None
    for access in (left, right, statement.target):
        declared = program.declaration(access.tensor)
        plain = all(isinstance(index, Index) for index in access.indices)
        if not declared.format.is_dense or len(access.indices) != 2 or not plain:
            return None
        if not declared.dtype.startswith("float"):
            return None
    if len({program.declaration(a.tensor).dtype for a in (left, right, statement.target)}) > 1:
        return None
    first, second = index_names(statement.target)
    if len(value.indices) != 1 or first == second:
        return None
    if first in index_names(right) and second in index_names(left):
        left, right = right, left
    summed = value.indices[0]
    if set(index_names(left)) != {first, summed} or set(index_names(right)) != {summed, second}:
        return None
    return DenseProduct(
        statement.target.tensor,
        left.tensor,
        right.tensor,
        index_names(left) != (first, summed),
        index_names(right) != (summed, second),
    )


def _whole(program: Program) -> Step:
    """All statements, with every operand as it is stored."""
    declarations = (
        replace(declared, pattern_of=None) if declared.name in program.inputs else declared
        for declared in program.declarations
    )
    return Step(replace(program, declarations=tuple(declarations)))


def _step(program: Program, statement: Assign) -> Step:
    """`statement` alone, with its operands in mode orderings that let its loops run result first."""
    reads = {n.tensor for n in walk(statement.value) if isinstance(n, Access)}
    # A result of an earlier step brings the pattern that it shares; operands are what the caller gives.
    roots = {program.declaration(name).pattern_of for name in reads - set(program.inputs)}
    reads |= {root for root in roots if root is not None}
    target = statement.target.tensor
    names = [name for name in dict.fromkeys((*program.inputs, *_results(program))) if name in reads]
    output = program.declaration(target)
    if output.pattern_of is not None and output.pattern_of not in names:
        names.append(output.pattern_of)
    twins = {name: twin for name in names if (twin := _twin(program, statement, name)) is not None}
    if output.pattern_of in twins:
        del twins[output.pattern_of]
    read = [_twinned(program.declaration(name), twins.get(name)) for name in names]
    read = [replace(d, pattern_of=None) if d.name in program.inputs or twins else d for d in read]
    declarations = (*read, output)
    alone = Program((statement,), declarations, tuple(names), (target,), program.extents)
    return Step(alone, tuple(twins.items()))


def _results(program: Program) -> list[str]:
    return [statement.target.tensor for statement in program.statements]


def _twin(program: Program, statement: Assign, name: str) -> Format | None:
    """The format of an input that is stored with a summed mode outside a mode of the result, turned around."""
    declared = program.declaration(name)
    format_ = declared.format
    if name not in program.inputs or format_.is_dense or _is_blocked(format_):
        return None
    accesses = [n for n in walk(statement.value) if isinstance(n, Access) and n.tensor == name]
    # A sparse result is written in the order of its levels, a dense one in the order of its modes.
    modes = index_names(statement.target)
    stored = program.declaration(statement.target.tensor).format.ordering
    target = [modes[mode] for mode in stored] if len(stored) == len(modes) else list(modes)
    wanted: set[tuple[int, ...]] = set()
    for access in accesses:
        if not all(isinstance(index, Index) for index in access.indices):
            return None
        names = [index_names(index)[0] for index in access.indices]
        place = {n: (target.index(n) if n in target else len(target)) for n in names}
        wanted.add(
            tuple(
                sorted(range(len(names)), key=lambda mode: (place[names[mode]], format_.ordering.index(mode)))
            )
        )
    if len(wanted) != 1 or (ordering := wanted.pop()) == format_.ordering:
        return None
    levels = tuple(
        StoredLevel(replace(level.expression, mode=mode), level.level)
        for level, mode in zip(format_.levels, ordering, strict=True)
    )
    return Format(levels)


def _twinned(declared: Declaration, format_: Format | None) -> Declaration:
    return declared if format_ is None else replace(declared, format=format_)


def _is_blocked(format_: Format) -> bool:
    return any(stored.expression.kind != "whole" for stored in format_.levels)
