"""Programs from statements and operands.

In: the statements of `y[i] = A[i,j] * x[j]` and the formats of A and x. Out: a program whose declarations name the
extents, with the format of y inferred.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Final, cast

from sparsify.compiler.einsum.diagonal import search_diagonals
from sparsify.compiler.einsum.infer.extents import declared_extents, equal_extents, mode_extents
from sparsify.compiler.einsum.infer.format import hangs_on_extents, infer_format
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Extent, Program, Selection
from sparsify.compiler.einsum.register import expand_statements
from sparsify.compiler.einsum.rewrite.places import expand_places, has_places, name_entries
from sparsify.compiler.einsum.select import COMPARED
from sparsify.compiler.einsum.verify import verify, verify_statements
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.errors import EinsumError, FormatError
from sparsify.storage.format import Format

# The largest number of 32 bits.
MOST_NARROW: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Operand:
    """Declaration of a tensor without name and sizes; fields as those of `Declaration`."""

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
    selections: Mapping[str, Selection] | None = None,
) -> Program:
    """The program of `statements` over `operands`, verified, with formats inferred.

    Args:
        outputs: names of the results to return; by default the last one.
        formats: formats of results, overriding inference.
        sizes: fixed extents.
        shapes: shapes of operands; an extent of 0 changes the fill of some reductions.
        densities: expected densities of sparse operands; results expected to be full are dense then.
        drops: results with formats whose entries equal to the fill are not stored; implied for a sparse format of a
            result with a computed value at each coordinate.
        selections: selections of row entries to store, by result.

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
        declare,
        operands=operands,
        outputs=outputs,
        formats=formats,
        densities=densities,
        drops=drops,
        selections=selections,
    )
    program = _with_inputs(statements, operands, outputs, sizes or {})
    known = {} if densities is None else declared_extents(program, shapes or {})
    program = infer_format(program, densities, known)
    for name, format in (formats or {}).items():
        rule = (name in drops, (selections or {}).get(name))
        program = _narrow(_fix_format(program, name, format, densities, known, rule), name, shapes or {})
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
    """The program of `statements` with declarations of the operands read."""
    ranks = {name: operand.format.rank for name, operand in operands.items()}
    extents = mode_extents(statements, ranks)
    declarations = [_declaration(name, extents[name], operand) for name, operand in operands.items()]
    read = {node.tensor for s in statements for node in find(s, Access)}
    kept = {d.pattern_of for d in declarations if d.name in read} | read
    declarations = [d for d in declarations if d.name in kept]
    inputs = tuple(d.name for d in declarations)
    return Program(tuple(statements), tuple(declarations), inputs, outputs, tuple(sizes.items()))


def _extents_by_name(statements: Sequence[Assign]) -> tuple[Assign, ...]:
    """`extent(j)` of an index variable, renamed to the extent in declarations."""
    names = equal_extents(statements)

    def visit(node: Node) -> Node:
        if not isinstance(node, Extent):
            return map_children(node, visit)
        if node.name not in names:
            raise EinsumError(f"extent({node.name}): {node.name} is no index variable of a tensor")
        return Extent(names[node.name])

    return tuple(cast(Assign, visit(statement)) for statement in statements)


def _empty(program: Program, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The index variables with extent 0 that change a fill: `m` of `max(m, A[i] * B[m])` with an empty B."""
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
    rule: tuple[bool, Selection | None],
) -> Program:
    """`program` with a given format of one result, and dependent formats inferred again.

    Args:
        rule: whether values decide the stored entries, and the selection of entries.
    """
    is_by_value, selection = rule
    declared = next((d for d in program.declarations if d.name == name and name not in program.inputs), None)
    if declared is None:
        raise EinsumError(
            f"format= names {name}, which is not a result; results have formats, operands their own"
        )
    if declared.format == format and not is_by_value:
        return program
    if selection is not None:
        _check_selection(program, name, format, selection)
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
        selection=selection,
    )
    results = [s.target.tensor for s in program.statements]
    later = set(results[results.index(name) :])
    kept = [
        fixed if d.name == name else d for d in program.declarations if d.name == name or d.name not in later
    ]
    return infer_format(replace(program, declarations=tuple(kept)), densities, extents)


def _narrow(program: Program, name: str, shapes: Mapping[str, Sequence[int]]) -> Program:
    """`program` with 32-bit coordinates of a result by value, if the shapes bound the number of entries."""
    declared = program.declaration(name)
    if not declared.drops or not shapes:
        return program
    known = declared_extents(program, shapes)
    extents = [known.get(index) for index in declared.extents]
    if not all(type(extent) is int for extent in extents):
        return program
    if prod(max(1, extent) for extent in extents if extent is not None) > MOST_NARROW:
        return program
    narrow = tuple(("int32" if pos else "", "int32" if crd else "") for pos, crd in declared.index_dtypes)
    changed = replace(declared, index_dtypes=narrow)
    return replace(
        program, declarations=tuple(changed if d.name == name else d for d in program.declarations)
    )


def _check_selection(program: Program, name: str, format: Format, selection: Selection) -> None:
    """Raises for a result without rows, or with entries that a selection cannot compare."""
    if (dtype := program.declaration(name).dtype) not in COMPARED:
        raise FormatError(
            f"`{selection}` of {name}, which is {dtype}",
            f"one of {', '.join(COMPARED)}, or evaluate it first and apply a sparsifier to it",
        )
    if not has_rows(format):
        raise FormatError(
            f"{str(format)!r} and `{selection}`",
            "rows: dense levels and a compressed one below them, as `csr`, of a tensor of two modes or more",
        )
    if not _is_full(program, name):
        raise FormatError(
            f"`{selection}` of {name}, which has entries that are not stored",
            "evaluate it first, and apply a sparsifier to it",
        )


def has_rows(format: Format) -> bool:
    """Whether a format has dense levels with one ordered compressed level below them."""
    *above, last = format.levels or (None,)
    is_listed = last is not None and last.level.name == "compressed" and last.level.is_ordered
    return bool(above) and is_listed and all(stored.level.name == "dense" for stored in above if stored)


def _is_full(program: Program, name: str) -> bool:
    """Whether a result has a computed value at each coordinate, so that only values decide the stored entries."""
    known = {declared.name: declared for declared in program.declarations}
    values = [statement.value for statement in program.statements if statement.target.tensor == name]
    return all(infer_sparsity(value, known).fill is None for value in values)


def _index_dtype(program: Program) -> str:
    """The widest coordinate dtype of the inputs, int64 without any."""
    dtypes = {dtype for d in program.declarations for pair in d.index_dtypes for dtype in pair}
    return "int32" if "int32" in dtypes and "int64" not in dtypes else "int64"


def _declaration(name: str, extents: tuple[str, ...], operand: Operand) -> Declaration:
    """The declaration of an operand."""
    return Declaration(
        name, extents, operand.format, operand.dtype, operand.fill, operand.index_dtypes, operand.pattern_of
    )
