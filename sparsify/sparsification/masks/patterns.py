"""Attention patterns of any length: the keys attended to by each query.

In: `bigbird(4096, block=64, seed=0)`. Out: a mask, a `SparseTensor` [4096, 4096] of truth values in blocks of 64 x 64.

A mask is exact: for a pattern that cuts a block of storage, the block holds `False` outside the pattern. The last
blocks of a length that is no multiple of the block are cut, not padded. `print(picture(mask))` draws a mask.

Sources: Zaheer et al., Big Bird, 2020; Beltagy, Peters and Cohan, Longformer, 2020; Child, Gray, Radford and Sutskever,
Generating Long Sequences with Sparse Transformers, 2019.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from os import PathLike
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError, ShapeError, SparsifyError
from sparsify.sparsification.masks.block_sparse import block_sparse
from sparsify.sparsification.masks.blocks import assemble, stacked, stored_in_blocks
from sparsify.sparsification.masks.load_mask import load_mask
from sparsify.sparsification.masks.parts import Band, Grid, LastOfSegment, Part, SameSegment, Tokens
from sparsify.sparsification.masks.picture import picture
from sparsify.storage.tensor import SparseTensor

__all__ = [
    "bigbird",
    "block_diagonal",
    "causal",
    "fixed",
    "from_file",
    "from_tensor",
    "longformer",
    "picture",
    "sliding_window",
    "strided",
]


def bigbird(
    rows: int,
    columns: int | None = None,
    *,
    block: int = 64,
    window: int = 3,
    global_: int = 2,
    random: int = 3,
    seed: int = 0,
    heads: int | None = None,
    causal: bool = False,
) -> SparseTensor:
    """BigBird: a window of blocks, global blocks and random blocks.

    The defaults are taken from Hugging Face's models; `block=16, window=2, global_=1, random=2` is Scorch's
    configuration (Appendix, Table 3: its two global tokens lie in one block).

    Args:
        rows, columns: numbers of queries and keys; by default as many keys as queries.
        block: tokens on each side of a block.
        window: number of blocks around the block of queries attended to; an even number has one more before.
        global_: number of blocks attending to all and attended to by all, from both ends: for 2 the first and the last,
            for 3 two at the start.
        random: further blocks for each block of queries, drawn from the remaining ones.
        seed: random seed of the draws.
        heads: for a mask [heads, rows, columns] with separate draws for each head.
        causal: keep only keys not behind the query.

    Raises:
        ShapeError: a number too small.

    >>> mask = bigbird(1024, block=64)
    >>> tuple(mask.shape), round(mask.density, 2)
    ((1024, 1024), 0.55)
    """
    columns = _extents(rows, columns, block=block)
    _at_least(0, window=window, global_=global_, random=random, seed=seed)
    _at_least(1, heads=1 if heads is None else heads)
    counts = (-(-rows // block), -(-columns // block))
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for _ in range(heads or 1):
        mask = _bigbird_blocks(counts, window, global_, random, generator, causal)
        masks.append(assemble(rows, columns, (Grid(mask, block),), block, causal=causal))
    return masks[0] if heads is None else stacked(masks)


def _bigbird_blocks(
    counts: tuple[int, int], window: int, global_: int, random: int, generator: torch.Generator, causal: bool
) -> Tensor:
    """The blocks kept by BigBird."""
    rows, columns = (torch.arange(count) for count in counts)
    i, j = rows[:, None], columns[None, :]
    mask = (j - i >= -(window // 2)) & (j - i <= (window - 1) // 2)
    first, last = (global_ + 1) // 2, global_ // 2
    mask |= (i < first) | (i >= counts[0] - last) | (j < first) | (j >= counts[1] - last)
    drawn = torch.rand(counts, generator=generator)
    drawn[mask if not causal else mask | (j > i)] = -1.0
    best = drawn.topk(min(random, counts[1]), dim=1)
    return mask.scatter(1, best.indices, mask.gather(1, best.indices) | (best.values >= 0))


def longformer(
    rows: int,
    columns: int | None = None,
    *,
    window: int = 512,
    global_: int | Sequence[int] = 1,
    dilation: int = 1,
    block: int = 16,
    causal: bool = False,
) -> SparseTensor:
    """Longformer: a window of tokens, and global tokens.

    Args:
        rows, columns: numbers of queries and keys.
        window: number of other tokens attended to by a token, half of them on each side.
        global_: number of the first tokens, or the positions of tokens, that attend to all and are attended to by all.
        dilation: step between the tokens of the window; widens the window by the same factor.
        block: block of storage.
        causal: keep only keys not behind the query.

    Raises:
        ShapeError: a number too small, a token out of range.

    >>> mask = longformer(1024, window=64, global_=[0])
    >>> int(mask.values().sum()) - 1024 * 65  # the global token, less what the window loses at both ends
    926
    """
    columns = _extents(rows, columns, block=block, dilation=dilation)
    _at_least(0, window=window)
    reach = window // 2 * dilation
    parts = (Band(-reach, reach, dilation), _tokens(global_, rows, columns))
    return assemble(rows, columns, parts, block, causal=causal)


def sliding_window(
    rows: int,
    columns: int | None = None,
    *,
    before: int = 64,
    after: int | None = None,
    block: int = 16,
    causal: bool = False,
) -> SparseTensor:
    """Sliding window: each query attends to the nearest keys, `i - before <= j <= i + after`.

    Args:
        rows, columns: numbers of queries and keys.
        before, after: tokens on each side; by default as many after as before.
        block: block of storage.
        causal: keep only keys not behind the query.

    >>> sliding_window(4, before=1, block=1).to_dense().int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    columns = _extents(rows, columns, block=block)
    after = before if after is None else after
    _at_least(0, before=before, after=after)
    return assemble(rows, columns, (Band(-before, after),), block, causal=causal)


def strided(
    rows: int, columns: int | None = None, *, stride: int = 128, block: int = 16, causal: bool = True
) -> SparseTensor:
    """The strided pattern of Sparse Transformers: the last `stride` tokens, and every `stride`-th token.

    >>> strided(5, stride=2, block=1).to_dense().int()[4]
    tensor([1, 0, 1, 1, 1], dtype=torch.int32)
    """
    columns = _extents(rows, columns, block=block, stride=stride)
    far = max(rows, columns)
    near = Band(-stride, 0 if causal else stride)
    return assemble(rows, columns, (near, Band(-far, far, stride)), block, causal=causal)


def fixed(
    rows: int,
    columns: int | None = None,
    *,
    stride: int = 128,
    summary: int = 8,
    block: int = 16,
    causal: bool = True,
) -> SparseTensor:
    """The fixed pattern of Sparse Transformers: a token's own segment of `stride` tokens, and the end of each segment.

    Args:
        rows, columns: numbers of queries and keys.
        stride: tokens of a segment.
        summary: number of tokens at the end of each segment attended to by all.
        block: block of storage.
        causal: keep only keys not behind the query.
    """
    columns = _extents(rows, columns, block=block, stride=stride)
    if not 0 <= summary <= stride:
        raise ShapeError(f"summary={summary} is not between 0 and the stride {stride}")
    return assemble(
        rows, columns, (SameSegment(stride), LastOfSegment(stride, summary)), block, causal=causal
    )


def block_diagonal(
    rows: int, columns: int | None = None, *, size: int = 64, block: int | None = None, causal: bool = False
) -> SparseTensor:
    """Segments of `size` tokens attend to themselves; blocks of storage have the same size, up to 64."""
    if block is None:
        block = next((b for b in range(min(size, 64), 1, -1) if size % b == 0), 1)
    columns = _extents(rows, columns, block=block, size=size)
    return assemble(rows, columns, (SameSegment(size),), block, causal=causal)


def causal(rows: int, columns: int | None = None, *, block: int = 16) -> SparseTensor:
    """Each query attends to itself and to all previous tokens."""
    columns = _extents(rows, columns, block=block)
    return assemble(rows, columns, (Band(-max(rows, columns), 0),), block)


def from_tensor(mask: Any, *, block: int = 16, causal: bool = False) -> SparseTensor:
    """The pattern of the nonzero entries of a mask.

    Args:
        mask: [rows, columns] or [heads, rows, columns]: a dense or sparse tensor of torch or sparsify, an array, a
            matrix of scipy.
        block: block of storage.
        causal: keep only keys not behind the query.

    Raises:
        InvalidTensorError: not a matrix.
    """
    _at_least(1, block=block)
    return stored_in_blocks(mask, block, causal=causal)


def from_file(
    path: str | PathLike[str],
    rows: int | None = None,
    columns: int | None = None,
    *,
    block: int = 16,
    causal: bool = False,
) -> SparseTensor:
    """The pattern in a file: `.npy`, `.npz` of scipy, `.mtx`, or `.pt` with one tensor.

    Args:
        path: the file.
        rows, columns: required extents of the mask, if known.
        block: block of storage.
        causal: keep only keys not behind the query.

    Raises:
        InvalidTensorError: the file holds no mask.
        ShapeError: a mask for other lengths.
    """
    mask = from_tensor(load_mask(path), block=block, causal=causal)
    expected = (rows, rows if columns is None else columns)
    if rows is not None and tuple(mask.shape[-2:]) != expected:
        raise ShapeError(f"{path} holds a mask {list(mask.shape)}, and {list(expected)} is wanted")
    return mask


LONGEST: Final = 2**31 - 1
KINDS: Final[dict[str, Callable[..., SparseTensor]]] = {
    "bigbird": bigbird,
    "longformer": longformer,
    "sliding_window": sliding_window,
    "block_diagonal": block_diagonal,
    "causal": causal,
    "strided": strided,
    "fixed": fixed,
    "from_file": from_file,
    "block_sparse": block_sparse,  # of models, `given`; not available in recipes
}


def arguments(kind: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a kind from a recipe, with `global_` spelled as `global`.

    Raises:
        SparsifyError: an unknown argument, or a missing one.

    >>> arguments("bigbird", {"global": 2})
    {'global_': 2}
    """
    parameters = signature(KINDS[kind]).parameters
    spellings = {name.rstrip("_"): name for name in parameters if name not in ("rows", "columns")}
    for name in numbers:
        if name not in spellings:
            raise SparsifyError(f"the mask {kind} has no {name!r}", f"it has {', '.join(spellings)}")
    for name, parameter in spellings.items():
        if parameters[parameter].default is parameters[parameter].empty and name not in numbers:
            raise SparsifyError(f"the mask {kind} needs {name!r}")
    return {spellings[name]: value for name, value in numbers.items()}


def _extents(rows: int, columns: int | None, **sizes: int) -> int:
    """The number of keys, after checks of sizes and lengths."""
    columns = rows if columns is None else columns
    _at_least(0, rows=rows, columns=columns)
    _at_least(1, **sizes)
    return columns


def _at_least(least: int, **sizes: int) -> None:
    """Raises for the first argument that is no number, or too small."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= LONGEST:
            raise ShapeError(f"{name.rstrip('_')}={size!r}", f"a whole number from {least} to {LONGEST}")


def _tokens(chosen: int | Sequence[int], rows: int, columns: int) -> Part:
    """Global tokens, by their count or their positions."""
    if isinstance(chosen, int):
        _at_least(0, global_=chosen)
        chosen = range(min(chosen, rows, columns))
    for token in chosen:
        if not 0 <= token < max(rows, columns):
            raise InvalidTensorError(
                f"the global token {token} is none of {max(rows, columns)}", "places are counted from 0"
            )
    flags = [torch.zeros(extent, dtype=torch.bool) for extent in (rows, columns)]
    for flag in flags:
        flag[[token for token in chosen if token < len(flag)]] = True
    return Tokens(*flags)
