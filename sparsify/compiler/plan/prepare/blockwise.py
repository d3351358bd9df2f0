"""Sparsifiers that compare the entries of a block, applied within the kernel that writes a result.

In: `Y[i,k] = relu(T[i,k])`, `csr` and two of every four neighbours. Out: the format `csr largest 2 of 4`, for which the
kernel that computes a row of Y compares within blocks and stores the selected entries. Blocks along another mode than
the last level's become blocks of rows of a format with that mode innermost, `csc largest 2 of 4`, converted afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Number, Real
from typing import Any, Final, Protocol, runtime_checkable

import torch

from sparsify.compiler.einsum import select
from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.extents import accesses
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Index, Reduce, Selection
from sparsify.compiler.einsum.rewrite.restrict import stored_under
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.ir.dtypes import torch_dtype
from sparsify.compiler.ir.node import Node, walk
from sparsify.compiler.operands.program_of import program_of
from sparsify.errors import ShapeError
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

# Operand dtypes for which a kernel can compare the entries of a result.
COMPARED: Final = tuple(map(torch_dtype, select.COMPARED))
# Reductions whose result has the dtype of the reduced expression.
PROMOTING: Final = (None, "sum", "prod", "max", "min")


@dataclass(frozen=True, slots=True)
class Block:
    """Blocks of neighbours along a mode, of which the `kept` largest stay; ties keep the first entries.

    Attributes:
        kept: number of entries kept in a block.
        size: entries of a block; `None`: the whole mode.
        mode: mode along which blocks lie.
        is_signed: whether entries are compared by value, not by magnitude.
    """

    kept: int
    size: int | None = None
    mode: int = -1
    is_signed: bool = False

    @property
    def selection(self) -> Selection:
        """The selection of a row's entries along the mode, as a kernel stores it."""
        return Selection(self.kept, self.size or 0, self.is_signed)


@runtime_checkable
class Blocking(Protocol):
    """A sparsifier that selects within blocks of neighbours."""

    def block(self) -> Block | None:
        """The block; `None` if the sparsifier selects by another criterion."""


@dataclass(frozen=True, slots=True)
class Written:
    """A result of which a kernel stores the largest entries of each block.

    Attributes:
        output: name of the result.
        format: text of the result's format in the kernel.
        rows: format in the kernel, without the selection.
        asked: requested format.
    """

    output: str
    format: str
    rows: Format
    asked: Format


def written(
    text: str,
    output: str | None,
    format: Any,
    sparsifier: Any,
    sizes: Mapping[str, int],
    operands: Mapping[str, Any],
) -> Written | None:
    """The format in which a kernel applies a blocking sparsifier; `None` if the sparsifier runs after the kernel.

    Raises:
        ShapeError: blocks do not divide the mode.
    """
    block = sparsifier.block() if isinstance(sparsifier, Blocking) else None
    if block is None or not all(map(_is_compared, operands.values())):
        return None
    found = _result(text, output, tuple(sizes))
    if found is None or not -len(found[1]) <= block.mode < len(found[1]):
        return None
    name, place, is_promoted = found
    if isinstance(format, str) and stored_under(format) is not None:
        return None  # the format has a condition; `under` refuses it beside a sparsifier
    asked = Format({2: "csr"}.get(len(place), "csf") if format is None else format, rank=len(place))
    if asked.is_dense or not asked.levels:
        return None
    is_simple = is_promoted and not any(isinstance(operand, SparseTensor) for operand in operands.values())
    if not is_simple and not _is_full(text, name, sizes, operands):
        return None
    mode = block.mode % len(place)
    if block.size is not None:
        extent = _extent(text, tuple(sizes), place[mode], sizes, operands)
        if extent is None:
            return None
        if extent % block.size:
            which = "the last mode" if mode == len(place) - 1 else f"mode {mode}"
            raise ShapeError(f"groups of {block.size} do not divide {which} of {name}, {extent} entries")
    ordering = (*(n for n in range(len(place)) if n != mode), mode)
    rows = Format(", ".join([*["dense"] * (len(place) - 1), "compressed"]), ordering)
    return Written(name, f"{rows} {block.selection}", rows, asked)


@lru_cache(maxsize=1024)
def _result(
    text: str, output: str | None, sizes: tuple[str, ...]
) -> tuple[str, tuple[str, ...], bool] | None:
    """The result, its index variables, and whether its dtype follows from the operands by promotion.

    `None` for fewer than two modes, or if other statements read the result.
    """
    statements = parse(text, indices=sizes)
    name = statements[-1].target.tensor if output is None else output
    targets = [s.target for s in statements if s.target.tensor == name]
    if not targets:
        return None
    places = {tuple(i.name for i in t.indices if isinstance(i, Index)) for t in targets}
    place = min(places)
    is_plain = len(places) == 1 and len(place) == len(targets[0].indices) == len({*place}) > 1
    is_read = any(a.tensor == name for a in accesses(statements) if not any(a is t for t in targets))
    is_promoted = all(
        assign.monoid in PROMOTING and all(map(_promotes, walk(assign.value))) for assign in statements
    )
    return (name, place, is_promoted) if is_plain and not is_read else None


def _promotes(node: Node) -> bool:
    """Whether the dtype of a subexpression follows from its operands' dtypes by promotion."""
    match node:
        case Call(function):
            known = FUNCTIONS.get(function)
            return known is not None and known.result in ("promote", "float") and not known.body
        case Reduce(monoid):
            return monoid in PROMOTING
        case Const(value):
            return not isinstance(value, bool)
    return isinstance(node, Access | Index)


def _is_compared(operand: Any) -> bool:
    """Whether entries of the operand's dtype can be compared; complex numbers cannot."""
    if isinstance(operand, torch.Tensor):
        return operand.dtype in COMPARED
    return not isinstance(operand, Number) or isinstance(operand, Real)


def _is_full(text: str, name: str, sizes: Mapping[str, int], operands: Mapping[str, Any]) -> bool:
    """Whether the result has a computed value at each coordinate, of a dtype that can be compared."""
    program, _ = program_of(text, name, None, sizes, operands)
    if program.declaration(name).dtype not in select.COMPARED:
        return False
    known = {declared.name: declared for declared in program.declarations}
    values = [s.value for s in program.statements if isinstance(s, Assign) and s.target.tensor == name]
    return all(infer_sparsity(value, known).fill is None for value in values)


def _extent(
    text: str, names: tuple[str, ...], index: str, sizes: Mapping[str, int], operands: Mapping[str, Any]
) -> int | None:
    """The extent of an index variable, from `sizes` or from a mode indexed by the plain variable."""
    if index in sizes:
        return sizes[index]
    for access in accesses(parse(text, indices=names)):
        operand = operands.get(access.tensor)
        for mode, own in enumerate(access.indices):
            if isinstance(own, Index) and own.name == index and isinstance(operand, torch.Tensor):
                return operand.shape[mode]
    return None
