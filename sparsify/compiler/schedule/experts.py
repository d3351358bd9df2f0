"""Mixtures of experts: products of rows that a gate lists with the matrix of the expert that lists them.

In:  `H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * W[e,h,d])); Y[t,o] += H[t,e,h] * V[e,o,h]`, G by experts:
     `e: dense, t: compressed`.
Out: `pos t p G; split p po pi 6 tail 2 1; split h ho hi 64; ..; order H: ho, e, po, pi, hi; precompute w at po in
     register; ..; pack P = W[d, hi] at e in thread for w; transpose d hi in P; ..; parallel ho in H dynamic`

The rows of an expert are its stored positions: tiles of them times vectors of columns are sums in registers, as in a
product of dense matrices whose rows are gathered. Threads share the columns, so that rows which several experts have
are added up without a conflict, and what lies between two products is held by position, never dense.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Temporary
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.chains import Body, loop_chain, loop_names
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.levels import Compressed

# Rows of a register tile, the pieces of the last one, and vectors of columns where there are 16 or 32 registers.
ROWS: Final = 6
TAIL: Final = (2, 1)
VECTORS: Final = 2
WIDE_VECTORS: Final = 4
WIDE_BYTES: Final = 64

# What nests compute: the row of an entry from sums of its own, and rows of tokens that entries add to.
Kind = Literal["products", "added"]


@dataclass(frozen=True, slots=True)
class Product:
    """A sum over `inner` that is collected in `sums`, of rows times the matrix of an expert."""

    sums: str
    inner: str
    matrix: Access


@dataclass(frozen=True, slots=True)
class Nest:
    """One nest of a mixture.

    Attributes:
        kind: what it computes.
        result: the tensor or temporary that it assigns.
        lane: the index variable along the rows of the result.
        products: its sums over rows times matrices; that of a nest which adds has no name yet.
    """

    kind: Kind
    result: str
    lane: str
    products: tuple[Product, ...] = ()


@dataclass(frozen=True, slots=True)
class Experts:
    """A program over the stored entries of a gate.

    Attributes:
        gate: the operand that lists the rows of each expert.
        expert, token: the index variables of its levels.
        nests: in order.
        taken: names that new loops and temporaries must not have.
    """

    gate: Declaration
    expert: str
    token: str
    nests: tuple[Nest, ...]
    taken: frozenset[str]

    def fresh(self, text: str) -> str:
        """A name that nothing has."""
        while text in self.taken:
            text += "_"
        return text

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """The one for vectors; nothing for scalar code."""
        if lanes > 1:
            yield _Tiles(self, lanes, item_bytes, sizes).schedule()


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The names of the loops and what decides the tiles."""

    mixture: Experts
    lanes: int
    item_bytes: int
    sizes: Sizes

    def schedule(self) -> d.Schedule:
        """Tiles of positions and of columns, each nest in its order, matrices copied as the tiles read them."""
        mixture = self.mixture
        place = mixture.fresh("p")
        steps: list[d.Directive] = [
            d.Pos(mixture.token, place, mixture.gate.name),
            d.Split(place, *self.parts("p"), ROWS, TAIL),
        ]
        wide = dict.fromkeys(nest.lane for nest in mixture.nests)
        steps += [d.Split(name, *self.parts(name), self.columns(name)) for name in wide]
        for nest in mixture.nests:
            steps += self._ordered(nest)
        for nest in mixture.nests:
            steps += self._collected(nest)
        for nest in mixture.nests:
            steps += self._kinds(nest)
        for nest in mixture.nests:
            steps += self._packed(nest)
        return d.Schedule((*steps, *(self._shared(nest) for nest in mixture.nests)))

    def parts(self, name: str) -> tuple[str, str]:
        """The loops over the tiles of a loop and inside of one."""
        return self.mixture.fresh(f"{name}o"), self.mixture.fresh(f"{name}i")

    def columns(self, name: str) -> int:
        """Columns of a tile: no more vectors than there are."""
        most = WIDE_VECTORS if self.lanes * self.item_bytes >= WIDE_BYTES else VECTORS
        extent = self.sizes.extents.get(name)
        return self.lanes * min(most, -(-extent // self.lanes) if extent else most)

    def _ordered(self, nest: Nest) -> list[d.Directive]:
        """The loops of a nest in their order; a sum over what has tiles elsewhere runs over all of it."""
        tile, member = self.parts("p")
        outer, inner = self.parts(nest.lane)
        around = (outer, self.mixture.expert, tile)
        if nest.kind == "products":
            return [d.Order((*around, member, inner), nest.result)]
        (product,) = nest.products
        if product.inner not in {other.lane for other in self.mixture.nests}:
            return [d.Order((*around, product.inner, member, inner), nest.result)]
        order = d.Order((*around, *self.parts(product.inner), member, inner), nest.result)
        return [order, d.Join(product.inner, nest.result)]

    def _collected(self, nest: Nest) -> list[d.Directive]:
        """The sums of a tile in registers."""
        tile, member = self.parts("p")
        _, inner = self.parts(nest.lane)
        if nest.kind == "added":
            return [d.Precompute(self._sums(nest), "register", at=tile, source=nest.result)]
        if not nest.products:
            return []
        orders = [d.Order((product.inner, member, inner), product.sums) for product in nest.products]
        return [d.Precompute(nest.products[0].sums, "register", at=tile), *orders]

    def _sums(self, nest: Nest) -> str:
        """The temporary in registers that collects what is added to a result."""
        return self.mixture.fresh(f"sum_{nest.result}")

    def _kinds(self, nest: Nest) -> list[d.Directive]:
        """What is written out and what runs in lanes."""
        _, member = self.parts("p")
        _, inner = self.parts(nest.lane)
        sums = [product.sums or self._sums(nest) for product in nest.products]
        return [
            kind for name in (*sums, nest.result) for kind in (d.Unroll(member, name), d.Vector(inner, name))
        ]

    def _packed(self, nest: Nest) -> list[d.Directive]:
        """The columns of a tile of each matrix, copied side by side; those that lie the other way are turned."""
        _, inner = self.parts(nest.lane)
        steps: list[d.Directive] = []
        for product in nest.products:
            reader = product.sums or self._sums(nest)
            name = self.mixture.fresh(f"tile_{reader}")
            indices = (product.inner, inner)
            steps.append(d.Pack(name, product.matrix.tensor, indices, self.mixture.expert, "thread", reader))
            is_turned = product.matrix.indices[-1] != Index(nest.lane)
            steps.append(d.Transpose(product.inner, inner, name) if is_turned else d.Vector(inner, name))
        return steps

    def _shared(self, nest: Nest) -> d.Directive:
        """Threads take columns."""
        return d.Parallel(self.parts(nest.lane)[0], "dynamic", nest=nest.result)


def experts(program: Notation) -> Experts | None:
    """The mixture that a program is, `None` when it is anything else."""
    sparse = [d for d in program.declarations if d.name in program.inputs and not d.format.is_dense]
    reads = {access for access in find(program.body, Access) if sparse and access.tensor == sparse[0].name}
    if len(sparse) != 1 or len(reads) != 1 or not _lists_rows(sparse[0]):
        return None
    gate, names = sparse[0], index_names(reads.pop())
    if len(names) != 2:
        return None  # a diagonal
    let = program.body if isinstance(program.body, Let) else None
    body: Body = program.body if let is None else let.body
    kept = () if let is None else let.temporaries
    if any(t.pattern_of != gate.name or t.pattern_indices != names for t in kept):
        return None
    expert, token = (names[mode] for mode in gate.format.modes)
    taken = frozenset(loop_names(program)) | {d.name for d in program.declarations}
    taken |= {t.name for let in find(program.body, Let) for t in let.temporaries}
    statements = body.statements if isinstance(body, Sequence) else (body,)
    nests = [_nest(statement, expert, token, kept) for statement in statements]
    found = tuple(nest for nest in nests if nest is not None)
    if len(found) < len(nests) or not any(nest.kind == "added" for nest in found):
        return None
    return Experts(gate, expert, token, found, taken)


def _lists_rows(gate: Declaration) -> bool:
    """Whether a gate lists the rows of each expert."""
    levels = gate.format.levels
    if not gate.format.is_short or len(levels) != 2:
        return False
    return levels[0].level.is_full and isinstance(levels[1].level, Compressed)


def _nest(statement: Body, expert: str, token: str, kept: Iterable[Temporary]) -> Nest | None:
    """What a nest computes; `None` for what no mixture has."""
    chain, inner = loop_chain(statement)
    loops = {loop.index for loop in chain}
    of_rows = {t.name: t.indices for t in kept}
    if isinstance(inner, Let):
        return _products(inner, loops, expert, token, of_rows)
    if not isinstance(inner, Assign) or inner.monoid != "sum":
        return None
    names = index_names(inner.target)
    more = loops - {expert, token}
    if len(names) == 2 == len(inner.target.indices) == len(more) and names[0] == token and names[1] in more:
        lane = names[1]
        (summed,) = more - {lane}
        matrix = _matrix(inner, expert, token, summed, lane)
        if matrix is None:
            return None
        return Nest("added", inner.target.tensor, lane, (Product("", summed, matrix),))
    return None


def _products(
    let: Let, loops: set[str], expert: str, token: str, of_rows: dict[str, tuple[str, ...]]
) -> Nest | None:
    """Rows of an entry, from sums of the row of a token times columns of matrices."""
    statements = let.body.statements if isinstance(let.body, Sequence) else ()
    written = statements[-1] if statements else None
    if not isinstance(written, Assign) or written.monoid or len(statements) != len(let.temporaries) + 1:
        return None
    if of_rows.get(written.target.tensor) != index_names(written.target):
        return None
    more = loops - {expert, token}
    if len(more) != 1 or not {expert, token} <= loops:
        return None
    (lane,) = more
    if index_names(written.target)[-1] != lane:
        return None
    found = []
    for statement in statements[:-1]:
        chain, summed = loop_chain(statement)
        if len(chain) != 1 or not isinstance(summed, Assign) or summed.monoid != "sum":
            return None
        matrix = _matrix(summed, expert, token, chain[0].index, lane)
        if matrix is None:
            return None
        found.append(Product(summed.target.tensor, chain[0].index, matrix))
    return Nest("products", written.target.tensor, lane, tuple(found))


def _matrix(assign: Assign, expert: str, token: str, inner: str, lane: str) -> Access | None:
    """The dense operand of a sum that has a matrix for each expert, the only one along the lanes."""
    reads = find(assign.value, Access)
    along = [access for access in reads if lane in _names(access)]
    if len(along) != 1 or _names(along[0]) != {expert, inner, lane}:
        return None
    if along[0].indices[-1] not in (Index(inner), Index(lane)):
        return None
    rest = [access for access in reads if access is not along[0]]
    return along[0] if all(token in _names(access) for access in rest) else None


def _names(access: Access) -> set[str]:
    """The index variables of an access."""
    return {part.name for part in find(access, Index)}
