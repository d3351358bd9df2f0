"""Cache folders of data set copies and trained weights.

In: `folder("checkpoints")`. Out: the path of an existing writable folder, under the user's cache directory.
"""

import os
import tempfile
import warnings
from pathlib import Path

import platformdirs

from sparsify import options
from sparsify.errors import CacheError


def folder(purpose: str) -> Path:
    """Folder for `purpose`, created on demand; a temporary folder, with a warning, if the cache is not writable.

    Raises:
        CacheError: there is no place for a temporary one either.
    """
    chosen = options.current().cache_dir or platformdirs.user_cache_path("sparsify", appauthor=False)
    if is_usable(chosen / purpose):
        return chosen / purpose
    place = temporary() / purpose
    place.mkdir(exist_ok=True)
    warnings.warn(
        f"{chosen / purpose} cannot be written; {place} serves until this process ends", stacklevel=2
    )
    return place


def is_usable(path: Path) -> bool:
    """Whether `path` is, or can be made, a writable folder of this user."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=path):
            pass
        return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    except OSError:
        return False


def temporary() -> Path:
    """Temporary folder, removed at the end of the process."""
    if not _holders:
        try:
            _holders.append(tempfile.TemporaryDirectory(prefix="sparsify-", ignore_cleanup_errors=True))
        except OSError as error:
            raise CacheError(
                f"neither the cache nor a temporary folder can be written ({error})", "set SPARSIFY_CACHE_DIR"
            ) from None
    return Path(_holders[0].name)


_holders: list[tempfile.TemporaryDirectory[str]] = []


def keep(file: Path, content: bytes) -> Path:
    """Writes `content` to `file` atomically and returns `file`; readers find the old file or the new, never half."""
    handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(part).replace(file)
    finally:
        Path(part).unlink(missing_ok=True)
    return file
