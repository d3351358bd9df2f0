"""Schedules for several reductions over the same rows: each gathered row is read once for all reductions.

In:  `s[i,f] += A[i,j] * X[j,f]; m[i,f] max= X[j,f] where A stores; Y[i,f] = s[i,f]; Z[i,f] = m[i,f]`, A by row.
Out: `split f fo fi 32; order s: i, fo, j, fi; ..; precompute s at fo in register; precompute m at fo in register;
     merge j; vector fi; parallel i dynamic A; prefetch X 16`

All reductions of a row accumulate in registers side by side, with any monoids.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.rewrite.nests import loop_chain, loop_names
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.tile_width import lane_tile
from sparsify.storage.format import Format

BY_ROWS: Final = Format("dense, compressed")
# Accumulator vectors: three quarters of 32 registers with AVX-512, of 16 elsewhere.
HELD: Final = 24
WIDE_BYTES: Final = 64
# Fewest bytes of a prefetched row, two cache lines, and prefetch distance in bytes.
LEAST_BYTES: Final = 128
AHEAD_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Reduced:
    """A nest of a program of aggregates.

    Attributes:
        assign: assignment of its result.
        is_sum: whether the nest reduces over the stored entries of a row; other nests compute from reductions.
        is_along: whether its result has the index variable of the lanes.
    """

    assign: Assign
    is_sum: bool
    is_along: bool

    @property
    def result(self) -> str:
        """The assigned tensor or temporary."""
        return self.assign.target.tensor


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Several reductions over the entries of each row of one matrix, and functions of the reductions.

    Attributes:
        mask: matrix.
        row, column: index variables of the matrix.
        beside: index variables of results between the row and the last one.
        lane: last index variable of results.
        nests: nests in order, all reductions first.
        held: temporaries.
        tables: accesses to the operands with gathered rows.
        taken: names not available for new loops.
    """

    mask: Declaration
    row: str
    column: str
    beside: tuple[str, ...]
    lane: str
    nests: tuple[Reduced, ...]
    held: tuple[str, ...]
    tables: tuple[Access, ...]
    taken: frozenset[str]

    @property
    def sums(self) -> list[Reduced]:
        """The reductions of rows of tables."""
        return [nest for nest in self.nests if nest.is_sum and nest.is_along]

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """All reductions in one loop over the entries of a row; then one after the other."""
        if lanes > 1:
            yield self.schedule(lanes, item_bytes, sizes, is_merged=True)
            yield self.schedule(lanes, item_bytes, sizes, is_merged=False)

    def tile(self, lanes: int, item_bytes: int, sizes: Sizes) -> tuple[int, tuple[int, ...]]:
        """Width of a row tile reduced at a time, and the pieces of the last tile."""
        registers = HELD if lanes * item_bytes >= WIDE_BYTES else HELD // 2
        vectors = max(1, registers // len(self.sums))
        most = 1 << (vectors.bit_length() - 1)  # as many vectors as halve down to one
        return lane_tile(sizes.extents.get(self.lane), lanes, item_bytes, most * lanes * item_bytes)

    def schedule(self, lanes: int, item_bytes: int, sizes: Sizes, *, is_merged: bool) -> d.Schedule:
        """A row at a time, a tile of the row in registers."""
        outer, inner = self._fresh(f"{self.lane}o"), self._fresh(f"{self.lane}i")
        size, tail = self.tile(lanes, item_bytes, sizes)
        steps: list[d.Directive] = [d.Split(self.lane, outer, inner, size, tail)]
        around = (self.row, *self.beside)
        for nest in self.nests:
            loops = (*around, outer) if nest.is_along else (self.row,)
            loops += ((self.column,) if nest.is_sum else ()) + ((inner,) if nest.is_along else ())
            if len(loops) > 1:
                steps.append(d.Order(loops, nest.result))
        along = [nest.result for nest in self.nests if nest.is_along]
        # Temporaries of tiles first: the scope of a row's scalars then encloses all of its tiles.
        for at in (outer, self.row):
            held = [name for name in self.held if (name in along) == (at == outer)]
            steps += [d.Precompute(name, "register", at=at) for name in held]
        if is_merged:
            steps.append(d.Merge(self.column))
        steps += [d.Vector(inner), d.Parallel(self.row, "dynamic", self.mask.name)]
        if size * item_bytes >= LEAST_BYTES and sizes.is_far(self.column, self.lane, item_bytes, self.mask):
            distance = max(1, AHEAD_BYTES // (size * item_bytes))
            steps += [d.Prefetch(table.tensor, distance) for table in self.tables]
        return d.Schedule(tuple(steps))

    def _fresh(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text


def aggregates(program: Notation) -> Aggregates | None:
    """A program as reductions over the same rows, two of which read the same table; `None` for other programs."""
    body = program.body
    if not isinstance(body, Let) or not isinstance(body.body, Sequence):
        return None
    sparse = [declared for declared in program.declarations if not declared.format.is_dense]
    if len(sparse) != 1 or sparse[0].name not in program.inputs or sparse[0].format.unfixed() != BY_ROWS:
        return None
    mask = sparse[0]
    if any(temporary.pattern_of is not None for temporary in body.temporaries):
        return None
    places = {access.indices for access in find(body, Access) if access.tensor == mask.name}
    names = [index.name for indices in places for index in indices if isinstance(index, Index)]
    if len(places) != 1 or len(set(names)) != len(BY_ROWS.levels):
        return None
    row, column = names
    held = tuple(temporary.name for temporary in body.temporaries)
    nests = [_nest(statement, mask.name, row, column) for statement in body.body.statements]
    found = tuple(nest for nest in nests if nest is not None)
    shapes = {nest.assign.target.indices for nest in found if nest.is_along}
    if len(found) < len(nests) or len(shapes) != 1 or not _is_ordered(found, held):
        return None
    _, *beside, lane = (index.name for index in shapes.pop() if isinstance(index, Index))
    reads = [
        dict.fromkeys(_tables(nest.assign, column, lane)) for nest in found if nest.is_sum and nest.is_along
    ]
    tables = tuple(dict.fromkeys(access for accesses in reads for access in accesses))
    is_shared = any(sum(table in accesses for accesses in reads) > 1 for table in tables)
    if not is_shared or not all(
        _is_last(access, lane) for nest in found for access in find(nest.assign, Access)
    ):
        return None
    taken = frozenset(loop_names(program)) | {declared.name for declared in program.declarations} | set(held)
    return Aggregates(mask, row, column, tuple(beside), lane, found, held, tables, taken)


def _nest(statement: object, mask: str, row: str, column: str) -> Reduced | None:
    """A reduction over the entries of rows, or a function of reductions; `None` for other nests."""
    chain, assign = loop_chain(statement)  # type: ignore[arg-type]
    if not isinstance(assign, Assign):
        return None
    target = index_names(assign.target)
    if len(target) != len(assign.target.indices) or target[:1] != (row,) or column in target:
        return None
    is_sum = any(access.tensor == mask for access in find(assign.value, Access))
    loops = {loop.index for loop in chain}
    wanted = {*target, column} if is_sum else set(target)
    if loops != wanted or (assign.monoid is not None) != is_sum:
        return None
    return Reduced(assign, is_sum, len(target) > 1)


def _is_ordered(nests: tuple[Reduced, ...], held: tuple[str, ...]) -> bool:
    """Whether reductions, all into temporaries, come first, and each is read by a later nest."""
    kinds = [nest.is_sum for nest in nests]
    count = sum(kinds)
    read = {access.tensor for nest in nests[count:] for access in find(nest.assign.value, Access)}
    targets = [nest.result for nest in nests]
    sums = targets[:count]
    is_apart = not {a.tensor for nest in nests[:count] for a in find(nest.assign.value, Access)} & set(
        targets
    )
    is_read = set(sums) <= set(held) and set(held) <= read
    return all(kinds[:count]) and is_apart and is_read and len(set(targets)) == len(targets)


def _tables(assign: Assign, column: str, lane: str) -> list[Access]:
    """The operands with rows gathered at stored coordinates along the lanes."""
    reads = find(assign.value, Access)
    return [access for access in reads if {column, lane} <= set(index_names(access))]


def _is_last(access: Access, lane: str) -> bool:
    """Whether an operand has the lanes last, or not at all."""
    return lane not in index_names(access) or access.indices[-1] == Index(lane)
