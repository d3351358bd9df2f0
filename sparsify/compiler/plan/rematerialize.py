"""Temporaries needed by gradients: saved by the forward pass, or rematerialized.

In: `S = Q K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d` and the sizes of the operands.
Out: m and d are saved, a number a row; S and P, a number for each stored entry and head, are rematerialized.

Saved temporaries must be small relative to operands and results, which are alive anyway. Temporaries on the pattern of
an operand are rematerialized at their uses, inside the kernel of the gradients; others by their own kernels.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Index, Program, Reduce
from sparsify.compiler.einsum.rename import fresh
from sparsify.compiler.ir.dtypes import BYTES, STORED_HALVES
from sparsify.compiler.ir.node import find
from sparsify.compiler.schedule.sizes import Sizes

# A saved temporary takes at most 1 / PART of the bytes of operands and results.
PART: Final = 8


@dataclass(frozen=True, slots=True)
class Keeping:
    """The choice for each temporary of a program: saved or rematerialized.

    Attributes:
        kept: temporaries saved by the forward pass, as results.
        again: temporaries rematerialized by the backward pass, entry by entry at their uses.
        bytes: bytes of each temporary, if sizes are known.
        held: bytes of operands and results.
    """

    kept: tuple[str, ...]
    again: tuple[str, ...]
    bytes: dict[str, int]
    held: int

    def __str__(self) -> str:
        parts = [
            f"{verb} {', '.join(f'{name} ({self.bytes[name]:,} bytes)' for name in names)}"
            for verb, names in (("keep", self.kept), ("compute again", self.again))
            if names
        ]
        return f"gradients {' and '.join(parts)} beside {self.held:,} bytes of operands and results"


def keeping(program: Program, sizes: Sizes) -> Keeping:
    """Temporaries to save and to rematerialize; both empty for unknown sizes."""
    assigned = [statement.target.tensor for statement in program.statements]
    names = [name for name in dict.fromkeys(assigned) if name not in program.outputs]
    count = {name: _bytes(program, name, sizes) for name in names}
    held = [_bytes(program, name, sizes) for name in (*program.inputs, *program.outputs)]
    if not names or None in count.values() or None in held:
        return Keeping((), (), {}, 0)
    known = {name: size for name, size in count.items() if size is not None}
    total = sum(size for size in held if size is not None)
    small = [name for name in names if known[name] * PART <= total and _is_result(program, name)]
    again = [n for n in names if n not in small and _root(program, n) is not None and assigned.count(n) == 1]
    return Keeping(tuple(small), tuple(again), known, total)


def with_results(program: Program, names: tuple[str, ...], copied: bool) -> Program:
    """`program` with more results: temporaries, or copies that leave the loops of the temporaries unchanged."""
    if not copied:
        return replace(wide(program, names), outputs=(*program.outputs, *names))
    taken = {declared.name for declared in program.declarations}
    statements, declarations = list(program.statements), list(program.declarations)
    outputs = list(program.outputs)
    for name in names:
        target = next(s.target for s in program.statements if s.target.tensor == name)
        copy = fresh(f"kept_{name}", taken)
        taken.add(copy)
        statements.append(Assign(Access(copy, target.indices), None, target))
        declarations.append(replace(program.declaration(name), name=copy))
        outputs.append(copy)
    more = replace(
        program,
        statements=tuple(statements),
        declarations=tuple(declarations),
        outputs=tuple(outputs),
    )
    return wide(more, tuple(outputs[len(program.outputs) :]))


def wide(program: Program, names: Collection[str]) -> Program:
    """`program` with the named half-precision tensors in float32, the accumulation dtype: no rounding.

    A maximum of 50 rounded to bfloat16 would change its row's exponentials by a tenth.
    """
    declarations = tuple(
        replace(declared, dtype="float32")
        if declared.name in names and declared.dtype in STORED_HALVES
        else declared
        for declared in program.declarations
    )
    return replace(program, declarations=declarations)


def with_wide_rows(program: Program) -> Program:
    """`program` with temporaries in float32 if one of them is sparse: rows of scores and values derived from scores.

    Values between kernels are then as exact as in one kernel. Operands and results of dense products keep their dtypes.
    """
    given = {*program.inputs, *program.outputs}
    inside = [declared for declared in program.declarations if declared.name not in given]
    if all(declared.format.is_dense for declared in inside):
        return program
    dense = {declared.name for declared in program.declarations if declared.format.is_dense}
    multiplied: set[str] = set()
    for statement in program.statements:
        names = {statement.target.tensor, *(access.tensor for access in find(statement.value, Access))}
        if names <= dense and isinstance(statement.value, Reduce):
            match statement.value.body:
                case Call("mul", (Access(), Access())):
                    multiplied |= names
    return wide(program, [declared.name for declared in inside if declared.name not in multiplied])


def _is_result(program: Program, name: str) -> bool:
    """Whether a kernel can return a temporary: dense, or on the pattern of an input."""
    declared = program.declaration(name)
    return declared.format.is_dense or declared.pattern_of in program.inputs


def _root(program: Program, name: str) -> Access | None:
    """The input whose stored entries a temporary has, possibly for each coordinate of further modes; or `None`."""
    declared = program.declaration(name)
    target = next(s.target for s in program.statements if s.target.tensor == name)
    if declared.format.is_dense or not all(isinstance(index, Index) for index in target.indices):
        return None
    root = pattern_access(program, target)
    return root if root.tensor in program.inputs else None


def _bytes(program: Program, name: str, sizes: Sizes) -> int | None:
    """Bytes of a tensor's values, `None` for unknown sizes."""
    declared = program.declaration(name)
    extents = [sizes.extents.get(extent) for extent in declared.extents]
    if None in extents:
        return None
    shape = [extent for extent in extents if extent is not None]
    if declared.format.is_dense:
        return prod(shape) * BYTES[declared.dtype]
    if name in program.inputs:
        return sizes.stored[name] * BYTES[declared.dtype] if name in sizes.stored else None
    root = _root(program, name)
    if root is None or root.tensor not in sizes.stored:
        return None
    further = [
        extent for extent, mode in zip(shape, _modes(program, name), strict=True) if mode not in root.indices
    ]
    return sizes.stored[root.tensor] * prod(further) * BYTES[declared.dtype]


def _modes(program: Program, name: str) -> tuple[object, ...]:
    """The index variables of a temporary's assignment."""
    return next(s.target.indices for s in program.statements if s.target.tensor == name)
