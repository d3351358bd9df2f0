"""Texts beside the kernels: decisions of the compiler and figures of the machine.

In: a path in the cache and a text. Out: the same text in a later process, as long as the file is undamaged and nobody
else could have written the file.

The first line of a file is a checksum of the file name and the text.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from sparsify.compiler.cpp.toolchain import cache_directory, limit, trust
from sparsify.options import Options


def read(path: Path) -> str:
    """The text of a file; reading renews the date for `prune`.

    Raises:
        OSError: the file is missing, or others could have written it.
        ValueError: the file is damaged.
    """
    if reason := trust.refusal(path.parent):
        raise PermissionError(reason)
    checksum, _, text = trust.read(path).decode().partition("\n")
    if checksum != _checksum(path, text):
        raise ValueError(f"{path} is damaged")
    with suppress(OSError):
        os.utime(path)
    return text


def write(path: Path, text: str, options: Options) -> None:
    """Replaces the text of a file atomically.

    Raises:
        OSError: the directory is unusable.
    """
    content = f"{_checksum(path, text)}\n{text}".encode()
    cache_directory.prepare(path.parent)
    trust.write(path, content)
    limit.written(path.parent, len(content), options.cache_bytes)


def _checksum(path: Path, text: str) -> str:
    return hashlib.sha256(f"{path.name}\n{text}".encode()).hexdigest()
