"""Formats that loops can read and write: blocks and diagonals are expanded if no loops run over them as stored.

In: `Y[i,k] = sum(j, A[i,j] * B[j,k])`, A in blocks of 3 x 3, B and Y compressed by row, the pattern of Y not known.
Out: A is read compressed by row. A blocked Y is computed compressed by row and converted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparsify.compiler.einsum.infer.shared_pattern import shared_access
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
)
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.storage.format import Format, Kind, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Compressed, Dense, Level


@dataclass(frozen=True, slots=True)
class Unblocked:
    """The accesses of a statement whose blocks are expanded.

    Attributes:
        formats: format without blocks of each access; empty if loops run over blocks.
        why: reason against loops over blocks.
    """

    formats: Mapping[Access, Format] = field(default_factory=dict)
    why: str = ""


def unblocked(program: Program, statement: Assign) -> Unblocked:
    """The formats in which `statement` reads its blocked operands and the known pattern of its result."""
    declarations = {declared.name: declared for declared in program.declarations}
    accesses = find(statement.value, Access)
    output = declarations[statement.target.tensor]
    if output.pattern_of is not None:
        accesses.append(shared_access(program, statement.target))
    formats = {access: declarations[access.tensor].format for access in accesses}
    blocked = {
        a: format
        for a, format in formats.items()
        if not format.is_short or format.has_bits or format.has_empty_slots
    }
    if not blocked:
        return Unblocked()
    is_unknown = output.pattern_of is None and not output.format.is_dense
    why = f"the pattern of {output.name} is not known" if is_unknown else _in_the_way(formats)
    why = why or _product_in_the_way(program, statement, formats)
    why = why or _table_in_the_way(program, statement, formats)
    return (
        Unblocked({a: unblocked_format(format) for a, format in blocked.items()}, why) if why else Unblocked()
    )


def taken_apart(program: Program, apart: Unblocked) -> Program:
    """`program` with its operands declared in the formats in which loops read them."""
    formats = {access.tensor: format for access, format in apart.formats.items()}
    return replace(
        program,
        declarations=tuple(
            replace(d, format=formats[d.name], index_dtypes=index_dtypes_in(formats[d.name], d))
            if d.name in formats
            else d
            for d in program.declarations
        ),
    )


def index_dtypes_in(format: Format, declared: Declaration) -> tuple[tuple[str, str], ...]:
    """The index dtypes of the arrays of `format`, as wide as those of a declared tensor."""
    widest = "int64" if any("int64" in pair for pair in declared.index_dtypes) else "int32"
    return tuple(
        (widest if "pos" in s.level.arrays else "", widest if "crd" in s.level.arrays else "")
        for s in format.levels
    )


def unblocked_format(format: Format) -> Format:
    """The format with one level for each mode, in the order of its levels, without explicit zeros of blocks.

    >>> unblocked_format(Format("bcsr(3, 3)")).letters
    'd0s1'
    """
    modes = format.modes
    stored = [s for s in format.levels if not s.level.is_full]
    if not stored:
        return _stored(modes, [Dense()] * len(modes))
    outermost = min(modes.index(s.expression.mode) for s in stored)
    levels: list[Level] = [Compressed() if place >= outermost else Dense() for place in range(len(modes))]
    return _stored(modes, levels)


def assembled(format: Format) -> Format:
    """The nearest format in which a kernel can assemble a result of unknown pattern.

    One compressed level below dense ones, compressed levels only, or coordinates: dense levels below compressed ones
    would store all their fill values. Positions and coordinates get default dtypes, wide enough for all values.

    >>> assembled(Format("bcsr(3, 3)")).letters, assembled(Format("dense, compressed, compressed")).letters
    ('d0s1', 's0s1s2')
    """
    if format.is_dense:
        return format if format.is_short else unblocked_format(format)
    plain = (format if format.is_short else unblocked_format(format)).unfixed()
    kinds = [stored.level for stored in plain.levels]
    segments = [kind.can_append and not kind.is_branchless for kind in kinds]
    if segments[0] and all(kind.is_branchless for kind in kinds[1:]):
        return plain
    if segments[-1] and all(kind.is_full for kind in kinds[:-1]):
        return plain
    if all(kind.is_full for kind in kinds[:-1]):
        return _stored(plain.ordering, [*kinds[:-1], Compressed()])
    return plain if all(segments) else _stored(plain.ordering, [Compressed()] * len(kinds))


def _stored(modes: tuple[int, ...], levels: list[Level]) -> Format:
    """A format of unblocked modes."""
    return Format([StoredLevel(LevelExpression(m), level) for m, level in zip(modes, levels, strict=True)])


def _in_the_way(formats: Mapping[Access, Format]) -> str:
    """The reason against loops over the blocks of all operands at once; "" for none."""
    sizes: dict[str, int] = {}
    for access, format in formats.items():
        if format.is_short:
            continue
        if format.has_diagonals:
            return f"no loops run along the diagonals of {access}"
        if len({i.name for i in access.indices if isinstance(i, Index)}) < len(access.indices):
            return f"{access} reads blocks at more than one index variable a mode"
        for stored in format.levels:
            name = index_names(access)[stored.expression.mode]
            size = sizes.setdefault(name, stored.expression.size)
            if size != stored.expression.size:
                return f"{name} is stored in blocks of {size or 1} and of {stored.expression.size or 1}"
    for access, format in formats.items():
        shared = set(sizes) & set(index_names(access))
        if format.is_short and not format.is_dense and any(sizes[name] for name in shared):
            return f"{access} stores {' and '.join(sorted(shared))} without blocks"
    return "" if _is_ordered(formats) else "the operands need opposite loop orders"


def _product_in_the_way(program: Program, statement: Assign, formats: Mapping[Access, Format]) -> str:
    """The reason against loops over bits or slices; "" if no operand has any, or such loops exist.

    The supported case is a sum of products of one such operand with fill 0 and dense operands: unstored entries add
    nothing, and nothing else is stored sparse.
    """
    listed = [access for access, format in formats.items() if format.has_bits or format.has_slices]
    if not listed:
        return ""
    access, declared = listed[0], program.declaration(listed[0].tensor)
    others = [format for other, format in formats.items() if other != access]
    last = declared.format.levels[-1]
    reads = [n for n in find(statement.value, Access) if n == access]
    is_last = last.level.has_bits or last.level.stride > 1
    if declared.fill == 0 and len(reads) == 1 and is_last and all(f.is_dense for f in others):
        for part in find(statement.value, Reduce):
            match part:
                case Reduce("sum", indices, Call("mul", (Access() as left, Access() as right))):
                    if access in (left, right) and index_names(access)[last.expression.mode] in indices:
                        return ""
    what = "bits" if declared.format.has_bits else "slices"
    return f"no loops but those of a product with a dense operand run over the {what} of {access}"


def _table_in_the_way(program: Program, statement: Assign, formats: Mapping[Access, Format]) -> str:
    """The reason against loops over hash tables; "" if no operand has any, or such loops exist.

    The supported case is a sum of products: the factors without a table are iterated, and coordinates looked up.
    """
    tables = [access for access, format in formats.items() if format.has_empty_slots]
    if not tables:
        return ""
    sparse = [access for access, format in formats.items() if not format.is_dense]
    factors = _factors(statement.value)
    are_zero = all(program.declaration(access.tensor).fill == 0 for access in sparse)
    names = [index_names(access) for access in sparse]
    are_plain = all(len(set(n)) == len(n) == len(a.indices) for n, a in zip(names, sparse, strict=True))
    if factors is not None and are_zero and are_plain and {*sparse} <= factors:
        return ""
    return f"slots of {tables[0]} have no order, and {statement.target.tensor} is no sum of its products"


def _factors(value: Expr) -> set[Access] | None:
    """The accesses multiplied in a product, or summed over such a product; `None` for other expressions."""
    match value:
        case Access():
            return {value}
        case Const():
            return set()
        case Reduce("sum", _, inner):
            return _factors(inner)
        case Call("mul", (left, right)):
            factors = _factors(left), _factors(right)
            return None if factors[0] is None or factors[1] is None else factors[0] | factors[1]
    return None


def _is_ordered(formats: Mapping[Access, Format]) -> bool:
    """Whether some loop order visits the levels of all sparse operands from the outermost to the innermost."""
    above: dict[tuple[str, Kind], set[tuple[str, Kind]]] = {}
    for access, format in formats.items():
        if format.is_dense or not all(isinstance(index, Index) for index in access.indices):
            continue
        names = [index.name for index in access.indices if isinstance(index, Index)]
        levels: list[tuple[str, Kind]] = [
            (names[s.expression.mode], s.expression.kind) for s in format.levels
        ]
        for number, level in enumerate(levels):
            above.setdefault(level, set()).update(levels[:number])
    while above:
        free = [key for key, outer in above.items() if not outer & above.keys()]
        if not free:
            return False
        for key in free:
            del above[key]
    return True
