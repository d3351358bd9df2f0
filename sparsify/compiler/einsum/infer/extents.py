"""Extents of index variables: equality classes, and values for given shapes.

In: `y[i] = sum(j, A[i,j] * x[j])` and the shapes of A and x. Out: `{"i": 3, "j": 4}`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.nodes import Access, Assign, Const, Index, Program
from sparsify.compiler.einsum.rename import all_indices, rename_indices
from sparsify.compiler.ir.node import walk
from sparsify.errors import EinsumError, ShapeError, UnsupportedProgramError

Mode = tuple[str, int]
MOST_EXTENT: Final = 2**63 - 1
# Bound on intermediate sums of an index.
MOST_MAGNITUDE: Final = 2**62


def accesses(statements: Iterable[Assign]) -> Iterator[Access]:
    """All accesses of the statements in order, right sides before their targets."""
    for statement in statements:
        for node in (*walk(statement.value), *walk(statement.target)):
            if isinstance(node, Access):
                yield node


def index_variables(statements: Iterable[Assign]) -> tuple[str, ...]:
    """The names of all index variables in order of appearance, targets first."""
    return all_indices(statements)


def mode_extents(statements: Sequence[Assign], ranks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The names of the extents of each tensor: one name for all index variables of a common mode.

    A mode that no plain index variable reads gets a fresh name, `x_0`.

    >>> from sparsify.compiler.einsum.text.parse import parse
    >>> mode_extents(parse("y[i] = A[i,j] * x[j]"), {"A": 2, "x": 1, "y": 1})["A"]
    ('i', 'j')
    """
    names = equal_extents(statements)
    variables = set(names)
    plain: dict[Mode, str] = {}
    for access in accesses(statements):
        for mode, index in enumerate(access.indices):
            if isinstance(index, Index):
                plain.setdefault((access.tensor, mode), names[index.name])
    result = {}
    for tensor, rank in ranks.items():
        result[tensor] = tuple(
            plain.get((tensor, mode)) or _unused(f"{tensor}_{mode}", variables) for mode in range(rank)
        )
    return result


def equal_extents(statements: Sequence[Assign]) -> dict[str, str]:
    """For each index variable the first variable of equal extent, due to common modes."""
    parent = {name: name for name in index_variables(statements)}
    order = {name: n for n, name in enumerate(parent)}
    first: dict[Mode, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for access in accesses(statements):
        for mode, index in enumerate(access.indices):
            if isinstance(index, Index):
                one = root(first.setdefault((access.tensor, mode), index.name))
                other = root(index.name)
                low, high = sorted((one, other), key=order.__getitem__)
                parent[high] = low
    return {name: root(name) for name in parent}


def bind_extents(
    statements: Sequence[Assign],
    shapes: Mapping[str, Sequence[int]],
    sizes: Mapping[str, int] | None = None,
    slices: Collection[str] = (),
) -> dict[str, int]:
    """The extent of each index variable, from the shapes of the inputs and from `sizes`.

    Args:
        slices: index variables of slices, which have to lie inside their modes.

    Raises:
        ShapeError: an index variable has two extents, or a constant index or a slice lies outside its mode.
        EinsumError: an index variable without an extent.
    """
    extents: dict[str, int] = dict(sizes or {})
    for name, size in extents.items():
        if not hasattr(size, "__index__") or isinstance(size, bool) or not 0 <= size <= MOST_EXTENT:
            raise ShapeError(f"the extent {size!r} of {name}; a whole number from 0 to {MOST_EXTENT}")
    source = dict.fromkeys(extents, "sizes")
    known: dict[str, tuple[int, ...]] = {name: tuple(shape) for name, shape in shapes.items()}
    for statement in statements:
        for access in accesses((statement,)):
            if access.tensor in known:
                _read_modes(access, known[access.tensor], extents, source)
                _check_slices(access, known[access.tensor], extents, slices)
        missing = [name for name in index_variables((statement,)) if name not in extents]
        if missing:
            raise EinsumError(
                f"{missing[0]} of `{statement}` has no extent: no input has it as an index by itself; "
                f"pass sizes={{{missing[0]!r}: ...}}"
            )
        for access in accesses((statement,)):
            if access.tensor in known:
                _check_numbers(access, known[access.tensor], extents)
        target = statement.target
        known.setdefault(
            target.tensor, tuple(extents[i.name] for i in target.indices if isinstance(i, Index))
        )
    check_magnitudes(statements, extents)
    return extents


def check_magnitudes(statements: Sequence[Assign], extents: Mapping[str, int]) -> None:
    """Raises for an affine index with intermediate values beyond int64, which would wrap around into its mode.

    Raises:
        ShapeError: index too large; the error names the access and the size of the index.
    """
    for access in accesses(statements):
        for mode, index in enumerate(access.indices):
            form = None if isinstance(index, Index) else affine(index)
            if form is None or (found := form.magnitude(extents)) <= MOST_MAGNITUDE:
                continue
            raise ShapeError(
                f"{access}: the index {index} of mode {mode} may reach 2**{found.bit_length()}, kernels compute "
                f"indices in int64; smaller factors, with every index below 2**62"
            )


def check_indices(program: Program, shapes: Mapping[str, Sequence[int]]) -> None:
    """`check_magnitudes` for a program whose operands have these shapes."""
    check_magnitudes(program.statements, declared_extents(program, shapes))


def program_extents(program: Program, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """`bind_extents` for a program, including its fixed extents and declarations."""
    return bind_extents(program.statements, shapes, declared_extents(program, shapes))


def declared_extents(program: Program, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The extents known from declarations: of declared names, and of plain indices at their modes."""
    sizes = dict(program.extents)
    for declared in program.declarations:
        if declared.name in shapes:
            for name, size in zip(declared.extents, shapes[declared.name], strict=True):
                sizes.setdefault(name, size)
    extents = {declared.name: declared.extents for declared in program.declarations}
    for access in accesses(program.statements):
        for index, name in zip(access.indices, extents.get(access.tensor, ()), strict=False):
            if isinstance(index, Index) and name in sizes:
                sizes.setdefault(index.name, sizes[name])
    return sizes


def _read_modes(
    access: Access, shape: tuple[int, ...], extents: dict[str, int], source: dict[str, str]
) -> None:
    """Binds the extents of an access's index variables, and checks known ones."""
    if len(shape) != len(access.indices):
        raise ShapeError(
            f"{access} has {len(access.indices)} indices and {access.tensor} has {len(shape)} modes "
            f"(shape {list(shape)}); write one index for each mode"
        )
    for mode, (index, size) in enumerate(zip(access.indices, shape, strict=True)):
        if isinstance(index, Index):
            before = extents.setdefault(index.name, size)
            if before != size:
                raise ShapeError(
                    f"{index.name} has extent {before} in {source[index.name]} and {size} in {access} "
                    f"(mode {mode}); an index variable has one extent in all statements"
                )
            source.setdefault(index.name, str(access))


def _check_numbers(access: Access, shape: tuple[int, ...], extents: Mapping[str, int]) -> None:
    """Raises for a constant index, `2` or `extent(j)`, out of bounds of its mode."""
    for mode, (index, size) in enumerate(zip(access.indices, shape, strict=True)):
        form = affine(index)
        if form is None or form.terms:
            continue
        at, _ = form.bounds(dict(extents))
        if not 0 <= at // form.divisor < size:
            raise ShapeError(
                f"{access}: index {Const(at // form.divisor)} is outside mode {mode}, which has extent {size}"
            )


def _check_slices(
    access: Access, shape: tuple[int, ...], extents: Mapping[str, int], slices: Collection[str]
) -> None:
    """Raises for a slice that exceeds its mode."""
    for mode, (index, size) in enumerate(zip(access.indices, shape, strict=True)):
        form = affine(index)
        if isinstance(index, Index) or form is None or not set(form.names) & set(slices):
            continue
        _, last = form.bounds(dict(extents))
        if last >= size and all(extents[name] for name in form.names):
            raise ShapeError(
                f"{access}: the index {index} reaches {last}, mode {mode} of {access.tensor} has extent {size}; "
                f"a slice ends inside its mode"
            )


def _unused(name: str, taken: set[str]) -> str:
    """`name`, with underscores appended if an index variable has the name."""
    while name in taken:
        name += "_"
    return name


def name_extents(program: Program) -> Program:
    """`program` with index variables that are no plain index in their statement named by their declared extents."""
    modes = {declared.name: declared.extents for declared in program.declarations}
    extents: dict[str, str] = {}
    for access in accesses(program.statements):
        for index, extent in zip(access.indices, modes[access.tensor], strict=True):
            if isinstance(index, Index):
                extents.setdefault(index.name, extent)
    statements = tuple(_name_extents(statement, extents) for statement in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


def _name_extents(statement: Assign, extents: Mapping[str, str]) -> Assign:
    """`y[n] = sum(k, x[n+k]) -> y[k] = sum(n, x[k+n])` if `k` and `n` have the declared extent `n`."""
    alone = {
        index.name
        for access in accesses((statement,))
        for index in access.indices
        if isinstance(index, Index)
    }
    names: dict[str, str] = {}
    for name in all_indices((statement,)):
        wanted = extents.get(name, name)
        if name in alone or wanted == name:
            continue
        if wanted in names or (wanted in all_indices((statement,)) and wanted not in alone):
            raise UnsupportedProgramError(
                f"`{statement}` has several index variables with the extent of {wanted} that are alone in no mode",
                f"a factor that has {name} as an index by itself",
            )
        names |= {name: wanted, wanted: name}
    return rename_indices(statement, names)
