"""Decision cache on disk: choices of the compiler for a program and sizes, shared between processes.

In: a question, `"schedule of Step(...)"`, sizes of operands, and a function that computes the answer. Out: the answer,
from disk if an earlier process found it.

`KEY.plan` holds the answers to one question for the first few sizes, as texts: reading a text makes objects of the
classes named by the caller and executes nothing. Rejected answers (`is_kept`) are memoized in the process only. The key
changes with the compiler and with registered levels; the question contains every other dependence of the answer. A
damaged file, or a file that other users could have written, counts as missing.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sparsify.compiler.cpp.toolchain import cache_directory, records
from sparsify.compiler.cpp.toolchain.fingerprint import fingerprint
from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.options import Options
from sparsify.storage.level.known_levels import registered

T = TypeVar("T")
# Most sizes in a file: sizes that change with every call would fill the disk.
MOST_SIZES: Final = 16
UNREADABLE: Final = (SparsifyError, ValueError, TypeError, AttributeError, RecursionError, MemoryError)
# Memoized answers not written to disk, by file and sizes: equal layers ask once.
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
    """The result of `answer()`, computed now or by an earlier question for the same sizes.

    Args:
        question: everything the answer depends on besides sizes and the compiler.
        sizes: sizes of the operands, compared number by number.
        answer: function without side effects that computes an unknown answer.
        options: options with the directory of kernels.
        is_kept: predicate of answers worth storing for other processes.
        classes: classes of the objects in answers, by name.
    """
    path = _path(question, options)
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
        # A full or read-only disk costs only time; so does an answer whose text does not read back: nested too
        # deep, or with objects of unknown classes.
        with suppress(OSError, *UNREADABLE):
            text = repr(made)
            if repr(serialize.read(text, classes)) == text:
                records.write(path, json.dumps({**known, numbers: text}), options)
    return made


def is_known(question: str, sizes: Sizes, options: Options) -> bool:
    """Whether `recall` has an answer to a question without computing it."""
    path, numbers = _path(question, options), repr(sizes.without_operands())
    return (path, numbers) in _DOUBTED or numbers in _read(path)


def _path(question: str, options: Options) -> Path:
    """The file with the answers to a question."""
    key = hashlib.sha256(f"{question}\n{fingerprint()}\n{registered()}".encode()).hexdigest()[:40]
    return cache_directory.cache_dir(options) / f"{key}.plan"


def _read(path: Path) -> dict[str, str]:
    """The answers in a file by sizes; empty for a missing or damaged file."""
    with suppress(OSError, *UNREADABLE):
        known = json.loads(records.read(path))
        return {str(sizes): str(text) for sizes, text in known.items()}
    return {}
