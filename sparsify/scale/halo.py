"""The exchange of halo rows as operators of torch with gradients.

In: own rows [own, ...] and a plan. Out: `halo_exchange` gives `[own | halo]` rows, the halo from its owners;
`halo_reduce`, the adjoint, adds the halo part of an extended tensor to the rows of the owners.

The tag of the operators keeps graph passes from caching, merging or dropping a call: each process makes all calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from sparsify.runtime.failures import named
from sparsify.scale.parts import Part


@dataclass(frozen=True)
class HaloPlan:
    """The plan of an exchange, made once for each part.

    Attributes:
        own, halo: number of own rows, and of rows read from other processes.
        send_rows: int64 own rows, in the order of the receiving processes.
        send_counts, receive_counts: number of rows for, and from, each process.
        group: group of processes; None for all.
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
        """Bytes sent by this process in one exchange of rows of `row_bytes` bytes."""
        return len(self.send_rows) * row_bytes


_PLANS: list[HaloPlan] = []
TAGS: Final = (torch.Tag.nondeterministic_seeded,)
_REHEARSALS: list[list[str]] = []


@contextmanager
def rehearsing() -> Iterator[list[str]]:
    """Context manager: exchanges send nothing; the halo is a copy of own rows, and a sum is local.

    Kernels are timed and compared with torch's operators inside, in each process separately. The list collects the
    exchanges, each with a note of a gradient.
    """
    _REHEARSALS.append([])
    try:
        yield _REHEARSALS[-1]
    finally:
        _REHEARSALS.pop()


def is_rehearsed(name: str, rows: Tensor) -> bool:
    """Whether exchanges send nothing now; notes the exchange if so."""
    if _REHEARSALS:
        _REHEARSALS[-1].append(f"{name} of {rows.dtype} {list(rows.shape[1:])}")
    return bool(_REHEARSALS)


def note_gradient() -> None:
    """Notes a gradient of the latest exchange in a rehearsal."""
    if _REHEARSALS:
        _REHEARSALS[-1].append("its gradient")


def register(plan: HaloPlan) -> int:
    """The number of a plan in operators; plans live as long as the process."""
    _PLANS.append(plan)
    return len(_PLANS) - 1


def _travel(rows: Tensor, given: Sequence[int], taken: Sequence[int], plan: HaloPlan) -> Tensor:
    """Sends packed rows, `given` to each process, and receives `taken` from each: [sum of taken, ...]."""
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


def copies(rows: Tensor, count: int) -> Tensor:
    """`count` rows, cycling through copies of the given ones; zeros for no given rows."""
    if not len(rows):
        return rows.new_zeros((count, *rows.shape[1:]))
    return rows[torch.arange(count) % len(rows)]


@torch.library.custom_op("sparsify::halo_exchange", mutates_args=(), tags=TAGS)
def halo_exchange(rows: Tensor, plan: int) -> Tensor:
    """Own rows followed by the halo rows, [own + halo, ...]."""
    known = _PLANS[plan]
    if is_rehearsed("halo_exchange", rows):
        return torch.cat([rows, copies(rows, known.halo)])
    halo = _travel(rows[known.send_rows], known.send_counts, known.receive_counts, known)
    return torch.cat([rows, halo])


@halo_exchange.register_fake
def _exchanged(rows: Tensor, plan: int) -> Tensor:
    is_rehearsed("halo_exchange", rows)
    return rows.new_empty((rows.shape[0] + _PLANS[plan].halo, *rows.shape[1:]))


@torch.library.custom_op("sparsify::halo_reduce", mutates_args=(), tags=TAGS)
def halo_reduce(extended: Tensor, plan: int) -> Tensor:
    """Own rows plus the contributions from the halos of other processes, [own, ...]."""
    known = _PLANS[plan]
    if is_rehearsed("halo_reduce", extended):
        return extended[: known.own].clone()
    given = _travel(extended[known.own :], known.receive_counts, known.send_counts, known)
    return extended[: known.own].index_add(0, known.send_rows, given)


@halo_reduce.register_fake
def _reduced(extended: Tensor, plan: int) -> Tensor:
    is_rehearsed("halo_reduce", extended)
    return extended.new_empty((extended.shape[0] - _PLANS[plan].halo, *extended.shape[1:]))


@torch.library.custom_op("sparsify::all_reduce_sum", mutates_args=(), tags=TAGS)
def all_reduce_sum(values: Tensor, plan: int) -> Tensor:
    """The sum over all processes, the same in each."""
    found = values.clone(memory_format=torch.contiguous_format)
    if is_rehearsed("all_reduce_sum", values):
        return found
    with named("a sum over processes", _PLANS[plan].group):
        dist.all_reduce(found, group=_PLANS[plan].group)
    return found


@all_reduce_sum.register_fake
def _summed(values: Tensor, plan: int) -> Tensor:
    is_rehearsed("all_reduce_sum", values)
    return torch.empty_like(values, memory_format=torch.contiguous_format)


@torch.library.custom_op("sparsify::all_reduce_amax", mutates_args=(), tags=TAGS)
def all_reduce_amax(values: Tensor, modes: list[int], plan: int) -> Tensor:
    """The maximum along modes, kept with extent 1, over the rows of all processes; without a gradient.

    NaN entries of any process are the maximum, as in torch.
    """
    found = greatest(values, modes)
    if is_rehearsed("all_reduce_amax", values):
        return found
    is_number = found == found
    sent = torch.stack([torch.where(is_number, found, least_of(found.dtype)), (~is_number).to(found.dtype)])
    with named("a maximum over processes", _PLANS[plan].group):
        dist.all_reduce(sent, dist.ReduceOp.MAX, group=_PLANS[plan].group)
    return torch.where(sent[1] > 0, torch.nan, sent[0]) if found.is_floating_point() else sent[0].clone()


def greatest(values: Tensor, modes: list[int]) -> Tensor:
    """The maximum along modes, kept with extent 1; the least number of a dtype for no entries."""
    if values.numel():
        return values.amax(modes, keepdim=True)
    shape = [1 if mode in modes else size for mode, size in enumerate(values.shape)]
    return values.new_full(shape, least_of(values.dtype))


def least_of(dtype: torch.dtype) -> float:
    """The least number of a dtype."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


@all_reduce_amax.register_fake
def _greatest(values: Tensor, modes: list[int], plan: int) -> Tensor:
    is_rehearsed("all_reduce_amax", values)
    return values.new_empty([1 if mode in modes else size for mode, size in enumerate(values.shape)])


def _keep_plan(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    """Saves the plan for the gradient."""
    note_gradient()
    ctx.plan = inputs[1]


def _exchange_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The adjoint of an exchange: gradients of the halo go to the owners."""
    return halo_reduce(gradient, ctx.plan), None


def _reduce_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The adjoint of a sum into the owners: the gradient of the owners travels to the halos."""
    return halo_exchange(gradient, ctx.plan), None


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The adjoint of a sum read by each process: the gradients of all processes are added."""
    return all_reduce_sum(gradient, ctx.plan), None


torch.library.register_autograd("sparsify::halo_exchange", _exchange_backward, setup_context=_keep_plan)
torch.library.register_autograd("sparsify::halo_reduce", _reduce_backward, setup_context=_keep_plan)
torch.library.register_autograd("sparsify::all_reduce_sum", _sum_backward, setup_context=_keep_plan)
torch.library.register_autograd("sparsify::all_reduce_amax", lambda ctx, gradient: (None, None, None))
