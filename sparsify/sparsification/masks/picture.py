"""Drawing of a pattern as characters: darker for a larger kept share.

In: the mask of a sliding window. Out:

    8 x 8, 34 % kept, a character is 1 x 1
    ██......
    ███.....
    .███....
"""

import torch

from sparsify.storage.tensor import SparseTensor

SHADES = ".░▒▓█"


def picture(mask: SparseTensor, width: int = 64) -> str:
    """A drawing of a mask with at most `width` characters a line; of [heads, rows, columns], one for each head.

    >>> from sparsify.sparsification.masks.patterns import causal
    >>> print(picture(causal(4, block=1)))
    4 x 4, 62 % kept, a character is 1 x 1
    █...
    ██..
    ███.
    ████
    """
    at = mask.coordinates()[:, mask.values() != 0]
    rows, columns = mask.shape[-2:]
    inside = (at[-2] < rows) & (at[-1] < columns)  # blocks reach beyond the end
    at = at[:, inside]
    if mask.dim() == 2:
        return _drawn(at, rows, columns, width)
    heads = [_drawn(at[1:, at[0] == head], rows, columns, width) for head in range(mask.shape[0])]
    return "\n\n".join(f"head {number}: {text}" for number, text in enumerate(heads))


def _drawn(at: torch.Tensor, rows: int, columns: int, width: int) -> str:
    """The drawing of the entries at the coordinates [2, n]."""
    cell = max(1, -(-max(rows, columns) // max(1, width)))
    lines, across = -(-rows // cell), -(-columns // cell)
    count = torch.bincount((at[0] // cell) * across + at[1] // cell, minlength=lines * across)
    shares = count.view(lines, across) / cell**2
    shades = (shares * (len(SHADES) - 1)).ceil().long().clamp(max=len(SHADES) - 1)
    density = at.shape[1] / max(1, rows * columns)
    head = f"{rows} x {columns}, {density:.0%} kept".replace("%", " %") + f", a character is {cell} x {cell}"
    return "\n".join([head, *("".join(SHADES[shade] for shade in line) for line in shades.tolist())])
