"""Gradients under the mask of a weight: entries outside of the mask are zeroed in place, in C++.

In: a gradient [3072, 768] and its mask as bits. Out: the same tensor, 0 for zero bits; each entry reads an eighth of a
byte, and its 4 bytes once. Without a compiler, torch makes another tensor.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.errors import CompilerError
from sparsify.options import Options, current
from sparsify.runtime.threads import count

DTYPES: Final = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
# Fewer entries are cleared by one thread.
LEAST_PARALLEL: Final = 1 << 15


def cleared_by(entries: int, dtype: torch.dtype, bits: Tensor) -> Callable[[Tensor], None] | None:
    """The function that zeroes entries of a tensor at zero bits; `None` without a compiler.

    Args:
        entries, dtype: size and dtype of the contiguous argument tensors.
        bits: int8, whole words of 8 bytes, the first entry in the lowest bit.

    >>> clear = cleared_by(3, torch.float32, torch.tensor([0b101, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int8))
    >>> values = torch.tensor([3.0, 5.0, 7.0])
    >>> clear(values)
    >>> values.tolist()
    [3.0, 0.0, 7.0]
    """
    options = current()
    run = _loaded(options) if dtype in DTYPES else None
    if run is None:
        return None
    sizes = (entries, dtype.itemsize)
    is_small = entries < LEAST_PARALLEL

    def clear(values: Tensor) -> None:
        run(sizes, (values, bits), 1 if is_small else count(options), None)

    return clear


@cache
def _loaded(options: Options) -> foreign_call.Call | None:
    """The function of the C++ text, `None` without a compiler."""
    source = resources.files("sparsify.compiler.cpp").joinpath("clear.cpp").read_text(encoding="utf-8")
    try:
        # The user's flags are for kernels.
        return foreign_call.bind(
            library(source, {}, replace(options, compiler_flags=()), symbol="sparsify_clear")
        )
    except CompilerError:
        return None
