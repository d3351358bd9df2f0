"""The limit on the size of the cache, checked without a scan of the directory for each kernel.

In: a directory, the bytes just written, the limit. Out: the directory, pruned if grown too large.

A small file lists the writes of all processes since the last measurement; the process whose line exceeds the
limit deletes the least recently used files, down to three quarters, and restarts the list.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sparsify.compiler.cpp.toolchain import cache_directory, trust

# Bytes of the list before a new measurement: dates and lost lines make the list inexact.
MOST_LIST_BYTES: Final = 1 << 16


def written(directory: Path, added: int, max_bytes: int) -> None:
    """Records a write to a directory, and prunes a directory grown too large."""
    with suppress(OSError):
        used = _noted(directory / cache_directory.LOCKS / cache_directory.USED, added)
        if used is not None and used <= max_bytes:
            return
        target = max_bytes if used is None else max_bytes * 3 // 4
        _, kept = cache_directory.prune_directory(directory, target)
        trust.make(directory / cache_directory.LOCKS)
        trust.write(directory / cache_directory.LOCKS / cache_directory.USED, b"%d\n" % kept)


def _noted(place: Path, added: int) -> int | None:
    """The bytes in use including the added ones; `None` if a measurement is needed."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(place, flags), "r+b", buffering=0) as file:
            file.write(b"%d\n" % added)
            file.seek(0)
            content = file.read(MOST_LIST_BYTES + 1)
        return sum(map(int, content.split())) if len(content) <= MOST_LIST_BYTES else None
    except (OSError, ValueError):
        return None
