"""Decisions on disk: what the compiler chose for a program and sizes, found again by other processes.

In: a question, `"schedule of Step(...)"`, sizes of operands, and a function that answers it. Out: the answer, from disk
where an earlier process found it.

`KEY.plan` holds the answers to one question for the first few sizes, as texts: reading them makes objects of the
classes that the caller names and executes nothing. Answers that are not worth keeping are known to this process alone.
The key changes with the compiler and with registered levels; the question says whatever else an answer depends on. A
file that is damaged, or that others could have written, is not there.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sparsify.compiler.cpp.toolchain import cache_directory, records
from sparsify.compiler.cpp.toolchain.fingerprint import fingerprint
from sparsify.compiler.einsum import serialize
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.options import Options
from sparsify.storage.known_levels import registered

T = TypeVar("T")
# Sizes that change with every call would fill the disk.
MOST_SIZES: Final = 16
UNREADABLE: Final = (SparsifyError, ValueError, TypeError, AttributeError, RecursionError, MemoryError)
# Answers that are not kept, by file and sizes: layers that are alike ask once.
_DOUBTED: Final[dict[tuple[Path, str], Any]] = {}


def recall(
    question: str,
    sizes: Sizes,
    answer: Callable[[], T],
    options: Options,
    is_kept: Callable[[T], bool] = lambda _: True,
    *,
    classes: Mapping[str, type] = serialize.CLASSES,
) -> T:
    """The result of `answer()`, of now or of an earlier question for the same sizes.

    Args:
        question: all that the answer depends on besides sizes and the compiler.
        sizes: of the operands, compared number by number.
        answer: finds what is not known, without effects of its own.
        options: the directory of kernels.
        is_kept: whether an answer is worth keeping for other processes.
        classes: of the objects in answers, by name.
    """
    key = hashlib.sha256(f"{question}\n{fingerprint()}\n{registered()}".encode()).hexdigest()[:40]
    path = cache_directory.cache_dir(options) / f"{key}.plan"
    known = _read(path)
    numbers = repr(sizes.without_operands())
    if numbers in known:
        with suppress(*UNREADABLE):
            found: T = serialize.read(known[numbers], classes)
            return found
    if (path, numbers) in _DOUBTED:
        doubted: T = _DOUBTED[path, numbers]
        return doubted
    made = answer()
    if not is_kept(made):
        _DOUBTED[path, numbers] = made
    elif len(known) < MOST_SIZES or numbers in known:
        # Nothing but time is lost where the disk is full or may not be written to, or the answer is no text that
        # reads back: nested too deep, or of other classes.
        with suppress(OSError, *UNREADABLE):
            text = repr(made)
            if repr(serialize.read(text, classes)) == text:
                records.write(path, json.dumps({**known, numbers: text}), options)
    return made


def _read(path: Path) -> dict[str, str]:
    """The answers in a file by sizes; none where it is missing or damaged."""
    with suppress(OSError, *UNREADABLE):
        known = json.loads(records.read(path))
        return {str(sizes): str(text) for sizes, text in known.items()}
    return {}
