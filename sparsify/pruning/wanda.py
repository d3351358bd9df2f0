"""Wanda: prunes entries with the smallest magnitude times input norm, compared within each output.

In: a weight [outputs, inputs], `sum(t, X[t, i] ** 2)` for each input. Out: a mask, `True` where an entry is kept.

Source: Sun, Liu, Bair and Kolter, A Simple and Effective Pruning Approach for Large Language Models, 2023.
"""

from torch import Tensor

from sparsify.pruning.structure import Structure


def wanda_scores(weight: Tensor, squares: Tensor) -> Tensor:
    """`score[o, i] = abs(weight[o, i]) * sqrt(squares[i])`, [outputs, inputs].

    Args:
        weight: [outputs, inputs].
        squares: [inputs], `sum(t, X[t, i] ** 2)`.
    """
    return weight.detach().to(squares.dtype).abs() * squares.sqrt()


def wanda(weight: Tensor, squares: Tensor, structure: Structure, sparsity: float = 0.0) -> Tensor:
    """The mask of the kept entries.

    Args:
        weight: [outputs, inputs].
        squares: [inputs], `sum(t, X[t, i] ** 2)`.
        structure: structure of the zeros.
        sparsity: the share of zeros of each row, or of each row of blocks; ignored for groups n:m.

    Raises:
        ShapeError: groups or blocks do not divide the weight.
    """
    return structure.select(wanda_scores(weight, squares), sparsity, by_row=True)
