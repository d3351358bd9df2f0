"""An exchange of halo rows in two steps, as operators of torch with gradients.

In: the own rows of both halves of a part. Out: `exchange_begin` sends rows and returns a ticket; `exchange_halo` waits
and returns the halo rows. In backward passes, the gradient of `exchange_halo` begins to send the gradients of the halo,
`reduce_begin`, and that of `exchange_begin` waits for them, `reduce_end`; the two pairs are adjoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from sparsify.runtime.failures import named
from sparsify.scale.halo import (
    TAGS,
    HaloPlan,
    copies,
    halo_exchange,
    halo_reduce,
    is_rehearsed,
    note_gradient,
)
from sparsify.scale.overlap.halves import Half


@dataclass(frozen=True)
class HalvesPlan:
    """The plan of an exchange between parts in halves.

    Attributes:
        plan: exchange of the whole part.
        number: number of that plan in the operators of `scale.halo`.
        rows, columns: own rows of each half, and the rows that each half reads, as of `Half`.
        sent: for each half, int64 rows of the half that are sent, and their slots in the packed rows.
    """

    plan: HaloPlan
    number: int
    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]
    sent: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    @staticmethod
    def of(plan: HaloPlan, number: int, inner: Half, boundary: Half) -> "HalvesPlan":
        """The plan for the halves of a part; the plan of the whole part has a number of `halo.register`."""
        at = torch.full((2, plan.own), -1)
        for half, one in enumerate((inner, boundary)):
            at[half, one.rows] = torch.arange(len(one.rows))
        sent = [(rows[rows >= 0], (rows >= 0).nonzero().view(-1)) for rows in at[:, plan.send_rows]]
        columns = inner.columns, boundary.columns
        return HalvesPlan(plan, number, (inner.rows, boundary.rows), columns, (sent[0], sent[1]))


@dataclass(frozen=True)
class Pending:
    """Rows on their way: the received rows are complete after `work`, which reads `packed` until then."""

    work: Any
    received: Tensor
    packed: Tensor


_PLANS: list[HalvesPlan] = []
_PENDING: dict[int, Pending] = {}
_TICKETS: Final[Iterator[int]] = count(1)


def register(plan: HalvesPlan) -> int:
    """The number of a plan in operators; plans live as long as the process."""
    _PLANS.append(plan)
    return len(_PLANS) - 1


def _send(packed: Tensor, given: tuple[int, ...], taken: tuple[int, ...], plan: HaloPlan) -> Tensor:
    """A ticket for packed rows, `given` to each process, and `taken` from each."""
    packed = packed.contiguous()
    received = packed.new_empty((sum(taken), *packed.shape[1:]))
    width = packed.new_empty((1, *packed.shape[1:])).nbytes
    work = None
    if width and dist.get_world_size(plan.group) > 1:
        with named("an exchange of halo rows", plan.group):
            work = dist.all_to_all_single(
                received.view(-1).view(torch.uint8),
                packed.view(-1).view(torch.uint8),
                [rows * width for rows in taken],
                [rows * width for rows in given],
                group=plan.group,
                async_op=True,
            )
    ticket = next(_TICKETS)
    _PENDING[ticket] = Pending(work, received, packed)
    return torch.tensor([float(ticket)], dtype=torch.float64)


def _received(ticket: Tensor, plan: HaloPlan) -> Tensor:
    """The received rows of a ticket, [sum of taken, ...]."""
    pending = _PENDING.pop(int(ticket.item()))
    if pending.work is not None:
        with named("an exchange of halo rows", plan.group):
            pending.work.wait()
    return pending.received


def _no_ticket() -> Tensor:
    """The ticket of an exchange that sends nothing."""
    return torch.zeros(1, dtype=torch.float64)


@torch.library.custom_op("sparsify::exchange_begin", mutates_args=(), tags=TAGS)
def exchange_begin(inner: Tensor, boundary: Tensor, plan: int) -> Tensor:
    """Begins to send rows of both halves, [inner own, ...] and [boundary own, ...]; a ticket, float64 [1]."""
    if is_rehearsed("halo_exchange", boundary):
        return _no_ticket()
    halves = _PLANS[plan]
    packed = boundary.new_empty((len(halves.plan.send_rows), *boundary.shape[1:]))
    for own, (rows, slots) in zip((inner, boundary), halves.sent, strict=True):
        packed[slots] = own[rows]
    return _send(packed, halves.plan.send_counts, halves.plan.receive_counts, halves.plan)


@exchange_begin.register_fake
def _begun(inner: Tensor, boundary: Tensor, plan: int) -> Tensor:
    is_rehearsed("halo_exchange", boundary)
    return boundary.new_empty([1], dtype=torch.float64)


@torch.library.custom_op("sparsify::exchange_halo", mutates_args=(), tags=TAGS)
def exchange_halo(ticket: Tensor, like: Tensor, plan: int) -> Tensor:
    """The halo rows of a ticket, [halo, ...], with sizes and dtype of the rows of another tensor."""
    halves = _PLANS[plan]
    if is_rehearsed("the end of halo_exchange", like):
        return copies(like, halves.plan.halo)
    return _received(ticket, halves.plan)


@exchange_halo.register_fake
def _exchanged(ticket: Tensor, like: Tensor, plan: int) -> Tensor:
    is_rehearsed("the end of halo_exchange", like)
    return like.new_empty((_PLANS[plan].plan.halo, *like.shape[1:]))


@torch.library.custom_op("sparsify::reduce_begin", mutates_args=(), tags=TAGS)
def reduce_begin(halo: Tensor, plan: int) -> Tensor:
    """Begins to send contributions to rows of other processes, [halo, ...]; a ticket, float64 [1]."""
    if is_rehearsed("halo_reduce", halo):
        return _no_ticket()
    whole = _PLANS[plan].plan
    return _send(halo, whole.receive_counts, whole.send_counts, whole)


@reduce_begin.register_fake
def _reduce_begun(halo: Tensor, plan: int) -> Tensor:
    is_rehearsed("halo_reduce", halo)
    return halo.new_empty([1], dtype=torch.float64)


@torch.library.custom_op("sparsify::reduce_end", mutates_args=(), tags=TAGS)
def reduce_end(ticket: Tensor, sizes: list[int], dtype: torch.dtype, plan: int) -> tuple[Tensor, Tensor]:
    """The contributions of other processes to the own rows of both halves, [own, *sizes]."""
    halves = _PLANS[plan]
    found = [torch.zeros([len(rows), *sizes], dtype=dtype) for rows in halves.rows]
    if not is_rehearsed("the end of halo_reduce", found[1]):
        received = _received(ticket, halves.plan)
        for own, (rows, slots) in zip(found, halves.sent, strict=True):
            own.index_add_(0, rows, received[slots])
    return found[0], found[1]


@reduce_end.register_fake
def _reduce_ended(ticket: Tensor, sizes: list[int], dtype: torch.dtype, plan: int) -> tuple[Tensor, Tensor]:
    halves = _PLANS[plan]
    inner, boundary = (ticket.new_empty([len(rows), *sizes], dtype=dtype) for rows in halves.rows)
    is_rehearsed("the end of halo_reduce", boundary)
    return inner, boundary


@torch.library.custom_op("sparsify::halves_reduce", mutates_args=(), tags=TAGS)
def halves_reduce(inner: Tensor, boundary: Tensor, plan: int) -> tuple[Tensor, Tensor]:
    """`halo_reduce` of contributions to the rows read by each half; the sums of the own rows of each half."""
    halves = _PLANS[plan]
    whole = boundary.new_zeros((halves.plan.own + halves.plan.halo, *boundary.shape[1:]))
    for columns, part in zip(halves.columns, (inner, boundary), strict=True):
        whole.index_add_(0, columns, part)
    own = halo_reduce(whole, halves.number)
    return own[halves.rows[0]], own[halves.rows[1]]


@halves_reduce.register_fake
def _halves_reduced(inner: Tensor, boundary: Tensor, plan: int) -> tuple[Tensor, Tensor]:
    is_rehearsed("halo_reduce", boundary)
    halves = _PLANS[plan]
    first, second = (
        part.new_empty((len(rows), *part.shape[1:]))
        for part, rows in zip((inner, boundary), halves.rows, strict=True)
    )
    return first, second


def _keep_rows(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Saves the plan, and the sizes and the dtype of a row, for the gradient."""
    note_gradient()
    rows, ctx.plan = inputs[-2], inputs[-1]
    ctx.sizes, ctx.dtype = list(rows.shape[1:]), rows.dtype


def _exchange_begin_backward(ctx: Any, ticket: Tensor) -> tuple[Tensor, Tensor, None]:
    """The contributions of other processes to the gradients of both halves."""
    inner, boundary = reduce_end(ticket, ctx.sizes, ctx.dtype, ctx.plan)
    return inner, boundary, None


def _exchange_halo_backward(ctx: Any, halo: Tensor) -> tuple[Tensor, None, None]:
    """The gradients of the halo begin to travel to the owners."""
    return reduce_begin(halo, ctx.plan), None, None


def _reduce_begin_backward(ctx: Any, ticket: Tensor) -> tuple[Tensor, None]:
    """The gradients of the owners at the halo rows."""
    return exchange_halo(ticket, torch.empty([1, *ctx.sizes], dtype=ctx.dtype), ctx.plan), None


def _keep_plan(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Saves the plan for the gradient."""
    note_gradient()
    ctx.plan = inputs[-1]


def _reduce_end_backward(ctx: Any, inner: Tensor, boundary: Tensor) -> tuple[Tensor, None, None, None]:
    """The gradients of the owners begin to travel to the halos."""
    return exchange_begin(inner, boundary, ctx.plan), None, None, None


def _reduce_backward(ctx: Any, inner: Tensor, boundary: Tensor) -> tuple[Tensor, Tensor, None]:
    """The gradients of the owners travel to the halos."""
    halves = _PLANS[ctx.plan]
    own = boundary.new_empty((halves.plan.own, *boundary.shape[1:]))
    own[halves.rows[0]], own[halves.rows[1]] = inner, boundary
    whole = halo_exchange(own, halves.number)
    return whole[halves.columns[0]], whole[halves.columns[1]], None


for _name, _backward, _setup in (
    ("exchange_begin", _exchange_begin_backward, _keep_rows),
    ("exchange_halo", _exchange_halo_backward, _keep_plan),
    ("reduce_begin", _reduce_begin_backward, _keep_rows),
    ("reduce_end", _reduce_end_backward, _keep_plan),
    ("halves_reduce", _reduce_backward, _keep_plan),
):
    torch.library.register_autograd(f"sparsify::{_name}", _backward, setup_context=_setup)
