"""Processes sharing a graph: rendezvous, and checks before the first exchange.

In: the environment of `torchrun`. Out: a group of torch.distributed over gloo, or an error in every process.
"""

import atexit
import os
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any, Final

import torch
import torch.distributed as dist

import sparsify
from sparsify.errors import DataError, ProcessError, SparsifyError
from sparsify.runtime.failures import named

if dist.is_available():
    import torch.distributed.nn  # default arguments of its functions keep the group existing at import

EXTRA_S: Final = 1.0
VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join(timeout_s: float) -> None:
    """Joins this process to a group, unless already a member; a group of one without an environment of `torchrun`.

    Errors of this process alone are reported later, in `require_equal_start`, to all processes.

    Args:
        timeout_s: timeout for a process that does not answer.

    Raises:
        ProcessError: this build of torch has no gloo, or the rendezvous failed.
    """
    if not dist.is_available() or not dist.is_gloo_available():
        raise ProcessError("this torch has no gloo", "install a build of torch with distributed")
    if not dist.is_initialized():
        if any(name not in os.environ for name in VARIABLES):
            dist.init_process_group(
                "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
            )
        else:
            _meet(timeout_s)
        atexit.register(_leave)


def _leave() -> None:
    """Destroys the group while its threads can still be joined; a process exiting with a group aborts."""
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def require_count(parts: int, folder: Any) -> None:
    """Raises unless the number of processes equals the number of parts."""
    count = dist.get_world_size()
    if parts != count:
        raise ProcessError(
            f"{folder} has {parts} parts, and {count} process{'es run' if count > 1 else ' runs'}",
            f"torchrun --nproc-per-node {parts} SCRIPT, or sparsify partition GRAPH --parts {count}",
        )


def _meet(timeout_s: float) -> None:
    """Starts torch.distributed from the environment.

    The start runs in a thread: another service at the port may never answer, and torch waits without a limit.
    """
    rank, address, port = (os.environ[name] for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    errors: list[Exception] = []

    def start() -> None:
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        except Exception as error:  # raised again by the waiting thread
            errors.append(error)

    thread = Thread(target=start, daemon=True)
    thread.start()
    thread.join(timeout_s + EXTRA_S)
    if not thread.is_alive() and not errors:
        return
    text = str(errors[0]) if errors else "no answer"
    if "EADDRINUSE" in text or "already in use" in text:
        raise ProcessError(f"port {port} is in use", "torchrun --master-port with another one") from errors[0]
    raise ProcessError(
        f"process {rank} did not meet the others at {address}:{port} within {timeout_s:g} s: {text.splitlines()[0]}",
        "see whether all of them started, nothing else is at that port; GLOO_SOCKET_IFNAME names the interface",
    ) from (errors[0] if errors else None)


def agree(what: str, mine: Any) -> list[Any]:
    """An all-gather of small objects: the objects of all processes, in the order of ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    with named(what):
        dist.all_gather_object(found, mine)
    return found


def require_equal_start(graph: str, problem: SparsifyError | None) -> None:
    """Raises in every process if one cannot start, or has another graph or other versions.

    Args:
        graph: identity of the graph and its parts.
        problem: reason why this process cannot start, if any.
    """
    facts = {
        "graph": graph, "sparsify": sparsify.__version__, "torch": str(torch.__version__),
    }  # fmt: skip
    told = agree("the start", (str(problem or ""), isinstance(problem, ProcessError), facts))
    for rank, (text, is_of_processes, _) in enumerate(told):
        if text:
            raise (ProcessError if is_of_processes else DataError)(f"process {rank}: {text}")
    for rank, (*_, other) in enumerate(told):
        for name, value in facts.items():
            if other[name] != value:
                raise ProcessError(
                    f"process {rank} has {name} {other[name]}, and process {dist.get_rank()} {value}",
                    "give all of them the same folder and the same packages",
                )
