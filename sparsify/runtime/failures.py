"""Failures of collectives, reported with the ranks that ended.

In: `with named("an exchange", group): dist.all_reduce(x)`. Out: nothing, or a `ProcessError` with the ranks that
did not answer.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch.distributed as dist

from sparsify.errors import ProcessError

ANSWER_SECONDS: Final = 2.0


@contextmanager
def named(what: str, group: Any = None) -> Iterator[None]:
    """Context manager: raises `ProcessError` with the missing ranks if the collective inside fails."""
    try:
        yield
    except RuntimeError as error:
        rank = dist.get_rank(group)
        gone = _missing(rank, dist.get_world_size(group))
        who = f"process {', '.join(map(str, gone))} ended or does not answer" if gone else _first_line(error)
        raise ProcessError(
            f"{what} failed in process {rank}: {who}",
            "see the output of that process, and start all of them again; the network interface is GLOO_SOCKET_IFNAME",
        ) from error


def _missing(rank: int, count: int) -> list[int]:
    """The ranks without a sign of life within `ANSWER_SECONDS`."""
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"sparsify/alive/{rank}", "1")
        until = time.monotonic() + ANSWER_SECONDS
        waited = set(range(count)) - {rank}
        while waited and time.monotonic() < until:
            waited = {other for other in waited if not store.check([f"sparsify/alive/{other}"])}
            time.sleep(0.05)
        return sorted(waited)
    except (RuntimeError, OSError):  # the store went with process 0
        return [0] if rank else []


def _first_line(error: Exception) -> str:
    """The first line of an error text of torch."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
