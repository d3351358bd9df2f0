"""Processes of tests that talk over gloo."""

import time
from pathlib import Path


def leave_together(rank: int, folder: Path) -> None:
    """Waits until the other process has ended its last collective: one that leaves earlier closes its connections."""
    (folder / f"{rank}.done").touch()
    until = time.monotonic() + 60
    while not (folder / f"{1 - rank}.done").exists() and time.monotonic() < until:
        time.sleep(0.01)
