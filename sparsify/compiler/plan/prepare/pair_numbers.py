"""Products of bfloat16 whose weights store pairs of neighbours: read as int32, multiplied by dot products.

In: `Y[t,n] = sum(k, X[t,k] * W[n,k])`, X and W of bfloat16, W `n: dense, k/2: compressed, k%2: dense`.
Out: `Y[t,n] = sum(kp, dot_bfloat16(X_pairs[t,kp], W_pairs[n,kp]))`, W_pairs `n: dense, kp: compressed`.

A pair of neighbours along the sum is 32 bits in memory: the operands are read in place, without a copy, and the loops
are those of a product of numbers of 32 bits. A row of X with an odd number of entries is copied with a zero at its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch

from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Declaration,
    Expr,
    Extent,
    Index,
    Program,
    Reduce,
)
from sparsify.compiler.einsum.packed_numbers import PAIR
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.einsum.rewrite.combine_statements import collect
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.operands.arguments import check_operand, match_extents, require_entries
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import FormatError
from sparsify.storage.format import Format, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Dense
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

NUMBERS: Final = "bfloat16"
PAIRS: Final = "int32"


@dataclass(frozen=True, slots=True)
class PairView:
    """The entries of an operand as pairs of neighbours along a mode, in the same memory.

    Attributes:
        result: name of the pairs.
        declared: declaration of the operand.
        mode: mode of the pairs; the last one of a dense operand.
        pair_extent: name of the number of pairs.
        format: format of the pairs.
        weight: weight with as many entries in its mode of the pairs; "" for the weight itself.
        weight_mode: mode of the pairs of the weight.
    """

    result: str
    declared: Declaration
    mode: int
    pair_extent: str
    format: Format
    weight: str = ""
    weight_mode: int = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return (self.declared.name, self.weight) if self.weight else (self.declared.name,)

    @property
    def extent(self) -> str:
        """The name of the extent of the mode."""
        return self.declared.extents[self.mode]

    def compute(self, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The pairs, int32.

        Raises:
            DtypeError, FormatError, ShapeError: an operand that does not match its declaration.
        """
        source, *weights = operands
        check_operand(self.declared, source)
        known = {self.extent: weights[0].shape[self.weight_mode]} if weights else {}
        match_extents(self.declared, source.shape, known)
        require_entries(self.declared.name, source._vals if isinstance(source, SparseTensor) else source)
        return self.pairs(operands)

    def pairs(self, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The pairs of operands that are known to match their declarations."""
        source = operands[0]
        if not isinstance(source, SparseTensor):
            return _pairs_of(source)
        pattern = source._pattern
        pairs = pattern.cached("pairs", lambda: self._pairs_of_pattern(pattern))
        return wrap(pairs, _pairs_of(source._vals), 0)

    def _pairs_of_pattern(self, pattern: Pattern) -> Pattern:
        """The pattern of the pairs, with the arrays of all levels but the last.

        Raises:
            FormatError: no pairs in the last level.
        """
        if not _has_pairs(pattern.format):
            raise FormatError(
                f"{self.declared.name} is stored {pattern.format}, the kernel takes {self.declared.format}",
                f"value.to(format={str(self.declared.format)!r})",
            )
        pattern = pattern.validated()
        mode = pattern.format.levels[-1].expression.mode
        shape = list(pattern.shape)
        shape[mode] = -(-shape[mode] // PAIR)
        arrays = pattern._pos[:-1], pattern._crd[:-1]
        form = _format(pattern.format, mode)
        return Pattern.of_arrays(form, tuple(shape), *arrays, pattern.nnz // PAIR)

    def sizes(self, sizes: Sizes) -> Sizes:
        """The sizes extended by those of the pairs."""
        extents, stored = dict(sizes.extents), dict(sizes.stored)
        if self.extent in extents:
            extents[self.pair_extent] = -(-extents[self.extent] // PAIR)
        if self.declared.name in stored:
            stored[self.result] = stored[self.declared.name] // PAIR
        return replace(sizes, extents=extents, stored=stored)

    def __str__(self) -> str:
        return f"{self.result} = pairs of {self.declared.name} along {self.extent}, in the same memory"


def _pairs_of(numbers: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours along the last mode; a zero follows an odd number of entries."""
    numbers = numbers.detach()
    if numbers.shape[-1] % PAIR:
        numbers = torch.nn.functional.pad(numbers, (0, 1))
    if not numbers.is_contiguous() or numbers.storage_offset() % PAIR:
        numbers = numbers.clone(memory_format=torch.contiguous_format)
    return numbers.view(torch.int32)


def paired(program: Program, sizes: Sizes) -> tuple[Program, tuple[PairView, ...], Sizes]:
    """The program with products of pairs, the pairs of its operands, and the sizes with theirs.

    Without such products: the program itself, and no pairs.
    """
    collected = collect(program)
    views: list[PairView] = []
    for weight in _weights(collected):
        found = _paired(collected, weight)
        if found is not None:
            collected, more = found
            views += more
    if not views:
        return program, (), sizes
    for view in views:
        sizes = view.sizes(sizes)
    return collected, tuple(views), sizes


def _weights(program: Program) -> Iterator[Declaration]:
    """The operands with pairs in their last level, below a level that lists the pairs."""
    roots = {declared.pattern_of for declared in program.declarations}
    for declared in program.declarations:
        if declared.name not in program.inputs or declared.dtype != NUMBERS or declared.fill != 0:
            continue
        if declared.format.is_dense or declared.pattern_of is not None or declared.name in roots:
            continue
        if _has_pairs(declared.format):
            yield declared


def _has_pairs(form: Format) -> bool:
    """Whether the last level has the numbers of a pair."""
    last = form.levels[-1]
    is_pair = last.expression.kind == "within" and last.expression.size == PAIR
    return is_pair and isinstance(last.level, Dense)


def _paired(program: Program, weight: Declaration) -> tuple[Program, tuple[PairView, ...]] | None:
    """The program with the products of a weight as products of pairs; `None` unless all its reads are such products."""
    mode = weight.format.levels[-1].expression.mode
    products = [
        product
        for statement in program.statements
        for part in find(statement, Reduce)
        if (product := _product(program, part, weight, mode)) is not None
    ]
    reads = [n for s in program.statements for n in find(s, Access) if n.tensor == weight.name]
    if not products or len(products) != len(reads):
        return None
    taken = {*all_indices(program.statements), *(d.name for d in program.declarations)}
    taken |= {name for d in program.declarations for name in d.extents} | dict(program.extents).keys()
    pair_extent = fresh(f"{products[0].sum.indices[0]}p", taken)
    taken.add(pair_extent)
    views = [PairView(_name(weight, taken), weight, mode, pair_extent, _format(weight.format, mode))]
    for name in dict.fromkeys(product.factor.tensor for product in products):
        factor = program.declaration(name)
        last = len(factor.extents) - 1
        views.append(
            PairView(_name(factor, taken), factor, last, pair_extent, factor.format, weight.name, mode)
        )
    names = {view.declared.name: view.result for view in views}
    made = {product.sum: product.of_pairs(names, pair_extent) for product in products}
    return _rewritten(program, made, views), tuple(views)


@dataclass(frozen=True, slots=True)
class _Product:
    """`sum(k, X[.., k] * W[n, k])`, the sum, its factor X and its weight W."""

    sum: Reduce
    factor: Access
    weight: Access

    def of_pairs(self, names: dict[str, str], index: str) -> Expr:
        """`sum(kp, dot_bfloat16(X_pairs[.., kp], W_pairs[n, kp]))`."""
        (summed,) = self.sum.indices

        def paired(access: Access) -> Access:
            indices = tuple(Index(index) if i == Index(summed) else i for i in access.indices)
            return Access(names[access.tensor], indices)

        return Reduce("sum", (index,), Call("dot_bfloat16", (paired(self.factor), paired(self.weight))))


def _product(program: Program, part: Reduce, weight: Declaration, mode: int) -> _Product | None:
    """A sum over the rows of a dense operand and of a weight with pairs along `mode`; `None` for other reductions."""
    match part:
        case Reduce("sum", (summed,), Call("mul", (Access() as left, Access() as right))):
            pass
        case _:
            return None
    factor, found = (left, right) if right.tensor == weight.name else (right, left)
    if found.tensor != weight.name or factor.tensor not in program.inputs:
        return None
    declared = program.declaration(factor.tensor)
    is_plain = all(isinstance(index, Index) for access in (factor, found) for index in access.indices)
    if not is_plain or not _is_row_major(declared) or declared.dtype != NUMBERS:
        return None
    last = Index(summed)
    if not factor.indices or factor.indices[-1] != last or found.indices[mode] != last:
        return None
    is_summed_once = factor.indices.count(last) == 1 == found.indices.count(last)
    return _Product(part, factor, found) if is_summed_once else None


def _is_row_major(declared: Declaration) -> bool:
    """Whether an operand is dense, contiguous, and stored in the order of its modes."""
    form = declared.format
    is_plain = form.is_dense and form.is_short and form.ordering == tuple(range(form.rank))
    return is_plain and declared.interior is None and not declared.is_number


def _name(declared: Declaration, taken: set[str]) -> str:
    """An unused name for the pairs of an operand."""
    name = fresh(f"{declared.name}_pairs", taken)
    taken.add(name)
    return name


def _format(form: Format, mode: int) -> Format:
    """The format of the pairs along a mode: without the last level, each pair a coordinate.

    >>> str(_format(Format("i/4: dense, j/2: compressed, i%4: dense, j%2: dense"), 1))
    'i/4: dense, j: compressed, i%4: dense'
    """
    return Format(
        tuple(
            StoredLevel(LevelExpression(mode), stored.level) if stored.expression.mode == mode else stored
            for stored in form.levels[:-1]
        )
    )


def _rewritten(program: Program, made: dict[Reduce, Expr], views: list[PairView]) -> Program:
    """The program with sums replaced, and the pairs as operands in place of operands no longer read."""

    def visit(node: Node) -> Node:
        return made[node] if isinstance(node, Reduce) and node in made else map_children(node, visit)

    statements = tuple(visit(statement) for statement in program.statements)
    read = {access.tensor for statement in statements for access in find(statement, Access)}
    sized = {part.name for statement in statements for part in find(statement, Extent)}
    gone = {d.name for d in (v.declared for v in views) if d.name not in read and not sized & {*d.extents}}
    declarations = [d for d in program.declarations if d.name not in gone]
    for view in views:
        declared = view.declared
        extents = list(declared.extents)
        extents[view.mode] = view.pair_extent
        dtypes = declared.index_dtypes if declared.format.is_dense else declared.index_dtypes[:-1]
        declarations.append(
            replace(
                declared,
                name=view.result,
                extents=tuple(extents),
                dtype=PAIRS,
                format=view.format,
                index_dtypes=dtypes,
            )
        )
    known = dict(program.extents)
    halved = {view.pair_extent: -(-known[view.extent] // PAIR) for view in views if view.extent in known}
    inputs = (*(name for name in program.inputs if name not in gone), *(view.result for view in views))
    return replace(
        program,
        statements=tuple(s for s in statements if isinstance(s, Assign)),
        declarations=tuple(declarations),
        inputs=inputs,
        extents=(*program.extents, *halved.items()),
    )
