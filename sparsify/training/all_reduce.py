"""Gradients and parameters of several processes: only stored values travel.

In: a model after `backward()` in each process of a group. Out: `all_reduce_gradients(model)` makes every gradient the
mean over the processes; at 90 % zeros a tenth of the bytes of dense gradients is sent.

`DistributedDataParallel` reads the dense memory of parameters, which sparse ones do not have.
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

BUCKET_BYTES: Final = 25 << 20
Parameters = nn.Module | Iterable[Tensor]


@public
def all_reduce_gradients(model: Parameters, group: Any = None, *, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Makes gradients the means over all processes of a group; how many bytes this process gave.

    Call it after `backward()`, after the last one of accumulated gradients, before clipping and the step. A parameter
    without a gradient in this process, and with one in another, gets that one's share.

    Args:
        model: a module or its parameters, in the same order everywhere.
        group: of processes; all of them without it.
        bucket_bytes: small gradients travel together, up to so many bytes.

    Raises:
        DataError: the masks or shapes of a parameter differ between processes. No gradient has changed.
    """
    parameters = [p for _, p in _named(model) if p.requires_grad]
    has_gradient = _agree(parameters, group)
    trained = [p for p, is_there in zip(parameters, has_gradient, strict=True) if is_there]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    count, sent = dist.get_world_size(group), 0
    for bucket in _buckets([_values(p.grad) for p in trained if p.grad is not None], bucket_bytes):
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
    """Gives every process the masks and values of one of them, once before training.

    Args:
        model: a module or its parameters, in the same order everywhere; buffers of a module are sent, too.
        optimizers: whose state follows the masks.
        group: of processes; all of them without it.
        source: the rank of the process that has the values.
    """
    for _, parameter in _named(model):
        if isinstance(parameter, SparseTensor):
            mask = mask_of(parameter).to(torch.uint8)
            dist.broadcast(mask, source, group=group)
            set_mask(parameter, mask.bool(), optimizers)
        dist.broadcast(_values(parameter), source, group=group)
    for buffer in model.buffers() if isinstance(model, nn.Module) else ():
        dist.broadcast(buffer.detach(), source, group=group)


def _named(model: Parameters) -> Iterator[tuple[str, Tensor]]:
    """The parameters with their names, or their numbers."""
    if isinstance(model, nn.Module):
        yield from model.named_parameters()
    else:
        yield from ((str(number), parameter) for number, parameter in enumerate(model))


def _values(tensor: Tensor) -> Tensor:
    """The memory of a tensor that travels."""
    found = tensor._vals if isinstance(tensor, SparseTensor) else tensor
    return found.detach()


def _agree(parameters: list[Tensor], group: Any) -> list[bool]:
    """Which parameters have a gradient in some process.

    Raises:
        DataError: a parameter is stored otherwise in another process.
    """
    told = [_digest(parameter) for parameter in parameters]
    there = [int(parameter.grad is not None) for parameter in parameters]
    both = torch.tensor([told, [-number for number in told], there], dtype=torch.int64)
    sizes = torch.tensor([len(told), -len(told)])
    dist.all_reduce(sizes, dist.ReduceOp.MAX, group=group)
    if sizes[0] != -sizes[1]:
        raise DataError(f"{len(told)} parameters, and another number in other processes", "build one model")
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    differ = (both[0] != -both[1]).nonzero()
    if len(differ):
        number = int(differ[0])
        raise DataError(
            f"parameter {number}, {list(parameters[number].shape)}, has another mask or shape in other processes",
            "set the same masks everywhere, or sparsify.training.broadcast_parameters(model)",
        )
    return [bool(flag) for flag in both[2]]


def _digest(parameter: Tensor) -> int:
    """A number below 2^32 that tells formats, shapes and patterns apart, the same in all processes."""
    if not isinstance(parameter, SparseTensor):
        return crc32(str(list(parameter.shape)).encode())
    pattern = parameter._pattern
    return pattern.cached("checksum", lambda: _checksum(pattern))


def _checksum(pattern: Pattern) -> int:
    """The same of a pattern."""
    found = crc32(f"{pattern.format} {list(pattern.shape)}".encode())
    for array in pattern.arrays_in_place():
        found = crc32(array.contiguous().numpy(), found)  # type: ignore[arg-type]
    return found


def _buckets(values: list[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The tensors in order, those of one dtype that follow each other together, up to so many bytes."""
    bucket: list[Tensor] = []
    for tensor in values:
        size = sum(other.nbytes for other in bucket) + tensor.nbytes
        if bucket and (bucket[0].dtype != tensor.dtype or size > most):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
