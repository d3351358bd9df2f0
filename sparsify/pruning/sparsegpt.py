"""SparseGPT: entries become zero column by column, and later columns compensate the error.

In: a weight [outputs, inputs] and the gram matrix X^T X of the inputs. Out: a mask, and the updated weight.

Source: Frantar and Alistarh, SparseGPT: Massive Language Models Can be Accurately Pruned in One-Shot, 2023.
"""

from typing import Final

import torch
from torch import Tensor

from sparsify.errors import DataError
from sparsify.pruning.structure import Structure

COLUMNS: Final = 128
DAMPING: Final = 0.01
# Attempts to factor the matrix, each with tenfold damping.
ATTEMPTS: Final = 6
# Largest score of entries with an all-zero input, relative to the smallest positive score of other entries.
NEGLIGIBLE: Final = 1e-6


def sparsegpt(
    weight: Tensor,
    gram: Tensor,
    structure: Structure,
    sparsity: float = 0.0,
    *,
    columns: int = COLUMNS,
    damping: float = DAMPING,
) -> tuple[Tensor, Tensor]:
    """A mask, `True` where an entry is kept, and the updated weight, of the dtype of the weight.

    Args:
        weight: [outputs, inputs].
        gram: X^T X, [inputs, inputs].
        structure: structure of the zeros.
        sparsity: the share of zeros; ignored for groups n:m.
        columns: columns of a block: the mask is chosen block by block, and later columns are updated by one product.
        damping: damping of the diagonal, as a share of the diagonal's mean.

    Raises:
        ShapeError: groups or blocks do not divide the weight.
        DataError: the gram matrix cannot be factored.
    """
    structure.require_fit(weight.shape)
    updated = weight.detach().to(gram.dtype, copy=True)
    is_read = gram.diagonal() > 0
    factor = inverse_factor(gram, damping)
    mask = torch.empty(updated.shape, dtype=torch.bool)
    if structure.group:
        mask = structure.select(saliency(updated, factor.diagonal(), is_read), sparsity, by_row=False)
    step = structure.columns_at_once(columns, updated.shape)
    for start in range(0, updated.shape[1], step):
        stop = min(start + step, updated.shape[1])
        block_factor = factor[start:stop, start:stop]
        if not structure.group and not structure.is_along_inputs:
            scores = saliency(updated[:, start:stop], block_factor.diagonal(), is_read[start:stop])
            mask[:, start:stop] = structure.select(scores, sparsity, by_row=False)
        errors = update(
            updated[:, start:stop], block_factor, mask[:, start:stop], structure, is_read[start:stop]
        )
        updated[:, stop:] -= errors @ factor[start:stop, stop:]
    return mask, torch.where(mask, updated, 0).to(weight.dtype)


def saliency(weight: Tensor, diagonal: Tensor, is_read: Tensor) -> Tensor:
    """`score[o, i] = (weight[o, i] / diagonal[i]) ** 2`, the error of a zero at `[o, i]`.

    A zero at an all-zero input makes no error: entries of all-zero inputs have smaller scores than all others, ordered
    by magnitude, to be pruned first; the number of kept entries stays exact.

    Args:
        weight: [outputs, inputs].
        diagonal: [inputs], diagonal of the inverse factor.
        is_read: [inputs], `True` for inputs that are not always 0.

    >>> saliency(torch.tensor([[2.0, 9.0, 3.0]]), torch.ones(3), torch.tensor([True, False, False])).argsort().tolist()
    [[2, 1, 0]]
    """
    scores = (weight / diagonal).square()
    if is_read.all():
        return scores
    others, unread = scores[:, is_read], weight[:, ~is_read].square()
    positive = others[others > 0]
    least = positive.min() if positive.numel() else torch.ones(())
    largest = unread.max().clamp(min=torch.finfo(unread.dtype).tiny)
    scores[:, ~is_read] = unread / largest * (least * NEGLIGIBLE).to(unread.dtype)
    return scores


def update(block: Tensor, factor: Tensor, mask: Tensor, structure: Structure, is_read: Tensor) -> Tensor:
    """Prunes and compensates a block of columns in place; returns the errors for later columns.

    `errors[o, i] = (block[o, i] - kept[o, i]) / factor[i, i]`, `block[o, j] -= errors[o, i] * factor[i, j]` for j > i.

    Args:
        block: [outputs, columns], changed in place.
        factor: [columns, columns], upper triangular.
        mask: mask of the block; for groups along the inputs, written in place at the first column of each group.
        structure: structure of the zeros.
        is_read: [columns], `True` for inputs that are not always 0.
    """
    errors = torch.empty_like(block)
    for i in range(block.shape[1]):
        if structure.is_along_inputs and i % structure.of == 0:
            group = slice(i, i + structure.of)
            scores = saliency(block[:, group], factor.diagonal()[group], is_read[group])
            mask[:, group] = structure.select_in_groups(scores, 0.0)
        errors[:, i] = torch.where(mask[:, i], 0, block[:, i]) / factor[i, i]
        block[:, i:].addr_(errors[:, i], factor[i, i:], alpha=-1)
    return errors


def inverse_factor(gram: Tensor, damping: float) -> Tensor:
    """`factor^T factor = (gram + damping * mean(diagonal) * I)^-1`, upper triangular; a zero diagonal counts as 1.

    Raises:
        DataError: the matrix is not positive definite for any damping tried.
    """
    matrix = gram.clone()
    diagonal = matrix.diagonal()
    diagonal[diagonal <= 0] = 1
    mean, added = float(diagonal.mean()), 0.0
    for attempt in range(ATTEMPTS):
        shift = damping * 10**attempt * mean
        diagonal += shift - added
        added = shift
        lower, status = torch.linalg.cholesky_ex(matrix)
        if not status:
            upper: Tensor
            upper, status = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not status and upper.isfinite().all():
                return upper
    raise DataError(
        "the gram matrix of the inputs cannot be factored", "other calibration data, or `method: wanda`"
    )
