"""The folder where copies of data sets and trained weights are kept.

In: `folder("checkpoints")`. Out: a path that exists and can be written, under the user's cache directory.
"""

import os
import tempfile
import warnings
from pathlib import Path

import platformdirs

from sparsify import options
from sparsify.errors import CacheError


def folder(purpose: str) -> Path:
    """The folder for `purpose`, made if need be; in the temporary directory where that fails.

    Raises:
        CacheError: neither can be written.
    """
    chosen = options.current().cache_dir
    usual = (chosen or platformdirs.user_cache_path("sparsify")) / purpose
    if is_usable(usual):
        return usual
    spare = (
        Path(tempfile.gettempdir()) / f"sparsify-{os.getuid() if hasattr(os, 'getuid') else 'user'}" / purpose
    )
    if not is_usable(spare):
        raise CacheError(
            f"neither {usual} nor {spare} can be written", "set SPARSIFY_CACHE_DIR to a folder of yours"
        )
    warnings.warn(f"{usual} cannot be written; using {spare}", stacklevel=2)
    return spare


def is_usable(path: Path) -> bool:
    """Whether `path` is, or can be made, a folder of this user that takes new files."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=path):
            pass
        return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    except OSError:
        return False


def keep(file: Path, content: bytes) -> Path:
    """Writes `content` to `file` and returns that; readers find the old file or the new, never half."""
    handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(part).replace(file)
    finally:
        Path(part).unlink(missing_ok=True)
    return file
