"""The limit on the size of the cache, kept without walking through it for each kernel.

In: a directory, the bytes that were just written, the limit. Out: the directory, pruned when it has grown too large.

A small file lists what all processes have written since the files were measured; the process whose line exceeds the
limit deletes what was used longest ago, down to three quarters, and starts the list anew.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sparsify.compiler.cpp.toolchain import cache_directory, trust

# The list is measured anew after so many bytes: dates and lost lines make it inexact.
MOST_LIST_BYTES: Final = 1 << 16


def written(directory: Path, added: int, max_bytes: int) -> None:
    """Notes that a process has written to a directory, and prunes it where it has grown too large."""
    with suppress(OSError):
        used = _noted(directory / cache_directory.LOCKS / cache_directory.USED, added)
        if used is not None and used <= max_bytes:
            return
        target = max_bytes if used is None else max_bytes * 3 // 4
        _, kept = cache_directory.prune_directory(directory, target)
        trust.make(directory / cache_directory.LOCKS)
        trust.write(directory / cache_directory.LOCKS / cache_directory.USED, b"%d\n" % kept)


def _noted(place: Path, added: int) -> int | None:
    """The bytes in use with those that were added; `None` where they have to be measured."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(place, flags), "r+b", buffering=0) as file:
            file.write(b"%d\n" % added)
            file.seek(0)
            content = file.read(MOST_LIST_BYTES + 1)
        return sum(map(int, content.split())) if len(content) <= MOST_LIST_BYTES else None
    except (OSError, ValueError):
        return None
