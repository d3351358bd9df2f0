"""Patterns of results with further modes than the operand they follow: the same arrays, dense levels below.

In: the pattern of `A[i,j]` in CSR, the format `i: dense, j: compressed, h: dense` and the shape of `S[h,i,j]`.
Out: a pattern with the `pos` and `crd` of A; results of one format and shape share it.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern


def shared_pattern(pattern: Pattern, format: Format, shape: Sequence[Any]) -> Pattern:
    """The pattern in `format`: the levels of `pattern`, and dense ones below; itself without further levels.

    Args:
        pattern: pattern of the operand.
        format: format of the result.
        shape: shape of the result.
    """
    further = len(format.levels) - len(pattern.format.levels)
    if not further:
        return pattern

    def extend() -> Pattern:
        pos, crd = ((*arrays, *[None] * further) for arrays in (pattern._pos, pattern._crd))
        return Pattern(format, shape, pos, crd, is_private=True).trusted()

    if any(type(array) is not Tensor for array in pattern.arrays_in_place()):
        return extend()  # of a traced graph, whose extents may be symbols
    return pattern.cached(("shared", format, tuple(shape)), extend)
