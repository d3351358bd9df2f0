"""Mixtures of experts: products of the rows listed by a gate with the matrix of the listing expert.

In:  `H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * W[e,h,d])); Y[t,o] += H[t,e,h] * V[e,o,h]`, G by experts:
     `e: dense, t: compressed`.
Out: `pos t p G; split p po pi 6 tail 2 1; split h ho hi 64; ..; order H: ho, e, po, pi, hi; precompute w at po in
     register; ..; pack P = W[d, hi] at e in thread for w; transpose d hi in P; ..; parallel ho in H dynamic`

The rows of an expert are its stored positions: tiles of rows times vectors of columns accumulate in registers, as in a
dense product with gathered rows. Gradients of matrices are sums over the positions, with register tiles of rows and
columns. Threads share the columns, so that rows with several experts are accumulated without conflicts, and values
between two products are stored by position, never dense.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.expert_nests import Nest, Nests, Product, expert_nests, last_index

# Rows of a register tile, the pieces of the last one, and vectors of columns for 16 or 32 registers.
ROWS: Final = 6
TAIL: Final = (2, 1)
VECTORS: Final = 2
WIDE_VECTORS: Final = 4
WIDE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Experts:
    """A program over the stored entries of a gate, in register tiles.

    Attributes:
        found: matched nests.
    """

    found: Nests

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """The schedule for vectors; empty for scalar code."""
        if lanes > 1:
            yield _Tiles(self.found, lanes, item_bytes, sizes).schedule()


def experts(program: Notation) -> Experts | None:
    """The mixture matched in a program, `None` for other programs."""
    found = expert_nests(program)
    return None if found is None else Experts(found)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The names of the loops, and the parameters of the tiles."""

    mixture: Nests
    lanes: int
    item_bytes: int
    sizes: Sizes

    def schedule(self) -> d.Schedule:
        """Tiles of positions and of columns, the loop order of each nest, matrices packed in tile order."""
        nests = self.mixture.nests
        steps: list[d.Directive] = [
            d.Pos(self.mixture.token, self.place, self.mixture.gate.name),
            d.Split(self.place, *self.parts("p"), ROWS, TAIL),
        ]
        steps += [d.Split(name, *self.parts(name), self.columns(name)) for name in self.wide]
        rows = dict.fromkeys(nest.row for nest in nests if nest.row)
        steps += [d.Split(name, *self.parts(name), ROWS, TAIL) for name in rows]
        for stage in (self._ordered, self._collected, self._kinds, self._packed, self._shared):
            for nest in nests:
                steps += stage(nest)
        return d.Schedule(tuple(steps))

    @property
    def place(self) -> str:
        """The loop over the positions of an expert."""
        return self.fresh("p")

    @property
    def wide(self) -> tuple[str, ...]:
        """The index variables along rows of results."""
        return tuple(dict.fromkeys(nest.lane for nest in self.mixture.nests if nest.lane))

    def fresh(self, text: str) -> str:
        """An unused name."""
        while text in self.mixture.taken:
            text += "_"
        return text

    def parts(self, name: str) -> tuple[str, str]:
        """The loops over the tiles of a loop and inside a tile."""
        return self.fresh(f"{name}o"), self.fresh(f"{name}i")

    def columns(self, name: str) -> int:
        """Columns of a tile: no more vectors than the extent needs."""
        most = WIDE_VECTORS if self.lanes * self.item_bytes >= WIDE_BYTES else VECTORS
        extent = self.sizes.extents.get(name)
        return self.lanes * min(most, -(-extent // self.lanes) if extent else most)

    def inside(self, name: str) -> tuple[str, ...]:
        """The loops over a whole index variable, possibly tiled."""
        return self.parts(name) if name in self.wide else (name,)

    def joined(self, name: str, nest: str) -> list[d.Directive]:
        """Directives that join the tiles of a summed index variable tiled elsewhere."""
        return [d.Join(name, nest)] if name in self.wide else []

    def _ordered(self, nest: Nest) -> list[d.Directive]:
        """The loop order of a nest."""
        expert, result = self.mixture.expert, nest.result
        tile, member = self.parts("p")
        if nest.kind == "numbers":
            return [d.Order((expert, tile, member), result)]
        outer, inner = self.parts(nest.lane)
        around = (outer, expert, *nest.parts)
        match nest.kind:
            case "rounded":
                tiles = self.parts(nest.row) if nest.row else ()
                return [d.Order((outer, *nest.parts, *tiles, inner), result)]
            case "products":
                order = d.Order((*around, tile, member, inner), result)
                joins = [step for p in nest.products for step in self.joined(p.inner, p.sums)]
                return [order, *joins]
            case "rows":
                return [d.Order((*around, tile, member, inner), result), d.Join(self.place, result)]
            case "sums":
                return [d.Order((expert, tile, member, outer, inner), result)]
            case "added":
                summed = nest.products[0].inner
                order = d.Order((*around, tile, *self.inside(summed), member, inner), result)
                return [order, *self.joined(summed, result)]
            case "matrices":
                rows, row = self.parts(nest.row)
                order = d.Order((*around, rows, tile, member, row, inner), result)
                return [order, d.Join(self.place, result)]
        return [d.Order((*around, tile, member, inner), result), d.Join(self.place, result)]

    def _collected(self, nest: Nest) -> list[d.Directive]:
        """The accumulators of a tile in registers."""
        tile, member = self.parts("p")
        match nest.kind:
            case "products":
                _, inner = self.parts(nest.lane)
                orders = [d.Order((product.inner, member, inner), product.sums) for product in nest.products]
                return [d.Precompute(nest.products[0].sums, "register", at=tile), *orders]
            case "sums":
                return [d.Precompute(nest.result, "register", at=member)]
            case "added" | "matrices" | "vectors":
                rows = self.parts(nest.row)[0] if nest.row else self.mixture.expert
                at = tile if nest.kind == "added" else rows
                return [d.Precompute(self.sums(nest), "register", at=at, source=nest.result)]
        return []

    def sums(self, nest: Nest) -> str:
        """The register accumulator of the contributions to a result."""
        return self.fresh(f"sum_{nest.result}")

    def _kinds(self, nest: Nest) -> list[d.Directive]:
        """Unrolled and vectorized loops."""
        if not nest.lane:
            return []
        _, member = self.parts("p")
        _, inner = self.parts(nest.lane)
        names = [nest.result]
        if nest.kind == "products":
            names = [*(product.sums for product in nest.products), nest.result]
        elif nest.kind in ("added", "matrices", "vectors"):
            names = [self.sums(nest), nest.result]
        unrolled = {"products": member, "added": member, "matrices": self.parts(nest.row)[1]}.get(nest.kind)
        steps: list[d.Directive] = []
        for name in names:
            steps += [d.Unroll(unrolled, name)] if unrolled else []
            steps.append(d.Vector(inner, name))
        return steps

    def _packed(self, nest: Nest) -> list[d.Directive]:
        """The columns of a tile of each matrix, packed contiguously; transposed if strided."""
        if not nest.products:
            return []
        _, inner = self.parts(nest.lane)
        around = (self.mixture.expert, *nest.parts)[-1]
        steps: list[d.Directive] = []
        for number, product in enumerate(nest.products):
            reader = product.sums or self.sums(nest)
            name = self.fresh(f"tile_{reader}{'' if product.sums or not number else number}")
            steps.append(
                d.Pack(name, product.matrix.tensor, (product.inner, inner), around, "thread", reader)
            )
            steps.append(self._copied(product, nest.lane, inner, name))
        return steps

    def _copied(self, product: Product, lane: str, inner: str, name: str) -> d.Directive:
        """The directive for copying the columns of a matrix."""
        is_turned = last_index(product.matrix) != lane
        return d.Transpose(product.inner, inner, name) if is_turned else d.Vector(inner, name)

    def _shared(self, nest: Nest) -> list[d.Directive]:
        """Threads share columns; for numbers of entries, experts."""
        if nest.kind == "sums":
            return []
        loop = self.parts(nest.lane)[0] if nest.lane else self.mixture.expert
        return [d.Parallel(loop, "dynamic", nest=nest.result)]
