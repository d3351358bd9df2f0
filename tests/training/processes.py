"""Processes of tests that talk over gloo."""

import time
from pathlib import Path

import torch.distributed as dist
import torch.distributed.nn  # noqa: F401  imported behind a group, with an optimizer, it keeps that group


def leave_together(rank: int, folder: Path, count: int = 2) -> None:
    """Ends the group once all processes have ended their last collective: ending it closes the connections.

    A process that exits while threads of the group run may abort.
    """
    (folder / f"{rank}.done").touch()
    until = time.monotonic() + 60
    while not all((folder / f"{other}.done").exists() for other in range(count)) and time.monotonic() < until:
        time.sleep(0.01)
    dist.destroy_process_group()
    assert not [name for name in threads() if "gloo" in name], "what refers to the group keeps its threads"


def threads() -> list[str]:
    """The names of this process's threads."""
    return [name.read_text() for name in Path("/proc/self/task").glob("*/comm")]
