"""Gradients and parameters of several processes: only stored values travel.

In: a model after `backward()` in each process of a group. Out: `all_reduce_gradients(model)` makes every gradient the
mean over the processes; at 90 % zeros a tenth of the bytes of dense gradients is sent.

`DistributedDataParallel` reads the dense memory of parameters, absent in sparse ones.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparsify.errors import DataError, public
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor
from sparsify.training.set_mask import Optimizers, mask_of, set_mask

if dist.is_available():
    import torch.distributed.nn  # default arguments of its functions keep the group existing at import

BUCKET_BYTES: Final = 25 << 20
Parameters = nn.Module | Iterable[Tensor]


@public
def all_reduce_gradients(model: Parameters, group: Any = None, *, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Replaces gradients by their means over all processes of a group; the number of bytes sent by this process.

    Call after `backward()`, after the last one of accumulated gradients, before clipping and the step. A parameter
    with a gradient only in other processes receives the mean, too.

    Args:
        model: a module or its parameters, in the same order everywhere.
        group: group of processes; by default all.
        bucket_bytes: maximum bytes of a message with several small gradients.

    Raises:
        DataError: the masks or shapes of a parameter differ between processes. No gradient has changed.
    """
    parameters = [p for _, p in named_parameters(model) if p.requires_grad]
    has_gradient = _agree(parameters, group)
    trained = [p for p, is_there in zip(parameters, has_gradient, strict=True) if is_there]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    count, sent = dist.get_world_size(group), 0
    for bucket in buckets_of([p.grad for p in trained if p.grad is not None], bucket_bytes):
        bucket = [stored(gradient) for gradient in bucket]
        flat = torch.cat([values.reshape(-1) for values in bucket])
        dist.all_reduce(flat, group=group)
        flat /= count
        for values, mean in zip(bucket, flat.split([v.numel() for v in bucket]), strict=True):
            values.copy_(mean.view(values.shape))
        sent += flat.nbytes
    return sent


@public
def broadcast_parameters(
    model: Parameters, optimizers: Optimizers = (), group: Any = None, *, source: int = 0
) -> None:
    """Copies the masks and values of one process to all others, once before training.

    Args:
        model: a module or its parameters, in the same order everywhere; buffers of a module are sent, too.
        optimizers: optimizers with state that follows the masks.
        group: group of processes; by default all.
        source: rank of the source process.
    """
    for _, parameter in named_parameters(model):
        if isinstance(parameter, SparseTensor):
            mask = mask_of(parameter).to(torch.uint8)
            dist.broadcast(mask, source, group=group)
            set_mask(parameter, mask.bool(), optimizers)
        dist.broadcast(stored(parameter), source, group=group)
    for buffer in model.buffers() if isinstance(model, nn.Module) else ():
        dist.broadcast(buffer.detach(), source, group=group)


def named_parameters(model: Parameters) -> Iterator[tuple[str, Tensor]]:
    """The parameters with names, or with numbers."""
    if isinstance(model, nn.Module):
        yield from model.named_parameters()
    else:
        yield from ((str(number), parameter) for number, parameter in enumerate(model))


def stored(tensor: Tensor) -> Tensor:
    """The transmitted memory of a tensor."""
    memory = tensor._vals if isinstance(tensor, SparseTensor) else tensor
    return memory.detach()


def _agree(parameters: list[Tensor], group: Any) -> list[bool]:
    """Parameters with a gradient in at least one process.

    Raises:
        DataError: a parameter is stored otherwise in another process.
    """
    digests = [digest(parameter) for parameter in parameters]
    there = [int(parameter.grad is not None) for parameter in parameters]
    both = torch.tensor([digests, [-number for number in digests], there], dtype=torch.int64)
    sizes = torch.tensor([len(digests), -len(digests)])
    dist.all_reduce(sizes, dist.ReduceOp.MAX, group=group)
    if sizes[0] != -sizes[1]:
        raise DataError(
            f"{len(digests)} parameters, and another number in other processes", "build one model"
        )
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    require_same(parameters, both)
    return [bool(flag) for flag in both[2]]


def require_same(parameters: list[Tensor], most: Tensor) -> None:
    """Raises if digests differ between processes, given the maxima of the digests and of their negatives.

    Args:
        parameters: parameters of this process.
        most: [2 or more, parameters] the maxima.

    Raises:
        DataError: a parameter has another mask or shape in another process.
    """
    differ = (most[0] != -most[1]).nonzero()
    if len(differ):
        number = int(differ[0])
        raise DataError(
            f"parameter {number}, {list(parameters[number].shape)}, has another mask or shape in other processes",
            "set the same masks everywhere, or sparsify.training.broadcast_parameters(model)",
        )


def digest(parameter: Tensor) -> int:
    """A digest below 2^32 of format, shape and pattern, equal in all processes."""
    if not isinstance(parameter, SparseTensor):
        return crc32(str(list(parameter.shape)).encode())
    pattern = parameter._pattern
    return pattern.cached("checksum", lambda: _checksum(pattern))


def _checksum(pattern: Pattern) -> int:
    """The digest of a pattern."""
    crc = crc32(f"{pattern.format} {list(pattern.shape)}".encode())
    for array in pattern.arrays_in_place():
        crc = crc32(array.contiguous().numpy(), crc)  # type: ignore[arg-type]
    return crc


def buckets_of(tensors: list[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The tensors in order, with consecutive tensors of one dtype in one bucket of at most `most` stored bytes."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        added = stored(tensor).nbytes
        if bucket and (bucket[0].dtype != tensor.dtype or size + added > most):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += added
    if bucket:
        yield bucket
