"""Digests of memory: 64-bit hashes of bytes, at the speed of memory.

In: `digest(tensor)`. Out: an integer, equal for equal entries of one dtype and shape within this process; `sample`
reads at most 16 KiB of the entries.

Two different tensors have equal digests with a probability of about 2^-64. The secret is drawn at each start, so that
nobody can prepare collisions.
"""

import ctypes
import secrets
from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from sparsify.compiler.cpp.call import digest_source, foreign_call

Function = Callable[[torch.Tensor, int], int]
CHUNK_BYTES: Final = 1 << 20


def digest(tensor: torch.Tensor) -> int:
    """The digest of the entries of a strided CPU tensor, in memory order."""
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = _contiguous(tensor)
    return _function()(tensor, tensor.nbytes)


def sample(tensor: torch.Tensor) -> int:
    """The digest of 256 lines of 64 bytes at equal distances: changed by writes to a 256th of the entries in a row."""
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = _contiguous(tensor)
    return _sample()(tensor, tensor.nbytes)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The entries one after the other in the order of the strides; the entries of expanded modes once."""
    with torch.no_grad():
        for mode, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[mode] > 1:
                tensor = tensor.narrow(mode, 0, 1)
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        return tensor.permute(order).resolve_conj().resolve_neg().contiguous()


@cache
def _function() -> Function:
    """The digest function `(tensor, bytes)`; in Python without a compiler."""
    return _bound(is_sample=False) or interpreted


@cache
def _sample() -> Function:
    """The sample function `(tensor, bytes)`; the digest of all bytes without a compiler."""
    return _bound(is_sample=True) or interpreted


def _bound(is_sample: bool) -> Function | None:
    """A compiled function with the secret of this process."""
    made = foreign_call.trampolines()
    if made is None:
        return None
    signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    bind = signature((digest_source.SYMBOL, made.handle))
    function: Function = bind(secret_address(), is_sample)
    return function


def secret_address() -> int:
    """The address of the secret words of this process."""
    return ctypes.addressof(_secret())


@cache
def _secret() -> ctypes.Array[ctypes.c_uint64]:
    """Random words with the lifetime of the process."""
    words = [secrets.randbits(64) | 1 for _ in range(digest_source.WORDS)]
    return (ctypes.c_uint64 * digest_source.WORDS)(*words)


def interpreted(tensor: torch.Tensor, count: int) -> int:
    """The digest by Python's hash of bytes, a tenth as fast; the secret is Python's per-process hash secret."""
    address, starts = tensor.data_ptr(), range(0, count, CHUNK_BYTES)
    if not address and count:
        raise ValueError("a digest reads memory, and the tensor has none of its own")
    chunks = [ctypes.string_at(address + at, min(CHUNK_BYTES, count - at)) for at in starts]
    return hash((count, *map(hash, chunks)))
