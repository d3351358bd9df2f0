"""Dtypes of floating point around attention, whose kernels sum in float32 what they read in half precision.

In: queries and keys in bfloat16, a mask in float32. Out: `widest([q, k, mask]) == torch.float32`.
"""

from functools import reduce

import torch
from torch import fx

from sparsify.passes.graph.operators import tensor_value


def widest(nodes: list[fx.Node]) -> torch.dtype:
    """The dtype that holds the numbers of all tensors; truth values are none."""
    kinds = [value.dtype for node in nodes if (value := tensor_value(node)) is not None]
    return reduce(torch.promote_types, [kind for kind in kinds if kind.is_floating_point])


def is_within(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether what is computed in `dtype` is as exact where tensors are of `other`, halves being read as float32.

    >>> is_within(torch.float32, torch.bfloat16), is_within(torch.float64, torch.float32)
    (True, False)
    """
    wide = torch.promote_types(other, torch.float32)
    return torch.promote_types(dtype, wide) == wide
