"""Operands read in another mode ordering: the same entries, sorted once and memoized by pattern.

In: `Y = sum(i, j, k, A[i,j] * B[j,k] * C[k,i])`, all compressed by row. Out: the loop order i, j, k and the transposed
copy `C_10[k,i]`, which stores k below i.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Final, cast

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.storage.format import Format, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Compressed

if TYPE_CHECKING:
    from sparsify.compiler.plan.prepare.expand_blocks import Unblocked

# Most summed index variables of which all orders are tried.
MOST_SUMS: Final = 6


@dataclass(frozen=True, slots=True)
class Twin:
    """A copy of the operand `source` in another format, read by a step under the name `name`, and the reason."""

    name: str
    source: str
    format: Format
    why: str

    def __str__(self) -> str:
        return f"{self.name} is {self.source} as {self.format}"


def twins(
    program: Program, statement: Assign, apart: "Unblocked", known: tuple[str, ...] = ()
) -> dict[Access, Twin]:
    """Transposed copies for accesses with levels discordant to the loop order, or with expanded blocks.

    `known` is the loop order, if it was chosen by cost.
    """
    found: dict[Access, Twin] = {}
    reads = dict.fromkeys(find(statement.value, Access))
    formats = {
        a: apart.formats.get(a, program.declaration(a.tensor).format) for a in (*reads, *apart.formats)
    }
    sparse = {access: format for access, format in formats.items() if _can_turn(access, format)}
    order = list(known) or loop_order(program, statement, sparse)
    taken = {declared.name for declared in program.declarations}
    for access, format in formats.items():
        ordering = concordant(access, format, order) if access in sparse else format.ordering
        is_turned = ordering != format.ordering
        if not is_turned and access not in apart.formats:
            continue
        name = f"{access.tensor}_{''.join(map(str, ordering))}"
        while name in taken:
            name += "_"
        whys = [apart.why] * (access in apart.formats) + ["the loops run in another order"] * is_turned
        wanted = reordered(format, ordering) if is_turned else format
        found[access] = Twin(name, access.tensor, wanted, " and ".join(whys))
    return found


def loop_order(program: Program, statement: Assign, sparse: Mapping[Access, Format]) -> list[str]:
    """All index variables of sparse operands: the result's first, then sums ordered for fewest transposed copies."""
    from sparsify.compiler.notation.concretize import index_names

    target = _result_order(program, statement)
    names = dict.fromkeys(name for access in sparse for name in index_names(access))
    sums = [name for name in names if name not in target]
    output = program.declaration(statement.target.tensor)
    unknown = output.pattern_of is None and not output.format.is_dense
    last = target[-1:] if unknown and _is_scattered(program, statement) else []
    # Sums into rows of unknown pattern run outside the last mode of the row, which a workspace holds.
    first = target[: len(target) - len(last)]
    if len(sums) > MOST_SUMS:
        return [*first, *sums, *last]

    def turned(order: tuple[str, ...]) -> int:
        whole = [*first, *order, *last]
        return sum(concordant(access, format, whole) != format.ordering for access, format in sparse.items())

    return [*first, *min(permutations(sums), key=turned), *last]


def _is_scattered(program: Program, statement: Assign) -> bool:
    """Whether a sum is 0, or the identity of its reduction, at unstored coordinates: only stored entries contribute."""
    from sparsify.compiler.einsum.infer.sparsity import infer_sparsity

    declarations = {declared.name: declared for declared in program.declarations}
    return any(
        infer_sparsity(n.body, declarations).fill == MONOIDS[n.monoid].neutral
        for n in find(statement.value, Reduce)
    )


def concordant(access: Access, format: Format, order: list[str]) -> tuple[int, ...]:
    """The modes of an access, sorted by the loops that bind their indices; constant indices keep their place.

    Dense levels below all others keep their place too: any position gives access to all their coordinates.
    """
    from sparsify.compiler.notation.concretize import index_names

    listed = [number for number, stored in enumerate(format.levels) if not stored.level.is_full]
    below = set(format.ordering[max(listed, default=-1) + 1 :]) if listed else set()
    places: dict[int, int] = {}
    for mode in format.ordering:
        found = [order.index(n) if n in order else len(order) for n in index_names(access.indices[mode])]
        places[mode] = max(found) if found else max(places.values(), default=-1)
    return tuple(
        sorted(
            places,
            key=lambda mode: (
                mode in below,
                0 if mode in below else places[mode],
                format.ordering.index(mode),
            ),
        )
    )


def reordered(format: Format, ordering: tuple[int, ...]) -> Format:
    """The levels of a format over permuted modes, compressed if a level could not hold the entries otherwise.

    A dense level below a compressed one would store entries that the operand does not, unless the operand has all
    coordinates of the mode below each stored one: `dense, compressed, dense` in the order 0, 2, 1 is `dense,
    compressed, compressed`. Fixed dtypes of coordinates are dropped: they may be too narrow for another mode.
    """
    format = format.unfixed()
    count = len(format.levels)
    free = next((n for n in range(count, 0, -1) if not format.levels[n - 1].level.is_full), 0)
    repeated = {stored.expression.mode for stored in format.levels[free:]}
    found: list[StoredLevel] = []
    for mode, stored in zip(ordering, format.levels, strict=True):
        is_held = stored.level.can_append
        if stored.level.is_full:
            is_held = mode in repeated or all(above.level.is_full for above in found)
        found.append(StoredLevel(LevelExpression(mode), stored.level if is_held else Compressed()))
    return Format(tuple(found))


def with_twins(value: Expr, found: Mapping[Access, Twin]) -> Expr:
    """`value` reading transposed copies in place of the operands."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and node in found:
            return Access(found[node].name, node.indices)
        return map_children(node, visit)

    return cast(Expr, visit(value))


def turned_declaration(twin: Twin, source: Declaration) -> Declaration:
    """The declaration of an operand in the format of its transposed copy."""
    from sparsify.compiler.plan.prepare.expand_blocks import index_dtypes_in

    dtypes = index_dtypes_in(twin.format, source)
    is_alike = [tuple(map(bool, pair)) for pair in source.index_dtypes] == [
        tuple(map(bool, pair)) for pair in dtypes
    ]
    is_wide = all(dtype in ("", "int32", "int64") for pair in source.index_dtypes for dtype in pair)
    if is_alike and is_wide and not source.format.has_bits:
        dtypes = source.index_dtypes  # only the order of the modes changes
    return replace(source, name=twin.name, format=twin.format, index_dtypes=dtypes, pattern_of=None)


def _can_turn(access: Access, format: Format) -> bool:
    """Whether the operand is sparse, without blocks, and not read along a diagonal."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return not format.is_dense and format.is_short and len(set(names)) == len(names)


def _result_order(program: Program, statement: Assign) -> list[str]:
    """The index variables of the result: in level order for a sparse result, in mode order for a dense one."""
    from sparsify.compiler.notation.concretize import index_names

    modes = index_names(statement.target)
    stored = program.declaration(statement.target.tensor).format.ordering
    return [modes[mode] for mode in stored] if len(stored) == len(modes) else list(modes)
