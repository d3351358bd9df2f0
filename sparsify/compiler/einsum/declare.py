"""Programs from statements and operands.

In: the statements of `y[i] = A[i,j] * x[j]` and how A and x are stored. Out: a program whose declarations
name the extents, with the format of y inferred.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from sparsify.compiler.einsum.diagonal import search_diagonals
from sparsify.compiler.einsum.infer.extents import declared_extents, equal_extents, mode_extents
from sparsify.compiler.einsum.infer.format import hangs_on_extents, infer_format
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Extent, Program
from sparsify.compiler.einsum.register import expand_statements
from sparsify.compiler.einsum.rewrite.places import expand_places, has_places, name_entries
from sparsify.compiler.einsum.verify import verify, verify_statements
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.errors import EinsumError
from sparsify.storage.format import Format


@dataclass(frozen=True, slots=True)
class Operand:
    """Declaration of a tensor without its name and sizes; fields as those of `Declaration`."""

    format: Format
    dtype: str
    fill: float = 0.0
    index_dtypes: tuple[tuple[str, str], ...] = ()
    pattern_of: str | None = None


def declare(
    statements: Sequence[Assign],
    operands: Mapping[str, Operand],
    outputs: Sequence[str] = (),
    *,
    formats: Mapping[str, Format] | None = None,
    sizes: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    densities: Mapping[str, float] | None = None,
    drops: Collection[str] = (),
) -> Program:
    """The program of `statements` over `operands`, verified, with formats inferred.

    Args:
        outputs: the names of the results to return; without them the last one.
        formats: the formats of results that are not to be inferred.
        sizes: extents that are fixed.
        shapes: of operands; what is reduced over an extent of 0 has another fill where the reduction says so.
        densities: expected ones of sparse operands; results that are expected to be full are dense then.
        drops: results with formats whose entries that equal the fill are not stored; others do so that are asked for in
            a sparse format and have a value of their own at each coordinate.

    Raises:
        EinsumError: a name, an index variable or an assignment that does not fit.
        ShapeError: an access with the wrong number of indices.
    """
    ranks = {name: operand.format.rank for name, operand in operands.items()}
    outputs = tuple(outputs) or (statements[-1].target.tensor,)
    verify_statements(statements, ranks, outputs)
    statements = _extents_by_name(expand_statements(statements))
    if asks_places := has_places(statements):
        statements = name_entries(statements, tuple(operands))
    again = partial(
        declare, operands=operands, outputs=outputs, formats=formats, densities=densities, drops=drops
    )
    program = _with_inputs(statements, operands, outputs, sizes or {})
    known = {} if densities is None else declared_extents(program, shapes or {})
    program = infer_format(program, densities, known)
    for name, format in (formats or {}).items():
        program = _fix_format(program, name, format, densities, known, is_by_value=name in drops)
    if asks_places:
        found = {declared.name: declared for declared in program.declarations}
        return again(expand_places(statements, found), sizes=sizes, shapes=shapes)
    empty = _empty(program, shapes or {})
    if not empty.keys() <= (sizes or {}).keys():
        kept = None if densities is None else shapes
        return again(statements, sizes={**(sizes or {}), **empty}, shapes=kept)
    program = search_diagonals(program)
    verify(program)
    return program


def _with_inputs(
    statements: Sequence[Assign],
    operands: Mapping[str, Operand],
    outputs: tuple[str, ...],
    sizes: Mapping[str, int],
) -> Program:
    """The program of `statements` with declarations of the operands that it reads."""
    ranks = {name: operand.format.rank for name, operand in operands.items()}
    extents = mode_extents(statements, ranks)
    declarations = [_declaration(name, extents[name], operand) for name, operand in operands.items()]
    read = {node.tensor for s in statements for node in find(s, Access)}
    kept = {d.pattern_of for d in declarations if d.name in read} | read
    declarations = [d for d in declarations if d.name in kept]
    inputs = tuple(d.name for d in declarations)
    return Program(tuple(statements), tuple(declarations), inputs, outputs, tuple(sizes.items()))


def _extents_by_name(statements: Sequence[Assign]) -> tuple[Assign, ...]:
    """`extent(j)` of an index variable as that of what declarations name it."""
    names = equal_extents(statements)

    def visit(node: Node) -> Node:
        if not isinstance(node, Extent):
            return map_children(node, visit)
        if node.name not in names:
            raise EinsumError(f"extent({node.name}): {node.name} is no index variable of a tensor")
        return Extent(names[node.name])

    return tuple(cast(Assign, visit(statement)) for statement in statements)


def _empty(program: Program, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The index variables with the extent 0 on which fills hang: `m` of `max(m, A[i] * B[m])` with an empty B."""
    if not any(0 in shape for shape in shapes.values()):
        return {}
    extents = declared_extents(program, shapes)
    return {name: 0 for name in hangs_on_extents(program) if extents.get(name) == 0}


def _fix_format(
    program: Program,
    name: str,
    format: Format,
    densities: Mapping[str, float] | None,
    extents: Mapping[str, int],
    *,
    is_by_value: bool,
) -> Program:
    """`program` with the format of one result given, and those that depend on it inferred again."""
    declared = next((d for d in program.declarations if d.name == name and name not in program.inputs), None)
    if declared is None:
        raise EinsumError(
            f"format= names {name}, which is not a result; results have formats, operands their own"
        )
    if declared.format == format and not is_by_value:
        return program
    levels = "" if format.is_dense else _index_dtype(program)
    dtypes = tuple(
        (levels if "pos" in s.level.arrays else "", levels if "crd" in s.level.arrays else "")
        for s in format.levels
    )
    fixed = replace(
        declared,
        format=format,
        pattern_of=None,
        index_dtypes=() if format.is_dense else dtypes,
        drops=not format.is_dense and (is_by_value or _is_full(program, name)),
    )
    results = [s.target.tensor for s in program.statements]
    later = set(results[results.index(name) :])
    kept = [
        fixed if d.name == name else d for d in program.declarations if d.name == name or d.name not in later
    ]
    return infer_format(replace(program, declarations=tuple(kept)), densities, extents)


def _is_full(program: Program, name: str) -> bool:
    """Whether a result has a value of its own at each coordinate, such that nothing but values says what to store."""
    known = {declared.name: declared for declared in program.declarations}
    values = [statement.value for statement in program.statements if statement.target.tensor == name]
    return all(infer_sparsity(value, known).fill is None for value in values)


def _index_dtype(program: Program) -> str:
    """The widest coordinate dtype of the inputs, int64 when none says."""
    dtypes = {dtype for d in program.declarations for pair in d.index_dtypes for dtype in pair}
    return "int32" if "int32" in dtypes and "int64" not in dtypes else "int64"


def _declaration(name: str, extents: tuple[str, ...], operand: Operand) -> Declaration:
    """The declaration of an operand."""
    return Declaration(
        name, extents, operand.format, operand.dtype, operand.fill, operand.index_dtypes, operand.pattern_of
    )
