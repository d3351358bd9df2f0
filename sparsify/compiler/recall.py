"""Decisions on disk: what the compiler chose for a program and sizes, found again by other processes.

In: a question, `"schedule of Step(...)"`, sizes of operands, and what answers it. Out: the answer, from disk where an
earlier process found it.

`KEY.plan` beside the kernels holds the answers to one question for the first few sizes that were met, behind a
checksum; what is not worth keeping is known to this process alone. The key changes with the compiler and with
registered levels; what else an answer depends on is for the question to say. Like kernels, answers are read only where
nobody else could have put them.
"""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sparsify.compiler.cpp import directories
from sparsify.compiler.fingerprint import fingerprint
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.storage.known_levels import registered

T = TypeVar("T")
# Sizes that change with every call would fill the disk.
MOST_SIZES: Final = 16
DIGEST_BYTES: Final = hashlib.sha256().digest_size
# Answers that are not kept, by file and sizes: layers that are alike ask once.
_DOUBTED: Final[dict[tuple[Path, str], Any]] = {}


def recall(
    question: str,
    sizes: Sizes,
    answer: Callable[[], T],
    options: Options,
    is_kept: Callable[[T], bool] = lambda _: True,
) -> T:
    """What `answer()` returns, or returned when the question was asked for the same sizes before.

    Args:
        question: all that the answer depends on besides sizes and the compiler.
        sizes: of the operands, compared number by number.
        answer: finds what is not known, without effects of its own.
        options: where kernels lie.
        is_kept: whether an answer is worth keeping for other processes.
    """
    directory = directories.cache_dir(options)
    key = hashlib.sha256(f"{question}\n{fingerprint()}\n{registered()}".encode()).hexdigest()[:40]
    path = directory / f"{key}.plan"
    known = _read(path) if directories.is_trusted(directory) else {}
    numbers = repr(sizes.without_operands())
    if numbers in known:
        with suppress(pickle.UnpicklingError, AttributeError, ImportError, TypeError, ValueError):
            found: T = pickle.loads(known[numbers])
            return found
    if (path, numbers) in _DOUBTED:
        doubted: T = _DOUBTED[path, numbers]
        return doubted
    made = answer()
    if not is_kept(made):
        _DOUBTED[path, numbers] = made
    elif len(known) < MOST_SIZES or numbers in known:
        # Nothing but time is lost where the disk is full or may not be written to, or the answer cannot be: nested
        # too deep, or of levels whose class no import finds.
        with suppress(OSError, RecursionError, pickle.PicklingError, AttributeError):
            _write(path, {**known, numbers: pickle.dumps(made)})
    return made


def _read(path: Path) -> dict[str, bytes]:
    """The answers in a file by sizes; none where it is missing or damaged."""
    try:
        content = path.read_bytes()
        digest, body = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            return {}
    except OSError:
        return {}
    with suppress(OSError):
        os.utime(path)  # `prune` keeps what is used
    known: dict[str, bytes] = pickle.loads(body)
    return known


def _write(path: Path, known: dict[str, bytes]) -> None:
    """Puts the answers in place of those that were there, at once."""
    directories.prepare(path.parent)
    body = pickle.dumps(known)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as work:
        whole = Path(work) / path.name
        whole.write_bytes(hashlib.sha256(body).digest() + body)
        os.replace(whole, path)
