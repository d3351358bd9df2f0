"""Reference interpreter of concrete index notation: executes the loops, one iteration after the other.

In: `forall i: forall j: y[i] += A[i,j] * x[j]`, A with the mask of its stored entries, x. Out: y and its
mask.

Checks that a schedule preserves a result: loops run in the order of the notation, temporaries live as
long as the enclosing `let`, position loops visit stored entries alone, and iterations outside the extents are
skipped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sparsify.compiler.einsum.infer.dtype import declared_kind
from sparsify.compiler.einsum.infer.extents import declared_extents
from sparsify.compiler.einsum.infer.shared_pattern import over_modes
from sparsify.compiler.einsum.interpret import Input, input_tensors
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Extent, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices
from sparsify.compiler.einsum.values import (
    Array,
    Grid,
    Tensor,
    apply,
    evaluate,
    in_dtype,
    index_values,
)
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.ir.node import Node, find, walk
from sparsify.compiler.notation.nodes import (
    Forall,
    Fuse,
    If,
    Let,
    Notation,
    Position,
    Sequence,
    Split,
    Statement,
    Temporary,
)

OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Environment:
    """The values of index variables, and the entries of each open position loop."""

    values: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)


def interpret(notation: Notation, inputs: Mapping[str, Input]) -> dict[str, tuple[Array, Array]]:
    """The outputs of `notation`, by name: the values and the mask of entries different from the fill.

    Args:
        inputs: operands by name, as for the interpreter of einsum programs.
    """
    machine = _Machine(notation, inputs)
    with np.errstate(all="ignore"):
        machine.run(notation.body, Environment())
    return {name: machine.output(name) for name in notation.outputs}


class _Machine:
    """The existing tensors and the derivations of the index variables."""

    def __init__(self, notation: Notation, inputs: Mapping[str, Input]) -> None:
        self.notation = notation
        self._known_variables: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        assigns = tuple(find(notation.body, Assign))
        program = Program(assigns, notation.declarations, notation.inputs, notation.outputs, notation.extents)
        self.tensors = input_tensors(program, inputs)
        shapes = {name: tensor.values.shape for name, tensor in self.tensors.items()}
        self.extents = declared_extents(program, shapes)
        for name in notation.outputs:
            if name not in self.tensors:
                declared = program.declaration(name)
                kind = declared_kind(declared)
                self.tensors[name] = self._allocate(
                    name, declared.extents, notation.body, declared.fill, kind
                )

    def run(self, statement: Statement | Assign, env: Environment) -> None:
        """Executes a statement."""
        match statement:
            case Assign():
                self._assign(statement, env)
            case Sequence(statements):
                for member in statements:
                    self.run(member, env)
            case Let(temporaries, body):
                for temporary in temporaries:
                    self.tensors[temporary.name] = self._temporary(temporary, body)
                self.run(body, env)
                for temporary in temporaries:
                    del self.tensors[temporary.name]
            case If(condition, body):
                if self._is_inside(condition, env) and bool(
                    evaluate(condition, self._grid(env), self.tensors).values
                ):
                    self.run(body, env)
            case Forall(index, body, _):
                env = self._begin(index, env)
                for value in range(self._extent(index, env)):
                    self.run(body, self._resolve({**env.values, index: value}, env))
            case _:
                raise AssertionError(f"{type(statement).__name__} cannot run")

    def output(self, name: str) -> tuple[Array, Array]:
        """The values of an output and the mask of the stored entries."""
        tensor, declared = self.tensors[name], self._declared(name)
        if declared.pattern_of is not None and declared.pattern_of in self.tensors:
            root = self._declared(declared.pattern_of)
            stored = over_modes(declared, root, self.tensors[root.name].stored, tensor.values.shape)
            return np.where(stored, tensor.values, declared.fill), stored
        stored = np.ones_like(tensor.stored) if declared.format.is_dense else tensor.stored
        return tensor.values, stored

    def _assign(self, assign: Assign, env: Environment) -> None:
        """Writes one entry, unless an index variable exceeds its extent."""
        if not self._is_inside(assign, env):
            return
        coordinates = self._grid(env, self._variables(assign)[1])
        grid = evaluate(assign.value, coordinates, self.tensors)
        tensor = self.tensors[assign.target.tensor]
        place = tuple(int(index_values(index, coordinates).item()) for index in assign.target.indices)
        if assign.monoid is not None:
            before = Grid(
                np.asarray(tensor.values[place]), np.asarray(not tensor.stored[place]), kind=tensor.kind
            )
            grid = apply(MONOIDS[assign.monoid].combine, [before, grid.cast(tensor.kind.dtype)])
        tensor.values[place] = in_dtype(grid.values, tensor.kind.dtype).item()
        tensor.stored[place] = not grid.is_fill.item()

    def _grid(self, env: Environment, bound: tuple[str, ...] = ()) -> dict[str, Array]:
        """Index variables as coordinates; the variables bound by reductions have an axis each."""
        grid = {str(Extent(name)): np.asarray(extent) for name, extent in self.extents.items()}
        grid |= {name: np.asarray(value) for name, value in env.values.items()}
        for axis, name in enumerate(bound):
            shape = [1] * len(bound)
            shape[axis] = self.extents[name]
            grid[name] = np.arange(self.extents[name]).reshape(shape)
        return grid

    def _is_inside(self, node: Node, env: Environment) -> bool:
        """Whether every index variable of `node` is within its extent."""
        for name in (r.index for r in self.notation.relations if isinstance(r, Split)):
            # A tile of a tile may reach over the edge of the outer one.
            if name in env.values and not 0 <= env.values[name] < self._extent(name, env):
                return False
        for name in self._variables(node)[0]:
            assert name in env.values, f"{name} of `{node}` has no value; loops give {', '.join(env.values)}"
            if not 0 <= env.values[name] < self._extent(name, env):
                return False
        return True

    def _variables(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The index variables of a node: the variables of loops, and the variables bound by reductions."""
        if id(node) not in self._known_variables:
            bound = tuple(name for part in find(node, Reduce) for name in part.indices)
            given = tuple(name for name in all_indices((node,)) if name not in bound)
            self._known_variables[id(node)] = given, bound
        return self._known_variables[id(node)]

    def _extent(self, name: str, env: Environment) -> int:
        """The number of values of an index variable."""
        for relation in self.notation.relations:
            match relation:
                case Split(index=index, outer=outer, size=size) if outer == name:
                    return -(-self._extent(index, env) // size)
                case Split(inner=inner, size=size) if inner == name:
                    return size
                case Fuse(first, second, fused) if fused == name:
                    return self._extent(first, env) * self._extent(second, env)
                case Position(position=position) if position == name:
                    return (
                        len(env.entries[position])
                        if position in env.entries
                        else self._most_entries(relation)
                    )
        return self.extents[name]

    def _resolve(self, values: dict[str, int], env: Environment) -> Environment:
        """`env` with the given values and the values of the derived index variables."""
        changed = True
        while changed:
            before = len(values)
            for relation in self.notation.relations:
                match relation:
                    case Split(index, outer, inner, size) if outer in values and inner in values:
                        values[index] = values[outer] * size + values[inner]
                    case Split(index, outer, inner, size) if (
                        index in values and not {outer, inner} & values.keys()
                    ):
                        values[outer], values[inner] = divmod(values[index], size)
                    case Split(index, outer, inner, size) if {index, outer} <= values.keys() - {inner}:
                        values[inner] = values[index] - values[outer] * size  # outside of the part, elsewhere
                    case Fuse(first, second, fused) if fused in values:
                        extent = max(self._extent(second, env), 1)
                        values[first], values[second] = divmod(values[fused], extent)
                    case Position(index, position, _) if position in values and position in env.entries:
                        entries, at = env.entries[position], values[position]
                        values.update(entries[at] if at < len(entries) else {index: OUTSIDE})
            changed = len(values) != before
        return Environment(values, env.entries)

    def _begin(self, loop: str, env: Environment) -> Environment:
        """`env` with the entries of the position loops that start at the loop over `loop`."""
        entries = dict(env.entries)
        for relation in self.notation.relations:
            if not isinstance(relation, Position) or relation.position in entries:
                continue
            if loop in self._leaves(relation.position):
                entries[relation.position] = tuple(self._entries(relation, env))
        return Environment(env.values, entries)

    def _leaves(self, name: str) -> set[str]:
        """The loops that make up a position."""
        for relation in self.notation.relations:
            if isinstance(relation, Split) and relation.index == name:
                return self._leaves(relation.outer) | self._leaves(relation.inner)
        return {name}

    def _entries(self, relation: Position, env: Environment) -> Iterator[dict[str, int]]:
        """The entries visited by a position loop, as values of index variables, in storage order."""
        splits = (r for r in self.notation.relations if isinstance(r, Split))
        block = next((r for r in splits if relation.index in (r.outer, r.inner)), None)
        wanted = self._parts(relation.index) if block is None else (block.index,)
        names = self._names_of_modes(relation.tensor, wanted)
        tensor, form = self.tensors[relation.tensor], self._declared(relation.tensor).format
        if block is not None or (relation.index in names and not form.is_short):
            yield from self._stored_at(relation, names, env)
            return
        ordering = form.ordering
        depth = max(ordering.index(names.index(name)) for name in wanted)
        modes = list(dict.fromkeys(ordering[: depth + 1]))
        seen = set()
        for coordinate in sorted(tuple(int(c[mode]) for mode in modes) for c in np.argwhere(tensor.stored)):
            entry = dict(zip((names[mode] for mode in modes), coordinate, strict=True))
            if coordinate in seen or any(
                env.values.get(name, value) != value for name, value in entry.items()
            ):
                continue
            seen.add(coordinate)
            fused = self._fuse(entry)
            yield {**entry, **fused}

    def _stored_at(
        self, relation: Position, names: tuple[str, ...], env: Environment
    ) -> Iterator[dict[str, int]]:
        """The coordinates of a level below given outer coordinates (blocks or entries in blocks), in storage order."""
        name = relation.tensor
        tensor = self.tensors[name]
        columns: list[tuple[str, int, str, int]] = []
        for stored in self._declared(name).format.levels:
            e = stored.expression
            index, kind = names[e.mode], e.kind
            for r in self.notation.relations if kind != "whole" else ():
                if isinstance(r, Split) and r.index == index and r.size == e.size:
                    index = r.outer if kind == "block" else r.inner
                    break
            columns.append((index, e.mode, kind, e.size))
            if index == relation.index:
                break
        seen = set()
        for c in np.argwhere(tensor.stored):
            entry = tuple(_within(int(c[mode]), kind, size) for _, mode, kind, size in columns)
            if all(env.values.get(column[0], at) == at for column, at in zip(columns, entry, strict=True)):
                seen.add(entry)
        for entry in sorted(seen):
            yield {column[0]: at for column, at in zip(columns, entry, strict=True)}

    def _parts(self, index: str) -> tuple[str, ...]:
        """The accessed index variables that make up `index`."""
        for relation in self.notation.relations:
            if isinstance(relation, Fuse) and relation.fused == index:
                return self._parts(relation.first) + self._parts(relation.second)
        return (index,)

    def _fuse(self, entry: dict[str, int]) -> dict[str, int]:
        """The values of fused index variables."""
        values = dict(entry)
        for relation in self.notation.relations:
            if isinstance(relation, Fuse) and relation.first in values and relation.second in values:
                values[relation.fused] = (
                    values[relation.first] * self.extents[relation.second] + values[relation.second]
                )
        return values

    def _names_of_modes(self, tensor: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The index variables of the access to `tensor` with the variables of `wanted`."""
        for node in walk(self.notation.body):
            if isinstance(node, Access) and node.tensor == tensor:
                names = tuple(index.name if isinstance(index, Index) else "" for index in node.indices)
                if all(name in names for name in wanted):
                    return names
        raise AssertionError(f"no access of {tensor} has the indices {', '.join(wanted)}")

    def _most_entries(self, relation: Position) -> int:
        """The number of stored entries of the tensor of a position loop."""
        return int(self.tensors[relation.tensor].stored.sum())

    def _temporary(self, temporary: Temporary, body: Statement | Assign) -> Tensor:
        """A new temporary: undefined, or the identity if the first write reduces."""
        return self._allocate(temporary.name, temporary.indices, body, 0.0, Kind(temporary.dtype))

    def _allocate(self, name: str, indices: tuple[str, ...], body: Node, fill: float, kind: Kind) -> Tensor:
        """A tensor before the first write."""
        shape = tuple(self._extent(index, Environment()) for index in indices)
        writes = [node for node in find(body, Assign) if node.target.tensor == name]
        start = fill if self._is_skipped(name, body) else float("nan")
        if writes and writes[0].monoid is not None:
            start = MONOIDS[writes[0].monoid].identity(kind.dtype)
        return Tensor(
            np.asarray(in_dtype(np.full(shape, start), kind.dtype)), np.zeros(shape, dtype=bool), fill, kind
        )

    def _is_skipped(self, name: str, body: Node) -> bool:
        """Whether a loop over stored positions writes a tensor: unvisited entries are then the fill."""
        positions = [r.position for r in self.notation.relations if isinstance(r, Position)]
        loops = {leaf for position in positions for leaf in self._leaves(position)}
        return any(
            isinstance(part, Assign) and part.target.tensor == name
            for node in find(body, Forall)
            if node.index in loops
            for part in walk(node)
        )

    def _declared(self, name: str) -> Declaration:
        """The declaration of an input or output."""
        return next(d for d in self.notation.declarations if d.name == name)


def _within(coordinate: int, kind: str, size: int) -> int:
    """The coordinate of a mode in a level: the number of the block, or the offset in the block."""
    return coordinate // size if kind == "block" else coordinate % size if kind == "within" else coordinate
