"""Warnings at the line of the user's code: the first one outside of sparsify and torch that led to them.

In: `warn("the source model runs")` in a pass. Out: a `RuntimeWarning` at `train.py:12`, where `sparse(x)` is.
"""

import contextlib
import functools
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Final

PACKAGE: Final = str(Path(__file__).parent) + "/"
# Files between a caller and code of ours, and code that is made of graphs.
BETWEEN: Final = (contextlib.__file__, functools.__file__, "<eager ", "<eval_with_key>", "<frozen ")


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the line of the user's code, with its module and its register of warnings, as filters expect it."""
    frame = user_frame(sys._getframe(1))
    known = frame.f_globals
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=str(known.get("__name__", "sys")),
        registry=known.setdefault("__warningregistry__", {}),
    )


def user_frame(frame: FrameType) -> FrameType:
    """The innermost frame that is neither of this package nor of torch; the outermost where all are."""
    inside = prefixes()
    while frame.f_code.co_filename.startswith(inside) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def prefixes() -> tuple[str, ...]:
    """Starts of the names of files that are not the user's."""
    torch = sys.modules.get("torch")
    place = None if torch is None else torch.__file__
    return (PACKAGE, *BETWEEN, *(() if place is None else (str(Path(place).parent) + "/",)))
