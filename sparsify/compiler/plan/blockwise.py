"""n:m sparsity of results within the kernel that writes: an entry stays if few of its block are larger.

In: `Y[i,k] = relu(T[i,k])`, `csr` and two of every four neighbours. Out: the statements `all_of_Y[i,k] = relu(T[i,k])`
and `Y[i,k] = all_of_Y[i,k]`, the latter with the format `csr where sum(p, where(..., 1, 0)) < 2`: the kernel that
writes Y compares within the block and stores what stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch

from sparsify.compiler.einsum.infer.extents import accesses
from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.einsum.rewrite.restrict import stored_under
from sparsify.errors import ShapeError
from sparsify.storage.format import Format

LARGEST_BLOCK = 16
"""Each entry is compared with twice as many neighbours."""
PLACE, ALL = "place_in_block", "all_of_"


@dataclass(frozen=True, slots=True)
class Block:
    """Groups of `size` neighbours along the last mode, of which the `kept` largest stay; the first among equals."""

    kept: int
    size: int

    def condition(self, tensor: str, indices: tuple[str, ...]) -> str:
        """The condition under which an entry of a tensor stays, in index notation.

        >>> "mod(k, 2)" in Block(1, 2).condition("T", ("i", "k"))
        True
        """
        *rows, last = indices
        offset = self.size - 1
        near = f"{tensor}[{', '.join([*rows, f'{last}+{PLACE}-{offset}'])}]"
        here = f"{tensor}[{', '.join(indices)}]"
        theirs, own = (f"where({x} == {x}, abs({x}), inf)" for x in (near, here))
        place = f"mod({last}, {self.size}) + {PLACE}"
        inside = f"logical_and({place} >= {offset}, {place} < {offset + self.size})"
        before = f"logical_or({theirs} > {own}, logical_and({theirs} == {own}, {PLACE} < {offset}))"
        return f"sum({PLACE}, where(logical_and({inside}, {before}), 1, 0)) < {self.kept}"


@runtime_checkable
class Blocking(Protocol):
    """A sparsifier that decides within blocks of neighbours."""

    def block(self) -> Block | None:
        """The block; `None` where it decides otherwise."""


@dataclass(frozen=True, slots=True)
class Written:
    """Statements whose result is thinned out by blocks: their text, its result, format and further extents."""

    text: str
    output: str
    format: str
    sizes: dict[str, int]


def written(
    text: str,
    output: str | None,
    format: Any,
    sparsifier: Any,
    sizes: Mapping[str, int],
    operands: Mapping[str, Any],
) -> Written | None:
    """The statements with the condition of a blocking sparsifier; `None` where it follows the kernel.

    Raises:
        ShapeError: blocks do not divide the last mode.
    """
    block = sparsifier.block() if isinstance(sparsifier, Blocking) else None
    tensors = [operand for operand in operands.values() if isinstance(operand, torch.Tensor)]
    if block is None or block.size > LARGEST_BLOCK or not all(t.is_floating_point() for t in tensors):
        return None
    found = _rewritten(text, output, tuple(sizes), block)
    if found is None:
        return None
    statements, name, place = found
    if isinstance(format, str) and stored_under(format) is not None:
        return None  # a condition of its own, which is refused beside a sparsifier
    asked = Format({2: "csr"}.get(len(place), "csf") if format is None else format, rank=len(place))
    if not _is_listed(asked):
        return None
    extent = _extent(text, tuple(sizes), place[-1], sizes, operands)
    if extent is None:
        return None
    if extent % block.size:
        raise ShapeError(f"groups of {block.size} do not divide the last mode of {name}, {extent} entries")
    condition = block.condition(f"{ALL}{name}", place)
    return Written(statements, name, f"{asked} where {condition}", {**sizes, PLACE: 2 * block.size - 1})


@lru_cache(maxsize=1024)
def _rewritten(
    text: str, output: str | None, sizes: tuple[str, ...], block: Block
) -> tuple[str, str, tuple[str, ...]] | None:
    """The statements with the dense result under another name, the result, and its index variables.

    `None` for a result that is assigned more than once, reduced into, without modes, or read by other statements.
    """
    statements = parse(text, indices=sizes)
    name = statements[-1].target.tensor if output is None else output
    targets = [s for s in statements if s.target.tensor == name]
    if len(targets) != 1 or targets[0].monoid is not None or f"{ALL}{name}" in text or PLACE in text:
        return None
    (found,) = targets
    place = tuple(index.name for index in found.target.indices if isinstance(index, Index))
    if not place or len(place) != len(found.target.indices) or len({*place}) != len(place):
        return None
    if any(access.tensor == name for access in accesses(statements) if access is not found.target):
        return None
    dense = Access(f"{ALL}{name}", found.target.indices)
    copied = Assign(found.target, None, dense)
    lines = [replace(s, target=dense) if s is found else s for s in statements]
    return "\n".join(map(str, [*lines, copied])), name, place


def _extent(
    text: str, names: tuple[str, ...], index: str, sizes: Mapping[str, int], operands: Mapping[str, Any]
) -> int | None:
    """The extent of an index variable, from a mode that it indexes by itself."""
    if index in sizes:
        return sizes[index]
    for access in accesses(parse(text, indices=names)):
        operand = operands.get(access.tensor)
        for mode, own in enumerate(access.indices):
            if isinstance(own, Index) and own.name == index and isinstance(operand, torch.Tensor):
                return operand.shape[mode]
    return None


def _is_listed(format: Format) -> bool:
    """Whether kernels append entries to the format one by one."""
    known = all(
        s.level.name in ("dense", "compressed", "singleton") and s.level.is_ordered for s in format.levels
    )
    return bool(format.levels) and format.is_short and known and not format.is_dense
