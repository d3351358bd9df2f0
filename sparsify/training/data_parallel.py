"""Data-parallel training: gradients are all-reduced in buckets, overlapping with the backward pass.

In: `data_parallel(model)` in each process, once. Out: after `loss.backward()` every gradient is the mean over the
processes. Sparse parameters send only their stored values.

Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparsify.errors import DataError, public
from sparsify.runtime.failures import named
from sparsify.storage.tensor import SparseTensor
from sparsify.training.all_reduce import (
    BUCKET_BYTES,
    Parameters,
    broadcast_parameters,
    buckets_of,
    digest,
    named_parameters,
    require_same,
    stored,
)
from sparsify.training.set_mask import Optimizers


@dataclass
class Bucket:
    """Parameters with gradients sent in one message.

    Attributes:
        parameters: parameters of one dtype.
        waited: number of parameters without a gradient yet in the current backward pass.
        flat: the message, gradients followed by a flag for each parameter, 1 for a gradient in this process.
        work: the pending all-reduce.
    """

    parameters: list[Tensor]
    waited: int
    flat: Tensor | None = None
    work: Any = None


@dataclass(eq=False)
class Round:
    """The all-reduces of one backward pass.

    Attributes:
        buckets: buckets in sending order, equal in all processes.
        facts: digests of parameters, and their negatives: the maximum over processes shows differences.
        agreement: the pending all-reduce of `facts`; None after completion.
        sent: number of buckets sent.
        complete: identities of parameters with a complete gradient.
    """

    buckets: list[Bucket]
    facts: Tensor
    agreement: Any
    sent: int = 0
    complete: set[int] = field(default_factory=set)


class GradientReducer:
    """Parameter hooks that all-reduce gradients during the backward pass.

    Attributes:
        sent_bytes: bytes of gradients sent by this process in the last backward pass.
        early: number of buckets sent before the end of the backward pass.
    """

    def __init__(self, parameters: list[Tensor], group: Any = None, bucket_bytes: int = BUCKET_BYTES) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._frozen = [weakref.ref(parameter) for parameter in parameters if not parameter.requires_grad]
        # Parameters refer to hooks, and hooks to this object: a cycle invisible to the garbage collector.
        self._parameters = [weakref.ref(parameter) for parameter in trained]
        self.group, self.bucket_bytes = group, bucket_bytes
        self.sent_bytes = self.early = 0
        self._is_on = True
        self._round: Round | None = None
        self._bucket: dict[int, Bucket] = {}
        self._hooks = [p.register_post_accumulate_grad_hook(self._accumulated) for p in trained]

    @property
    def parameters(self) -> list[Tensor]:
        """The trained parameters still alive."""
        return [parameter for reference in self._parameters if (parameter := reference()) is not None]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager: gradients accumulate locally; the next backward pass outside sends the sums."""
        before, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = before

    def remove(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _accumulated(self, parameter: Tensor) -> None:
        """The hook of a parameter, called with the complete gradient of the backward pass."""
        if not self._is_on:
            return
        if (
            self._round is None or id(parameter) in self._round.complete
        ):  # complete: an error ended the last pass
            self._begin()
        current_round = self._round
        assert current_round is not None, "a pass has begun"
        current_round.complete.add(id(parameter))
        self._bucket[id(parameter)].waited -= 1
        while (
            current_round.sent < len(current_round.buckets)
            and not current_round.buckets[current_round.sent].waited
        ):
            self._send(current_round)

    def _begin(self) -> None:
        """Starts the round of a backward pass: buckets from the last parameter to the first, and the agreement."""
        for reference in self._frozen:
            if (parameter := reference()) is not None and parameter.requires_grad:
                raise DataError(
                    f"a parameter {list(parameter.shape)} that was frozen in data_parallel trains now, and its "
                    "gradient would stay in its process",
                    "reducer.remove(), and data_parallel(model) again, after parameters are frozen or trained",
                )
        parameters = self.parameters
        last_first = parameters[::-1]
        last_first.sort(key=lambda parameter: str(parameter.dtype))
        buckets = [Bucket(group, len(group)) for group in buckets_of(last_first, self.bucket_bytes)]
        self._bucket = {id(p): bucket for bucket in buckets for p in bucket.parameters}
        digests = torch.tensor([digest(parameter) for parameter in parameters], dtype=torch.int64)
        facts = torch.stack([digests, -digests])
        agreement = dist.all_reduce(facts, dist.ReduceOp.MAX, group=self.group, async_op=True)
        self._round = current_round = Round(buckets, facts, agreement)
        self.sent_bytes = self.early = 0
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(current_round))

    def _send(self, current_round: Round) -> None:
        """Starts the all-reduce of the next bucket, once all processes are known to have the same parameters.

        Raises:
            DataError: a parameter has another mask or shape in another process; no gradient has changed.
        """
        if current_round.agreement is not None:
            with named("gradients", self.group):
                current_round.agreement.wait()
            current_round.agreement = None
            self._round = None  # unless all is well
            require_same(self.parameters, current_round.facts)
            self._round = current_round
        bucket = current_round.buckets[current_round.sent]
        current_round.sent += 1
        parts = [
            stored(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket.parameters
        ]
        has_gradient = parts[0].new_tensor([float(p.grad is not None) for p in bucket.parameters])
        bucket.flat = torch.cat([*parts, has_gradient])
        self.sent_bytes += bucket.flat.nbytes
        with named("gradients", self.group):
            bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)

    def _end(self, current_round: Round) -> None:
        """Sends the remaining buckets at the end of a backward pass, and writes the means into the gradients."""
        if self._round is not current_round:
            return
        self.early = current_round.sent
        try:
            while current_round.sent < len(current_round.buckets):
                self._send(current_round)
        finally:
            self._round = None
            self._bucket = {}
        count = dist.get_world_size(self.group)
        for bucket in current_round.buckets:
            with named("gradients", self.group):
                bucket.work.wait()
            assert bucket.flat is not None, "all buckets are sent"
            *sums, has_gradient = bucket.flat.split(
                [*(stored(p).numel() for p in bucket.parameters), len(bucket.parameters)]
            )
            for parameter, total, is_there in zip(
                bucket.parameters, sums, has_gradient.tolist(), strict=True
            ):
                if is_there:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    values = stored(parameter.grad)
                    values.copy_((total / count).view(values.shape))


@public
def data_parallel(
    model: Parameters,
    optimizers: Optimizers = (),
    group: Any = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> GradientReducer:
    """All-reduces gradients during each backward pass; every process has the means at the end.

    Masks, values and buffers are copied from the first process. All processes make the same backward passes; a
    parameter without a gradient in some processes receives the mean, too. Accumulate gradients inside `no_sync()`.

    Args:
        model: a module or its parameters, in the same order everywhere.
        optimizers: optimizers with state that follows the masks.
        group: group of processes; by default all.
        bucket_bytes: maximum bytes of a message.

    Raises:
        DataError: in `backward()` of all processes, if the masks or shapes of a parameter differ between processes.
        ProcessError: in `backward()`, if another process ended.

    >>> reducer = data_parallel(model)                                     # doctest: +SKIP
    >>> loss.backward()                  # gradients are means             # doctest: +SKIP
    """
    source = dist.get_global_rank(group, 0) if group is not None else 0
    parameters = [parameter for _, parameter in named_parameters(model)]
    broadcast_parameters(
        model if isinstance(model, nn.Module) else parameters, optimizers, group, source=source
    )
    return GradientReducer(parameters, group, bucket_bytes)


@public
def distributed_data_parallel(model: nn.Module, **settings: Any) -> nn.parallel.DistributedDataParallel:
    """The model in torch's `DistributedDataParallel` for the dense parameters, with hooks reducing the sparse ones.

    Args:
        model: model with sparse parameters, and at least one trained dense one.
        settings: arguments of `DistributedDataParallel`.

    Raises:
        DataError: no dense parameter is trained.

    >>> ddp = distributed_data_parallel(model)                             # doctest: +SKIP
    >>> loss_of(ddp(x)).backward()       # gradients are means             # doctest: +SKIP
    """
    sparse = {name: p for name, p in model.named_parameters() if isinstance(p, SparseTensor)}
    if not any(p.requires_grad for name, p in model.named_parameters() if name not in sparse):
        raise DataError(
            "DistributedDataParallel of a model without a dense parameter that is trained",
            "sparsify.training.data_parallel(model)",
        )
    wrapper = nn.parallel.DistributedDataParallel
    ignored = {*getattr(model, "_ddp_params_and_buffers_to_ignore", ()), *sparse}
    wrapper._set_params_and_buffers_to_ignore_for_model(model, list(ignored))
    group = settings.get("process_group")
    # A separate group: its messages and the messages of DDP's reducer may be ordered differently in processes.
    sparse_group = dist.new_group(
        None if group is None else dist.get_process_group_ranks(group), backend="gloo"
    )
    reducer = data_parallel(list(sparse.values()), group=sparse_group)
    wrapped = wrapper(model, **settings)

    def follow(module: nn.Module, args: Any) -> None:
        """Keeps gradients local inside the `no_sync()` of DDP, decided at the forward pass."""
        reducer._is_on = wrapped.require_backward_grad_sync

    wrapped.register_forward_pre_hook(follow)
    return wrapped
