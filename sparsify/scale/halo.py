"""The exchange of halo rows as operators of torch with gradients.

In: own rows [own, ...] and a plan. Out: `halo_exchange` gives `[own | halo]` rows, the halo from its owners;
`halo_reduce`, its adjoint, adds the halo's part of such a tensor to the rows of the owners.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparsify.scale.failures import named
from sparsify.scale.parts import Part


@dataclass(frozen=True)
class HaloPlan:
    """The plan of an exchange: rows that travel, made once for each part.

    Attributes:
        own, halo: rows of this process, and of others that it reads.
        send_rows: int64 own rows, those for process 0 first.
        send_counts, receive_counts: rows for, and from, each process.
        group: of processes; None for all of them.
    """

    own: int
    halo: int
    send_rows: Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    group: Any = None

    @staticmethod
    def of(part: Part, group: Any = None) -> "HaloPlan":
        """The plan of a part."""
        rows = part.send_rows.long()
        return HaloPlan(len(part.rows), len(part.halo), rows, part.send_counts, part.receive_counts, group)

    def sent_bytes(self, row_bytes: int) -> int:
        """Bytes that this process sends in one exchange of rows of so many bytes."""
        return len(self.send_rows) * row_bytes


_PLANS: list[HaloPlan] = []


def register(plan: HaloPlan) -> int:
    """The number by which operators know a plan; plans live as long as the process."""
    _PLANS.append(plan)
    return len(_PLANS) - 1


def _travel(rows: Tensor, given: Sequence[int], taken: Sequence[int], plan: HaloPlan) -> Tensor:
    """Sends packed rows, `given` to each process, and receives `taken` from each; [sum of taken, ...]."""
    packed = rows.contiguous()
    width = packed[:1].numel() if len(packed) else packed.new_empty((1, *packed.shape[1:])).numel()
    received = packed.new_empty((sum(taken), *packed.shape[1:]))
    if width == 0 or dist.get_world_size(plan.group) == 1:
        return received
    size = width * packed.element_size()
    with named("an exchange of halo rows", plan.group):
        dist.all_to_all_single(
            received.view(-1).view(torch.uint8),
            packed.view(-1).view(torch.uint8),
            [count * size for count in taken],
            [count * size for count in given],
            group=plan.group,
        )
    return received


@torch.library.custom_op("sparsify::halo_exchange", mutates_args=())
def halo_exchange(rows: Tensor, plan: int) -> Tensor:
    """Own rows with the halo behind them, [own + halo, ...]."""
    known = _PLANS[plan]
    halo = _travel(rows[known.send_rows], known.send_counts, known.receive_counts, known)
    return torch.cat([rows, halo])


@halo_exchange.register_fake
def _exchanged(rows: Tensor, plan: int) -> Tensor:
    return rows.new_empty((rows.shape[0] + _PLANS[plan].halo, *rows.shape[1:]))


@torch.library.custom_op("sparsify::halo_reduce", mutates_args=())
def halo_reduce(extended: Tensor, plan: int) -> Tensor:
    """Own rows plus what other processes have for them in their halos, [own, ...]."""
    known = _PLANS[plan]
    given = _travel(extended[known.own :], known.receive_counts, known.send_counts, known)
    return extended[: known.own].index_add(0, known.send_rows, given)


@halo_reduce.register_fake
def _reduced(extended: Tensor, plan: int) -> Tensor:
    return extended.new_empty((extended.shape[0] - _PLANS[plan].halo, *extended.shape[1:]))


@torch.library.custom_op("sparsify::all_reduce_sum", mutates_args=())
def all_reduce_sum(values: Tensor, plan: int) -> Tensor:
    """The sum over all processes, the same in each."""
    found = values.clone(memory_format=torch.contiguous_format)
    with named("a sum over processes", _PLANS[plan].group):
        dist.all_reduce(found, group=_PLANS[plan].group)
    return found


@all_reduce_sum.register_fake
def _summed(values: Tensor, plan: int) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _keep_plan(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    """Notes the plan for the gradient."""
    ctx.plan = inputs[1]


def _exchange_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The adjoint of an exchange: gradients of the halo go to the owners."""
    return halo_reduce(gradient, ctx.plan), None


def _reduce_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The adjoint of a sum into the owners: their gradient travels to the halos."""
    return halo_exchange(gradient, ctx.plan), None


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """Each process reads the sum, so gradients of all of them are added."""
    return all_reduce_sum(gradient, ctx.plan), None


torch.library.register_autograd("sparsify::halo_exchange", _exchange_backward, setup_context=_keep_plan)
torch.library.register_autograd("sparsify::halo_reduce", _reduce_backward, setup_context=_keep_plan)
torch.library.register_autograd("sparsify::all_reduce_sum", _sum_backward, setup_context=_keep_plan)
