"""Sparse weights with entries at random coordinates, subject to the blocks and groups of a format.

In: `random_mask((4, 8), Format("nm(2, 4)"), None, seed=0)`. Out: a mask with two of every four neighbours of a row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import FormatError, SparsifierError
from sparsify.pruning.masks import Plan, new_masks
from sparsify.pruning.schedule import Schedule
from sparsify.pruning.structure import Structure
from sparsify.sparsification.rules.largest import spread
from sparsify.sparsification.rules.streaming import require_fraction
from sparsify.storage.format import Format
from sparsify.storage.level.levels import Dense, Grouped
from sparsify.storage.pattern import Pattern

OF_KERNELS = {"csr": "dense, coordinate, coordinate, coordinate"}
"""Names of matrix formats, for the weights of convolutions: the columns of a row are places of its kernel."""


def weight_format(format: Any, rank: int) -> Format:
    """The format of a weight; `csr` of a convolution has a row for each output.

    Raises:
        FormatError: a format of another number of modes, or a dense format.

    >>> str(weight_format("csr", 4))
    'dense, coordinate, coordinate, coordinate'
    """
    if rank == 4 and isinstance(format, str):
        format = OF_KERNELS.get(format.strip(), format)
    result = Format(format, rank=rank)
    if result.is_dense:
        raise FormatError(
            f"the weight of a sparse layer in the format {result}", "csr, or a layer of torch.nn"
        )
    return result


def structure_of(format: Format, shape: Sequence[int]) -> tuple[tuple[int, ...], Structure]:
    """Blocks of a format (the dense levels below the last sparse level), and groups n:m of blocks.

    >>> structure_of(Format("bcsr(2, 4)"), (8, 8))[0]
    (2, 4)
    """
    sparse = [at for at, stored in enumerate(format.levels) if not isinstance(stored.level, Dense)]
    block = [1] * len(shape)
    for stored in format.levels[sparse[-1] + 1 :] if not format.has_diagonals else ():
        expression = stored.expression
        block[expression.mode] = expression.size if expression.kind == "within" else shape[expression.mode]
    for stored in format.levels:
        level, expression = stored.level, stored.expression
        if isinstance(level, Grouped) and level.n is not None and expression.kind == "within":
            return tuple(block), Structure(keep=level.n, of=expression.size, mode=expression.mode)
    return tuple(block), Structure()


def random_mask(shape: Sequence[int], format: Format, sparsity: float | None, seed: int) -> Tensor:
    """A random mask, bool [*shape], with an exact share of zeros and representable in the format.

    Args:
        shape: shape of the weight.
        format: format; blocks are kept or dropped as a whole, groups n:m imply the share of zeros.
        sparsity: the share of zeros; `None` for groups n:m.
        seed: equal seeds give equal masks.

    Raises:
        SparsifierError: a missing or invalid share, or a contradiction to the share of the groups.
        ShapeError: blocks or groups do not divide the shape.

    >>> int(random_mask((4, 8), Format("csr"), 0.75, seed=0).sum())
    8
    """
    block, groups = structure_of(format, shape)
    group_sparsity = 1 - groups.keep / groups.of if groups.is_grouped else None
    if sparsity is None and group_sparsity is None:
        raise SparsifierError(f"a sparse layer in the format {format}", "the share of zeros, sparsity=0.9")
    share = group_sparsity if sparsity is None else require_fraction("sparsity", sparsity)
    assert share is not None, "one of both is there"
    if group_sparsity is not None and abs(share - group_sparsity) > 1e-6:
        raise SparsifierError(
            f"sparsity={share:g} in the format {format}, whose groups have {group_sparsity:g}",
            "leave `sparsity` out, or another format",
        )
    Structure(block).require_fit(torch.Size(shape))
    blocks = torch.Size(extent // size for extent, size in zip(shape, block, strict=True))
    groups.require_fit(blocks)
    plan = Plan("random", Schedule("constant", to=share), structure=groups)
    drawn = new_masks(plan, {"weight": torch.zeros(()).expand(blocks)}, seed=seed)["weight"]
    return spread(drawn, block)


def stored_inside(pattern: Pattern) -> int:
    """The number of stored entries; the ends of diagonals outside of the shape are none.

    >>> import sparsify
    >>> stored_inside(sparsify.tensor(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), format="dia").pattern)
    1
    """
    inside = pattern.kept_inside()
    return pattern.nnz if inside is None else int(inside.sum())


def require_exact(pattern: Pattern, mask_entries: int) -> None:
    """Raises if a format stores entries outside of a mask (padding would be trained, too).

    Raises:
        FormatError: the format pads rows, diagonals or blocks.
    """
    stored = stored_inside(pattern)
    if stored != mask_entries:
        raise FormatError(
            f"{pattern.format} stores {stored} entries for a mask of {mask_entries}",
            "csr, or entries that fill the diagonals, rows or blocks of the format",
        )
