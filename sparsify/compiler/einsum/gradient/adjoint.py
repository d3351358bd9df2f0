"""The adjoint of an einsum program, again an einsum program.

In: `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])` and the gradient `g` of Y.
Out: `d_w[i,k] = where(Y[i,k] > 0, g[i,k], 0)`, `d_T[j,k] = sum(i, d_w[i,k] * A[i,j])` and
`d_b[k] = sum(i, d_w[i,k])`.

A statement propagates the gradient of its target to each access on its right side; the gradient of a tensor is the sum
over its accesses. The gradient of a sparse tensor is restricted to its stored coordinates, by
`where(stored(A[i,j]), ..., 0)` unless confined already, and shares the pattern; fills get none.

Source: Griewank and Walther, Evaluating derivatives, 2008, chapter 3 (reverse mode).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import reduce

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.gradient.program import assemble, joined
from sparsify.compiler.einsum.gradient.rules import (
    ONE,
    ZERO,
    append,
    chosen,
    conjugate,
    equals,
    product_slope,
    pull_back,
    put,
    times,
    vanishes,
)
from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of, reduced
from sparsify.compiler.einsum.infer.patterns import is_confined, pattern_access, pattern_root
from sparsify.compiler.einsum.monoids import MONOIDS
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
    Stored,
)
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices, replace
from sparsify.compiler.einsum.rewrite.factor import factor
from sparsify.compiler.einsum.rewrite.one_reduction import Flat, flatten
from sparsify.compiler.einsum.rewrite.simplify import simplify
from sparsify.compiler.einsum.rewrite.softmax_shift import shifts
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.ir.node import find
from sparsify.errors import EinsumError


def adjoint(
    program: Program, wrt: Sequence[str], grads: Mapping[str, str], again: Collection[str] = ()
) -> Program:
    """The program that computes the gradients of the inputs `wrt` from the gradients of the outputs.

    Outputs: the gradients in the order of `wrt`. Inputs: inputs and results of `program`, and gradients, as far as
    read.
    The adjoint is an ordinary program, so that its own adjoint gives second derivatives. Loop-invariant factors are
    first hoisted out of sums: `sum(j, P[i,j] * V[j,l] / d[i])` has the gradient of `d` by its result, `-g[i,l] * Y[i,l]
    / d[i]`, without a second sum of products.

    Args:
        program: program with inferred formats of its results.
        grads: name of the gradient tensor for each output with a gradient.
        again: temporaries to rematerialize at their uses; the others are inputs of the adjoint.

    Raises:
        EinsumError: an unknown name, or a product accumulated over several statements.
    """
    for name in wrt:
        if name not in program.inputs:
            raise EinsumError(f"{name} is not an input; gradients exist for {', '.join(program.inputs)}")
    for name in grads:
        if name not in program.outputs:
            raise EinsumError(f"{name} is not an output; give gradients of {', '.join(program.outputs)}")
    program = factor(program)
    reverse = _Reverse(program, tuple(wrt), grads, again)
    reverse.run()
    outputs = tuple(reverse.emit_gradient(name) for name in wrt)
    program = replace_fields(program, extents=reverse.extents())
    statements = joined(reverse.statements, outputs) if again else reverse.statements
    return assemble(program, statements, reverse.declarations, reverse.recomputed, outputs)


@dataclass(frozen=True, slots=True)
class Part:
    """A contribution to a gradient: at the coordinates `indices`, `expr` summed over `summed`."""

    indices: tuple[str, ...]
    summed: tuple[str, ...]
    expr: Expr


class _Reverse:
    """The statements of an adjoint, collected from the last statement of the program to the first."""

    def __init__(
        self, program: Program, wrt: tuple[str, ...], grads: Mapping[str, str], again: Collection[str]
    ) -> None:
        self.program = program
        self.flats, hoisted = flatten(program, grads.values())
        self.active = _reached(self.flats, wrt, shifts(self.flats, grads))
        # An extremum is compared with entries: rematerialized entries may differ by a rounding error.
        compared = any(f.monoid in ("min", "max") and f.target.tensor in self.active for f in self.flats)
        self.again = frozenset(() if compared else again)
        names = hoisted | self.again
        self.recomputed = {flat.target.tensor: flat for flat in self.flats if flat.target.tensor in names}
        self.kinds = self._known_kinds(grads)
        self.parts: dict[str, list[Part]] = {}
        self.statements: list[Assign] = []
        self.declarations: dict[str, Declaration] = {}
        self.renamed: dict[str, str] = {}
        self.shared: list[tuple[Expr, Access]] = []
        self.tensors = {d.name for d in program.declarations} | set(grads.values()) | hoisted
        self.variables = set(all_indices(program.statements)) | {
            e for d in program.declarations for e in d.extents
        }
        for output, name in grads.items():
            self._declare_gradient(output, name)
            indices = self._indices_of(output)
            self.parts[output] = [Part(indices, (), _access(name, indices))]

    def _known_kinds(self, grads: Mapping[str, str]) -> dict[str, Kind]:
        """The kinds of all tensors, of inner reductions and of the gradients of results."""
        kinds = {declared.name: declared_kind(declared) for declared in self.program.declarations}
        for flat in self.flats:
            if flat.target.tensor not in kinds:
                kind = kind_of(flat.body, kinds)
                if flat.monoid is not None:
                    kind = reduced(kind, flat.monoid, flat.body, kinds)
                kinds[flat.target.tensor] = kind
        return kinds | {gradient: kinds[output] for output, gradient in grads.items()}

    def run(self) -> None:
        """Propagates the gradients of all results to the inputs."""
        targets = dict.fromkeys(flat.target.tensor for flat in reversed(self.flats))
        for name in targets:
            if name in self.active and name in self.parts:
                group = [flat for flat in self.flats if flat.target.tensor == name]
                indices, value = self._cotangent(name)
                self._pass_on(group, indices, value)

    def extents(self) -> tuple[tuple[str, int], ...]:
        """The fixed extents, including those of renamed index variables."""
        known = dict(self.program.extents)
        for new, old in self.renamed.items():
            if old in known:
                known[new] = known[old]
        return tuple(known.items())

    def emit_gradient(self, name: str) -> str:
        """Adds the statement of the gradient of an input, and returns its name."""
        result = self._name(f"d_{name}")
        self._declare_gradient(name, result)
        indices = self._indices_of(name)
        value = self._total(name, indices) if name in self.parts else ZERO
        self._emit(_access(result, indices), value)
        return result

    def _pass_on(self, group: list[Flat], indices: tuple[str, ...], value: Expr) -> None:
        """Adds the contributions of all statements that assign one tensor, whose gradient is `value`."""
        monoid = next((flat.monoid for flat in group if flat.monoid is not None), None)
        if monoid == "prod" and len(group) > 1:
            raise EinsumError(
                f"{group[0].target.tensor} is multiplied by several statements; use a name for each"
            )
        if monoid in ("min", "max"):
            value = self._share(group, indices, value)
        for flat in group:
            gradient = rename_indices(value, dict(zip(indices, flat.indices, strict=True)))
            if monoid in ("min", "max"):
                gradient = chosen(equals(flat.body, flat.target), gradient)
            elif monoid == "prod":
                gradient = times(gradient, conjugate(self._slope_of_product(flat), self.kinds))
            elif monoid not in (None, "sum"):
                if MONOIDS[monoid].combine not in ("logical_or", "logical_and"):
                    raise EinsumError(
                        f"{flat.target.tensor} is reduced by {monoid}, whose derivative is not known; write it with "
                        "sum, prod, min or max, or detach its operands"
                    )
                continue
            result = flat.target if monoid is None else None
            for access, part in pull_back(flat.body, gradient, self.active, self.kinds, result):
                self._contribute(access, part, flat.indices + flat.reduced)

    def _share(self, group: list[Flat], indices: tuple[str, ...], value: Expr) -> Expr:
        """The gradient of a minimum or maximum divided by the number of tied entries."""
        first = group[0]
        count = _access(self._name(f"ties_{first.target.tensor}"), first.indices)
        declared = next((d for d in self.program.declarations if d.name == first.target.tensor), None)
        is_kept = (
            declared is not None and not declared.format.is_dense and declared.name not in self.recomputed
        )
        for flat in group:
            target = Access(count.tensor, flat.target.indices)
            hits = chosen(equals(flat.body, flat.target), ONE)
            # Unstored entries have no gradient, and counting their ties could exceed the memory.
            hits = chosen(Stored(flat.target), hits) if is_kept else hits
            if len(group) == 1:
                self._emit(target, Reduce("sum", flat.reduced, hits) if flat.reduced else hits)
            else:
                self.statements.append(Assign(target, "sum", hits))
                self.kinds[target.tensor] = Kind("int64")
        return Call("div", (value, rename_indices(count, dict(zip(first.indices, indices, strict=True)))))

    def _slope_of_product(self, flat: Flat) -> Expr:
        """The derivative of a product over index variables with respect to its factor."""
        name, is_zero = flat.target.tensor, equals(flat.body, ZERO)
        zeros, others = (_access(self._name(f"{word}_{name}"), flat.indices) for word in ("zeros", "others"))
        self._emit(zeros, Reduce("sum", flat.reduced, chosen(is_zero, ONE)))
        self._emit(others, Reduce("prod", flat.reduced, Call("where", (is_zero, ONE, flat.body))))
        return product_slope(flat.body, flat.target, zeros, others)

    def _contribute(self, access: Access, expr: Expr, variables: tuple[str, ...]) -> None:
        """Adds a contribution; an index other than a distinct plain variable is solved for, or becomes a condition."""
        plain = {index.name for index in access.indices if isinstance(index, Index)}
        indices: list[str] = []
        for mode in range(len(access.indices)):
            index = access.indices[mode]
            if isinstance(index, Index) and index.name not in indices and index.name in variables:
                indices.append(index.name)
                continue
            place = fresh("p", self.variables)
            self.variables.add(place)
            indices.append(place)
            solved = self._solvable(index, expr, [name for name in variables if name not in plain])
            if solved is None:
                expr = chosen(equals(Index(place), index), expr)
                continue
            form = affine(index)
            assert form is not None, "indices are affine"
            inside = put(expr, solved, form.solved(solved, place))
            if not self._fits(inside, place, self._extents(access.tensor)[mode]):
                expr = chosen(equals(Index(place), index), expr)
                continue
            expr = inside
            found = put(access, solved, form.solved(solved, place))
            assert isinstance(found, Access), "a substitution keeps accesses"
            access = found
            variables = tuple(name for name in variables if name != solved)
        expr = self._drop_guard(expr)
        summed = tuple(name for name in variables if name not in indices)
        self.parts.setdefault(access.tensor, []).append(Part(tuple(indices), summed, expr))

    def _extents(self, name: str) -> tuple[str, ...]:
        """The names of the extents of a tensor."""
        return (self.declarations.get(name) or self.program.declaration(name)).extents

    def _fits(self, expr: Expr, place: str, extent: str) -> bool:
        """Whether `place` as a plain index runs over modes of the given extent only, and so stays in bounds."""
        extents = {d.name: d.extents for d in (*self.program.declarations, *self.declarations.values())}
        return all(
            index != Index(place) or own == extent
            for read in find(expr, Access)
            if read.tensor in extents
            for index, own in zip(read.indices, extents[read.tensor], strict=True)
        )

    def _solvable(self, index: Expr, expr: Expr, variables: Sequence[str]) -> str | None:
        """The index variable determined by the value of an index: `h` of `p = 2*h + r - 1` is `(p - r + 1) / 2`.

        Out-of-bounds values of `h` have to contribute nothing. The largest factor leaves the fewest values.
        """
        form = affine(index)
        terms = dict(() if form is None else form.terms)
        declared = [*self.program.declarations, *self.declarations.values()]
        fills = {d.name: float(d.fill) for d in declared}
        found = [name for name in variables if name in terms and vanishes(expr, name, fills)]
        return max(found, key=lambda name: abs(terms[name]), default=None)

    def _drop_guard(self, expr: Expr) -> Expr:
        """`where(stored(A[i,j]), e, 0) -> e` for an `e` that is 0 outside the pattern of A."""
        match expr:
            case Call("where", (Stored(access), yes, Const(0))):
                is_plain = all(isinstance(index, Index) for index in access.indices)
                root = pattern_root(self.program, access)
                if root is not None and is_plain and self._is_confined(yes, root):
                    return yes
        return expr

    def _is_confined(self, expr: Expr, root: Access) -> bool:
        """Whether `expr` is 0 at all unstored coordinates of `root`."""
        return is_confined(expr, root, [*self.program.declarations, *self.declarations.values()])

    def _cotangent(self, name: str) -> tuple[tuple[str, ...], Expr]:
        """The gradient of a program result as an access: to an existing tensor, or to the target of a new statement."""
        parts = self.parts[name]
        if len(parts) == 1 and not parts[0].summed and isinstance(parts[0].expr, Access):
            return parts[0].indices, parts[0].expr
        indices = self._indices_of(name)
        target = _access(self._name(f"d_{name}"), indices)
        if name not in self.recomputed:
            self._declare_gradient(name, target.tensor)
        value = self._total(name, indices)
        self._emit(target, value)
        if not isinstance(shared := simplify(value), Const):
            self.shared.append((shared, target))
        return indices, target

    def _total(self, name: str, indices: tuple[str, ...]) -> Expr:
        """The sum of all contributions to the gradient of a tensor, at the given index variables."""
        root = None if name in self.recomputed else pattern_root(self.program, _access(name, indices))
        parts: list[Expr] = []
        for part in self.parts[name]:
            append(parts, self._rename_part(part, indices))
        if name in self.again:
            total = reduce(lambda left, right: Call("add", (left, right)), parts)
            stored = pattern_access(self.program, _access(name, indices))
            return total if stored.tensor == name else chosen(Stored(stored), total)
        if root is not None and sum(map(self._is_product, parts)) > 1:
            parts = [self._confined_alone(name, root, part, indices) for part in parts]
        total = reduce(lambda left, right: Call("add", (left, right)), parts)
        if root is None or self._is_confined(total, root):
            return total
        return chosen(Stored(root), total)

    def _is_product(self, expr: Expr) -> bool:
        """Whether a contribution is a sum of products of sparse tensors: unconfined it outgrows its factors."""
        declared = {d.name: d for d in (*self.program.declarations, *self.declarations.values())}
        read = {n for n in find(expr, Access) if n.tensor in declared}
        sparse = [access for access in read if not declared[access.tensor].format.is_dense]
        return isinstance(expr, Reduce) and len(sparse) > 1

    def _confined_alone(self, name: str, root: Access, expr: Expr, indices: tuple[str, ...]) -> Expr:
        """A contribution as a separate tensor on the pattern, so that no entries outside the pattern are computed."""
        if not self._is_product(expr) or self._is_confined(expr, root):
            return expr
        target = _access(self._name(f"p_{name}"), indices)
        self._declare_gradient(name, target.tensor)
        self._emit(target, chosen(Stored(root), expr))
        return target

    def _rename_part(self, part: Part, indices: tuple[str, ...]) -> Expr:
        """A contribution as an expression over `indices`; clashing index variables are renamed."""
        names = dict(zip(part.indices, indices, strict=True))
        for name in (*part.summed, *all_indices((part.expr,))):
            if name not in names and name in indices:
                names[name] = fresh(name, self.variables)
                self.variables.add(names[name])
                self.renamed[names[name]] = name
        expr = rename_indices(part.expr, names)
        summed = tuple(names.get(name, name) for name in part.summed)
        return Reduce("sum", summed, expr) if summed else expr

    def _emit(self, target: Access, value: Expr) -> None:
        """Adds a statement; subexpressions computed by earlier statements become accesses."""
        value = simplify(value)
        for computed, access in self.shared:
            value = replace(value, computed, access)
        self.statements.append(Assign(target, None, value))
        self.kinds[target.tensor] = kind_of(value, self.kinds)

    def _declare_gradient(self, name: str, gradient: str) -> None:
        """Declares the gradient of a tensor: like the tensor, with fill 0, on its pattern."""
        own = self.program.declaration(name)
        root = pattern_root(self.program, _access(name, own.extents))
        self.declarations[gradient] = Declaration(
            gradient,
            own.extents,
            own.format,
            own.dtype,
            0.0,
            own.index_dtypes,
            None if root is None else root.tensor,
        )

    def _indices_of(self, name: str) -> tuple[str, ...]:
        """Distinct index variables for the modes of a tensor."""
        flat = next((flat for flat in self.flats if flat.target.tensor == name), None)
        if flat is not None:
            return flat.indices
        plain = [part.indices for part in self.parts.get(name, [])]
        extents = plain[0] if plain else self.program.declaration(name).extents
        indices: list[str] = []
        for extent in extents:
            indices.append(extent if extent not in indices else fresh(extent, self.variables | set(indices)))
        self.variables.update(indices)
        return tuple(indices)

    def _name(self, wanted: str) -> str:
        """A name for a new tensor."""
        name = fresh(wanted, self.tensors | self.variables)
        self.tensors.add(name)
        return name


def _reached(flats: Sequence[Flat], wrt: Sequence[str], without: Collection[str]) -> set[str]:
    """The tensors `wrt` and the results that depend on them, except results invariant under `without`."""
    active = set(wrt)
    for flat in flats:
        name = flat.target.tensor
        if name not in without and any(node.tensor in active for node in find(flat.body, Access)):
            active.add(flat.target.tensor)
    return active


def _access(name: str, indices: Sequence[str]) -> Access:
    """`name[indices]`."""
    return Access(name, tuple(map(Index, indices)))
