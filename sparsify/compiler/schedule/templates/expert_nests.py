"""The nests of a mixture of experts and of its gradients: the role of each for the entries of a gate.

In:  `forall t: forall i: forall e: forall h: d_X[t,i] += D[t,e,h] * U[e,h,i]`, D by positions of G.
Out: token rows with contributions of entries: lanes `i`, a sum over `h` of rows times the matrices U.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Expr, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Temporary
from sparsify.compiler.schedule.nests import Body, loop_chain, loop_names
from sparsify.storage.level.levels import Compressed

# Roles of nests: the row of an entry, from sums (products) or from other rows; the number of an entry, from sums over
# its rows; token rows with contributions of entries (added); sums over the entries of an expert, as a matrix or as a
# row (vectors); and rounding of completed sums.
Kind = Literal["products", "rows", "sums", "numbers", "added", "matrices", "vectors", "rounded"]


@dataclass(frozen=True, slots=True)
class Product:
    """A sum over `inner`, collected in `sums`, of rows times the matrix of an expert."""

    sums: str
    inner: str
    matrix: Access


@dataclass(frozen=True, slots=True)
class Nest:
    """One nest of a mixture.

    Attributes:
        kind: role of the nest.
        result: assigned tensor or temporary.
        lane: index variable along the rows of the result; "" for numbers.
        products: sums over rows times matrices; unnamed for an `added` nest.
        parts: index variables of rows with several parts; for rounded sums, all variables around the rows.
        row: index variable along which a matrix is tiled besides the lanes.
    """

    kind: Kind
    result: str
    lane: str = ""
    products: tuple[Product, ...] = ()
    parts: tuple[str, ...] = ()
    row: str = ""


@dataclass(frozen=True, slots=True)
class Nests:
    """A program over the stored entries of a gate.

    Attributes:
        gate: operand that lists the rows of each expert.
        expert, token: index variables of its levels.
        nests: nests in order.
        taken: names not available for new loops and temporaries.
    """

    gate: Declaration
    expert: str
    token: str
    nests: tuple[Nest, ...]
    taken: frozenset[str]


def expert_nests(program: Notation) -> Nests | None:
    """The mixture matched in a program, `None` for other programs."""
    sparse = [d for d in program.declarations if d.name in program.inputs and not d.format.is_dense]
    reads = {access for access in find(program.body, Access) if sparse and access.tensor == sparse[0].name}
    if len(sparse) != 1 or len(reads) > 1 or not _lists_rows(sparse[0]):
        return None
    gate = sparse[0]
    let = program.body if isinstance(program.body, Let) else None
    body: Body = program.body if let is None else let.body
    kept = () if let is None else let.temporaries
    places = {t.pattern_indices for t in kept if t.pattern_of == gate.name} | {index_names(a) for a in reads}
    if len(places) != 1:
        return None
    names = places.pop()
    if len(names) != 2:
        return None  # a diagonal
    if any(t.pattern_of not in (gate.name, None) for t in kept):
        return None
    expert, token = (names[mode] for mode in gate.format.modes)
    reader = _Reader(program, gate, expert, token, {t.name: t for t in kept})
    statements = body.statements if isinstance(body, Sequence) else (body,)
    nests = [reader.nest(statement) for statement in statements]
    found = tuple(nest for nest in nests if nest is not None)
    if len(found) < len(nests) or not any(nest.kind in ("added", "matrices") for nest in found):
        return None
    taken = frozenset(loop_names(program)) | {d.name for d in program.declarations}
    taken |= {t.name for let in find(program.body, Let) for t in let.temporaries}
    return Nests(gate, expert, token, found, taken)


def _lists_rows(gate: Declaration) -> bool:
    """Whether a gate lists the rows of each expert."""
    levels = gate.format.levels
    if not gate.format.is_short or len(levels) != 2:
        return False
    return levels[0].level.is_full and isinstance(levels[1].level, Compressed)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The context of matching: the loops over a gate, and the temporaries."""

    program: Notation
    gate: Declaration
    expert: str
    token: str
    kept: Mapping[str, Temporary]

    def nest(self, statement: Body) -> Nest | None:
        """The role of a nest in a mixture; `None` for an unsupported nest."""
        chain, inner = loop_chain(statement)
        more = {loop.index for loop in chain} - {self.expert, self.token}
        if isinstance(inner, Let):
            return self._products(inner, more)
        if not isinstance(inner, Assign) or inner.monoid not in ("sum", None):
            return None
        names = index_names(inner.target)
        if len(names) != len(inner.target.indices):
            return None
        is_of_entry = {self.expert, self.token} <= set(names)
        if inner.monoid is None and isinstance(inner.value, Access) and not is_of_entry:
            return self._rounded(inner, inner.value, names)
        if inner.monoid is None:
            if not is_of_entry or not self._has_positions(inner.target) or not more <= set(names):
                return None
            return self._row(inner, names)
        if is_of_entry:
            return self._sums(inner, names, more)
        if self.token in names:
            return self._added(inner, names, more)
        return self._of_expert(inner, names, more) if self.expert in names else None

    def _has_positions(self, target: Access) -> bool:
        """Whether a result has a position for each stored entry of the gate."""
        kept = self.kept.get(target.tensor)
        if kept is not None:
            return kept.pattern_of == self.gate.name
        return self._declaration(target.tensor).pattern_of == self.gate.name

    def _declaration(self, name: str) -> Declaration:
        """The declaration of an operand or result."""
        return next(declared for declared in self.program.declarations if declared.name == name)

    def _row(self, assign: Assign, names: tuple[str, ...]) -> Nest:
        """The row of an entry from other rows, or its number."""
        own = [name for name in names if name not in (self.expert, self.token)]
        if not own:
            return Nest("numbers", assign.target.tensor)
        return Nest("rows", assign.target.tensor, own[-1], parts=tuple(own[:-1]))

    def _rounded(self, assign: Assign, sums: Access, names: tuple[str, ...]) -> Nest | None:
        """Token rows, or matrices and rows of experts, rounded from sums in higher precision."""
        kept = self.kept.get(sums.tensor)
        if kept is None or kept.pattern_of is not None or index_names(sums) != names:
            return None
        if names[:-1] == (self.token,):
            return Nest("rounded", assign.target.tensor, names[-1], parts=(self.token,))
        if len(names) < 2 or names[0] != self.expert:
            return None
        row = names[-2] if len(names) > 2 else ""
        parts = names[:-2] if row else names[:-1]
        return Nest("rounded", assign.target.tensor, names[-1], parts=parts, row=row)

    def _sums(self, assign: Assign, names: tuple[str, ...], more: set[str]) -> Nest | None:
        """The sum over a row of an entry; a temporary of a result."""
        kept = self.kept.get(assign.target.tensor)
        if len(names) != 2 or len(more) != 1 or kept is None or kept.pattern_of is not None:
            return None
        (lane,) = more
        return Nest("sums", assign.target.tensor, lane)

    def _added(self, assign: Assign, names: tuple[str, ...], more: set[str]) -> Nest | None:
        """Token rows with contributions of entries."""
        if len(names) != 2 or names[0] != self.token or names[1] not in more:
            return None
        lane = names[1]
        products = []
        for term in _terms(assign.value):
            found = self._product(term, "", more - {lane}, lane)
            if found is None:
                return None
            products.append(found)
        inner = {product.inner for product in products}
        if len(inner) != 1 or len({product.matrix.tensor for product in products}) < len(products):
            return None
        parts = tuple(sorted(more - inner - {lane}))
        return Nest("added", assign.target.tensor, lane, tuple(products), parts)

    def _of_expert(self, assign: Assign, names: tuple[str, ...], more: set[str]) -> Nest | None:
        """A matrix or a row of an expert, a sum over its entries."""
        own = [name for name in names if name != self.expert]
        if not own or names[-1] == self.expert or set(own) != more:
            return None
        lane = own[-1]
        if len(own) == 1:
            return Nest("vectors", assign.target.tensor, lane)
        row = own[-2]
        if any({lane, row} <= _names(access) for access in find(assign.value, Access)):
            return None
        return Nest("matrices", assign.target.tensor, lane, parts=tuple(own[:-2]), row=row)

    def _products(self, let: Let, more: set[str]) -> Nest | None:
        """Rows of an entry, from sums of the token's row times columns of matrices."""
        statements = let.body.statements if isinstance(let.body, Sequence) else ()
        written = statements[-1] if statements else None
        if not isinstance(written, Assign) or written.monoid or len(statements) != len(let.temporaries) + 1:
            return None
        names = index_names(written.target)
        if (
            not self._has_positions(written.target)
            or names[:2] not in self._orders()
            or set(names[2:]) != more
        ):
            return None
        if not more:
            return None
        *parts, lane = names[2:]
        found = []
        for statement in statements[:-1]:
            chain, summed = loop_chain(statement)
            if len(chain) != 1 or not isinstance(summed, Assign) or summed.monoid != "sum":
                return None
            product = self._product(summed.value, summed.target.tensor, {chain[0].index, *parts}, lane)
            if product is None or product.inner != chain[0].index:
                return None
            found.append(product)
        return Nest("products", written.target.tensor, lane, tuple(found), tuple(parts))

    def _orders(self) -> Iterable[tuple[str, ...]]:
        """The accepted orders of the modes of entries."""
        return (self.token, self.expert), (self.expert, self.token)

    def _product(self, value: Expr, sums: str, summed: set[str], lane: str) -> Product | None:
        """A sum of rows of tokens or entries times a matrix of the expert, the only operand along the lanes.

        Args:
            summed: summed index variables, and the parts of rows.
        """
        reads = find(value, Access)
        along = [access for access in reads if lane in _names(access)]
        if len(along) != 1:
            return None
        (matrix,) = along
        inside = [name for name in index_names(matrix) if name in summed]
        if not inside or _names(matrix) != {self.expert, lane, *inside}:
            return None
        inner = inside[-1]
        if last_index(matrix) not in (inner, lane):
            return None
        if any(self.token not in _names(access) for access in reads if access is not matrix):
            return None
        return Product(sums, inner, matrix)


def _terms(value: Expr) -> list[Expr]:
    """The terms of a sum."""
    match value:
        case Call("add", (left, right)):
            return [*_terms(left), *_terms(right)]
    return [value]


def _names(access: Access) -> set[str]:
    """The index variables of an access."""
    return {part.name for part in find(access, Index)}


def last_index(access: Access) -> str:
    """The last index variable of an access, possibly followed by a constant part of rows."""
    return [index.name for index in access.indices if isinstance(index, Index)][-1]
