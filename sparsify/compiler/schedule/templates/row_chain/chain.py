"""Row-wise chains: statements over the rows of one pattern that read values of the same row only.

In:  the nests of `S[h,i,j] = M's pattern: Q K; m[h,i] max= S; P = exp(S - m); d[h,i] += P; Y[h,i,l] += P V / d`.
Out: `RowChain(leading=("h",), row="i", column="j", ..)`, its nests with the role of each: scores, a reduction, entries,
     a reduction, a product, rows.

The pattern may be a relation, `E[i,e,j]` in `dense, compressed, singleton`: an entry of a row then has two coordinates.
"""

from dataclasses import dataclass, fields, replace
from math import prod
from typing import Final, Literal

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.einsum.rename import fresh
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Split, Statement, Temporary
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import Body, loop_chain, loop_names
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.level.levels import Compressed, Singleton

# Roles of nests: entries from sums (scores), entries, a number a row (reduction), a vector a row from entries
# (product), a vector or a number a row from others (rows), a number a row from a vector (total); and contributions of
# rows to columns: vectors from entries (columns), entries (gathered).
Kind = Literal["scores", "entries", "reduction", "product", "rows", "total", "columns", "gathered"]
OF_COLUMNS: Final = ("columns", "gathered")

# Fewest iterations of the loops around the rows that threads share instead of rows.
SHARED: Final = 4


@dataclass(frozen=True, slots=True)
class Nest:
    """One nest of a chain.

    Attributes:
        kind: role of the nest.
        assign: assignment of its result.
        lane: index variable along a row of a product or of its result, "" without.
        summed: temporary of the sum, for scores.
        inner: index variable of the sum, for scores.
        turned: dense operand with rows gathered by column, for scores; `None` if columns lie along the lanes.
        panel: dense operand with rows gathered by column, for products; `None` unless there is exactly one.
        apart: index variables around the rows in the result, for contributions to columns.
    """

    kind: Kind
    assign: Assign
    lane: str = ""
    summed: str = ""
    inner: str = ""
    turned: Access | None = None
    apart: tuple[str, ...] = ()
    panel: Access | None = None

    @property
    def result(self) -> str:
        """The assigned tensor or temporary."""
        return self.assign.target.tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """The loops over the rows of a pattern and over their stored entries.

    Attributes:
        leading: index variables before the row: batch, heads.
        row, column: index variables of the pattern.
        entry: index variables of an entry within its row: the column, or for relations several, the column last.
        outer, listed: loops over rows or block rows, and over the stored entries or blocks of each.
        within_row, within_column: loops inside a block, "" without blocks.
        height, width: extents of a block, 1 without.
        mask: operand that stores the pattern.
    """

    leading: tuple[str, ...]
    row: str
    column: str
    entry: tuple[str, ...]
    outer: str
    listed: str
    within_row: str
    within_column: str
    height: int
    width: int
    mask: Declaration

    @property
    def of_rows(self) -> set[str]:
        """The loops around the stored entries of a row."""
        return {*self.leading, self.outer, self.within_row} - {""}

    @property
    def balance(self) -> str:
        """The mask if its positions count the entries of each row, "" if its rows repeat for the loops around them."""
        return self.mask.name if not self.mask.format.levels[1].level.is_full else ""

    @property
    def of_entries(self) -> set[str]:
        """The loops around an entry."""
        if self.is_relation:
            return self.of_rows | set(self.entry)
        return self.of_rows | ({self.listed, self.within_column} - {""})

    @property
    def is_relation(self) -> bool:
        """Whether an entry has several coordinates within its row, whose loops are fused."""
        return len(self.entry) > 1


@dataclass(frozen=True, slots=True)
class RowChain(Rows):
    """A chain over the rows of one pattern.

    Attributes:
        nests: nests in order.
        held: temporaries of a row shared by the nests, without sums of products.
        collected: sums of products.
        taken: names not available for new loops and temporaries.
        constants: compile-time extents of index variables.
    """

    nests: tuple[Nest, ...]
    held: tuple[str, ...]
    collected: tuple[str, ...]
    taken: frozenset[str]
    constants: tuple[tuple[str, int], ...] = ()

    def fresh(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text

    def constant(self, index: str) -> int | None:
        """The compile-time extent of an index variable, if any."""
        return dict(self.constants).get(index)

    @property
    def adds_to_columns(self) -> bool:
        """Whether rows contribute to columns: threads then share the loops around all rows."""
        return any(nest.kind in OF_COLUMNS for nest in self.nests)

    @property
    def apart(self) -> tuple[str, ...]:
        """The index variables around the rows whose iterations write disjoint entries."""
        added = [nest.apart for nest in self.nests if nest.kind in OF_COLUMNS]
        return tuple(name for name in self.leading if all(name in names for names in added))

    def mean(self, sizes: Sizes) -> float | None:
        """The mean number of entries of a row, `None` if unknown."""
        if not self.is_relation:
            return sizes.mean_below(self.mask)
        above = self.mask.format.levels[: -len(self.entry)]
        extents = [sizes.extents.get(self.mask.extents[stored.expression.mode]) for stored in above]
        stored = sizes.stored.get(self.mask.name)
        if stored is None or None in extents:
            return None
        return stored / max(1, prod(extent for extent in extents if extent is not None))

    def shares_rows(self, sizes: Sizes) -> bool:
        """Whether threads share rows: the loops around rows have few iterations."""
        if self.adds_to_columns:
            return False
        extents = [sizes.extents.get(name) for name in self.leading]
        return all(extent is not None and extent < SHARED for extent in extents)

    def around(self, sizes: Sizes) -> tuple[str, ...]:
        """The loops around the rows; the longest is first if threads share it."""
        if self.shares_rows(sizes):
            return self.leading
        names = self.leading
        first = max(self.apart, key=lambda name: (sizes.extents.get(name, 0), names.index(name)))
        return (first, *(name for name in names if name != first))

    @property
    def is_row_first(self) -> bool:
        """Whether gathered rows are contiguous for all iterations around the rows: `X[j,h,f]`, not `X[h,j,f]`."""
        picked = [access for nest in self.nests for access in (nest.panel, nest.turned) if access is not None]
        places = [access.indices.index for access in picked]
        return any(
            at(Index(entry)) < at(Index(name))
            for access, at in zip(picked, places, strict=True)
            for name in self.leading
            for entry in self.entry
            if {Index(name), Index(entry)} <= set(access.indices)
        )

    def fused(self) -> list[d.Directive]:
        """Directives that fuse the loops over a row's coordinates into one over entries; empty for one coordinate."""
        if not self.is_relation:
            return []
        steps: list[d.Directive] = []
        for nest in self.nests:
            if nest.kind in ("scores", "entries", "reduction", "product"):
                loops = (*self.leading, self.outer, nest.lane, *self.entry)
                steps.append(d.Order(tuple(name for name in loops if name), nest.result))
        first = self.entry[0]
        for number, second in enumerate(self.entry[1:], 2):
            last = number == len(self.entry)
            name = self.listed if last else self.fresh(f"{self.listed}{number}")
            steps.append(d.Fuse(first, second, name))
            first = name
        return steps

    def lanes(self) -> tuple[str, ...]:
        """The index variables along rows of products."""
        return tuple(dict.fromkeys(nest.lane for nest in self.nests if nest.lane))


def row_chain(program: Notation) -> RowChain | None:
    """A program of several statements as a chain, `None` for other programs."""
    body = program.body
    if not isinstance(body, Let) or not isinstance(body.body, Sequence):
        return None
    kept = [temporary for temporary in body.temporaries if temporary.pattern_of is not None]
    if not kept or len({(t.pattern_of, t.pattern_indices, t.indices) for t in kept}) != 1:
        return None
    rows = _rows(program, kept[0])
    if rows is None:
        return None
    taken = frozenset(loop_names(program)) | {d.name for d in program.declarations}
    taken |= {t.name for let in find(body, Let) for t in let.temporaries}
    if rows.is_relation:
        rows = replace(rows, listed=fresh("".join(rows.entry), taken))
        taken |= {rows.listed}
    nests = [_nest(statement, rows, kept[0]) for statement in body.body.statements]
    found = tuple(nest for nest in nests if nest is not None)
    if len(found) < len(nests) or len(found) < 2 or not {nest.kind for nest in found} & {"product", "scores"}:
        return None
    added = [nest for nest in found if nest.kind in OF_COLUMNS]
    if any(nest.result not in program.outputs for nest in added):
        return None  # its readers would have to wait for all rows
    if added and not any(all(name in nest.apart for nest in added) for name in rows.leading):
        return None  # no parallel loop
    collected = {nest.result for nest in found if nest.kind == "product"}
    held = tuple(t.name for t in body.temporaries if t.name not in collected)
    sums = tuple(t.name for t in body.temporaries if t.name in collected)
    given = {field.name: getattr(rows, field.name) for field in fields(Rows)}
    constants = _constants(program)
    return RowChain(**given, nests=found, held=held, collected=sums, taken=taken, constants=constants)


def _constants(program: Notation) -> tuple[tuple[str, int], ...]:
    """The fixed extents of index variables, by the modes of the tensors that they index."""
    known = dict(program.extents)
    extents = {declared.name: declared.extents for declared in program.declarations}
    found: dict[str, int] = {}
    for access in find(program.body, Access):
        for index, extent in zip(access.indices, extents.get(access.tensor, ()), strict=False):
            if isinstance(index, Index) and extent in known:
                found[index.name] = known[extent]
    return tuple(sorted(found.items()))


def _rows(program: Notation, kept: Temporary) -> Rows | None:
    """The loops over the pattern of a temporary: rows, stored entries of each, blocks of both."""
    mask = next((d for d in program.declarations if d.name == kept.pattern_of), None)
    if mask is None or mask.name not in program.inputs:
        return None
    levels = mask.format.levels
    lists = [number for number, stored in enumerate(levels) if not stored.level.is_full]
    if not lists or not isinstance(levels[lists[0]].level, Compressed) or lists[0] == 0:
        return None
    if any(not isinstance(levels[number].level, Singleton) for number in lists[1:]):
        return None
    modes = [stored.expression.mode for stored in levels]
    kinds = [stored.expression.kind for stored in levels[lists[0] - 1 :]]
    row, *entry = (kept.pattern_indices[modes[level]] for level in (lists[0] - 1, *lists))
    column = entry[-1]
    leading = tuple(name for name in kept.indices if name not in (row, *entry))
    if kinds == ["whole"] * (1 + len(entry)):
        return Rows(leading, row, column, tuple(entry), row, column, "", "", 1, 1, mask)
    if len(entry) > 1:
        return None
    after = modes[lists[0] + 1 :]
    if kinds != ["block", "block", "within", "within"] or after != modes[lists[0] - 1 : lists[0] + 1]:
        return None
    splits = {relation.index: relation for relation in program.relations if isinstance(relation, Split)}
    rows, columns = splits[row], splits[column]
    inside = (rows.inner, columns.inner, rows.size, columns.size)
    return Rows(leading, row, column, (column,), rows.outer, columns.outer, *inside, mask)


def _nest(statement: Body, rows: Rows, kept: Temporary) -> Nest | None:
    """The role of a nest in a chain; `None` for an unsupported nest."""
    chain, inner = loop_chain(statement)
    loops = {loop.index for loop in chain}
    if isinstance(inner, Let):
        return _scores(inner, rows.entry, kept) if loops == rows.of_entries else None
    if not isinstance(inner, Assign):
        return None
    target = inner.target
    names = set(index_names(target))
    if len(target.indices) != len(names):
        return None
    if names & set(rows.entry) and (rows.row not in names or not names >= set(rows.leading)):
        return None if rows.is_relation else _of_columns(inner, loops, rows)
    if not {*rows.leading, rows.row} <= names:
        return None
    if loops == rows.of_entries and index_names(target) == kept.indices and inner.monoid is None:
        return Nest("entries", inner)
    if loops == rows.of_entries and names == {*rows.leading, rows.row} and inner.monoid is not None:
        return Nest("reduction", inner)
    more = loops - rows.of_entries
    lane = next(iter(more), "")
    if len(more) == 1 and loops - more == rows.of_rows and names == {*rows.leading, rows.row}:
        return Nest("total", inner, lane) if inner.monoid == "sum" and _is_along(inner, lane) else None
    if len(more) > 1 or (lane and index_names(target)[-1] != lane):
        return None
    if loops >= rows.of_entries and inner.monoid is not None and _is_along(inner, lane):
        return Nest("product", inner, lane, panel=_panel(inner, lane, rows.entry))
    return Nest("rows", inner, lane) if loops - more == rows.of_rows and inner.monoid is None else None


def _of_columns(assign: Assign, loops: set[str], rows: Rows) -> Nest | None:
    """Contributions of rows to columns, `D[h,j,k] += P[h,i,j] * Q[h,i,k]` or `b[j] += P[h,i,j]`.

    Or to an entry shared by a batch, `B[h,i,j] += P[b,h,i,j]`.
    """
    names = index_names(assign.target)
    apart = tuple(name for name in rows.leading if name in names)
    more = loops - rows.of_entries
    if assign.monoid != "sum" or len(more) > 1 or not loops >= rows.of_entries:
        return None
    lane = next(iter(more), rows.column)
    if set(names) - {rows.row} != {*apart, rows.column, lane} or names[-1] != lane:
        return None
    if not more:
        return Nest("gathered", assign, apart=apart)
    is_sum = rows.row not in names and _is_along(assign, lane)
    return Nest("columns", assign, lane, apart=apart) if is_sum else None


def _is_along(assign: Assign, lane: str) -> bool:
    """Whether every operand with the variable has it last."""
    reads = [access for access in find(assign.value, Access) if lane in _names(access)]
    return all(access.indices and access.indices[-1] == Index(lane) for access in reads)


def _panel(assign: Assign, lane: str, entry: tuple[str, ...]) -> Access | None:
    """The only operand with a coordinate of entries and the lanes, if its indices are plain."""
    lanes = [access for access in find(assign.value, Access) if lane in _names(access)]
    reads = [access for access in lanes if _names(access) & set(entry)]
    plain = len(reads) == 1 and all(isinstance(index, Index) for index in reads[0].indices)
    return reads[0] if lane and plain else None


def _scores(let: Let, entry: tuple[str, ...], kept: Temporary) -> Nest | None:
    """A sum for each entry, over the product of a row's and a column's vector."""
    statements = let.body.statements if isinstance(let.body, Sequence) else ()
    if len(statements) != 2 or len(let.temporaries) != 1 or let.temporaries[0].indices:
        return None
    chain, summed = loop_chain(statements[0])
    written = statements[1]
    if len(chain) != 1 or not isinstance(summed, Assign) or not isinstance(written, Assign | Statement):
        return None
    if not isinstance(written, Assign) or index_names(written.target) != kept.indices or written.monoid:
        return None
    inner = chain[0].index
    reads = [access for access in dict.fromkeys(find(summed.value, Access)) if inner in _names(access)]
    keys = [access for access in reads if _names(access) & set(entry)]
    last = {Index(name) for name in (inner, *entry)}
    if summed.monoid is None or len(keys) != 1 or keys[0].indices[-1] not in last:
        return None
    turned = keys[0] if keys[0].indices[-1] == Index(inner) else None
    if turned is not None and not all(isinstance(index, Index) for index in turned.indices):
        return None
    return Nest("scores", written, "", let.temporaries[0].name, inner, turned)


def _names(access: Access) -> set[str]:
    """The index variables of an access."""
    return {part.name for part in find(access, Index)}
