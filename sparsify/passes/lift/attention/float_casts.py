"""Floating-point dtypes around attention, whose kernels sum half-precision operands in float32.

In: queries and keys in bfloat16, a mask in float32. Out: `widest([q, k, mask]) == torch.float32`.
"""

from functools import reduce

import torch
from torch import fx

from sparsify.passes.graph.operators import tensor_value


def widest(nodes: list[fx.Node]) -> torch.dtype:
    """The promoted dtype of all floating-point tensors; truth values are ignored."""
    kinds = [value.dtype for node in nodes if (value := tensor_value(node)) is not None]
    return reduce(torch.promote_types, [kind for kind in kinds if kind.is_floating_point])


def is_within(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether tensors of `other`, half precision read as float32, are computed at least as exactly as `dtype`.

    >>> is_within(torch.float32, torch.bfloat16), is_within(torch.float64, torch.float32)
    (True, False)
    """
    wide = torch.promote_types(other, torch.float32)
    return torch.promote_types(dtype, wide) == wide
