"""Digests of memory: 64 bits that differ when bytes differ, at the speed of memory.

In: `digest(tensor)`. Out: an integer, equal for equal entries of one dtype and shape within this process.

Two tensors that differ have equal digests with a probability of about 2^-64. The secret is drawn at each start, so that
nobody can prepare such tensors.
"""

import ctypes
import secrets
from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from sparsify.compiler import digest_source, native

Function = Callable[[int, int], int]
CHUNK_BYTES: Final = 1 << 20


def digest(tensor: torch.Tensor) -> int:
    """The digest of the entries of a strided tensor on the CPU, in the order in which they lie in memory."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = _contiguous(tensor)
    return _function()(tensor.data_ptr(), tensor.nbytes)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The entries one after the other in the order of their strides, those of expanded modes once."""
    with torch.no_grad():
        for mode, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[mode] > 1:
                tensor = tensor.narrow(mode, 0, 1)
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        return tensor.permute(order).resolve_conj().resolve_neg().contiguous()


@cache
def _function() -> Function:
    """The digest of so many bytes at an address; in Python where nothing can be compiled."""
    made = native.trampolines()
    if made is None:
        return interpreted
    words = (ctypes.c_uint64 * digest_source.WORDS)(
        *[secrets.randbits(64) | 1 for _ in range(digest_source.WORDS)]
    )
    signature = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function = signature((digest_source.SYMBOL, made.handle))

    def run(address: int, count: int) -> int:
        """The digest; the secret lives as long as this function."""
        found: int = function(address, count, words)
        return found

    return run


def interpreted(address: int, count: int) -> int:
    """The same by Python's hash of bytes, a tenth as fast; its secret is that of the process."""
    starts = range(0, count, CHUNK_BYTES)
    chunks = [ctypes.string_at(address + at, min(CHUNK_BYTES, count - at)) for at in starts]
    return hash((count, *map(hash, chunks)))
