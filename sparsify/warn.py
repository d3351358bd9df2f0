"""Warnings at the line of the user's code: the innermost frame outside of sparsify and torch.

In: `warn("the source model runs")` in a pass. Out: a `RuntimeWarning` at `train.py:12`, the line of `sparse(x)`.
"""

import contextlib
import functools
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Final

PACKAGE: Final = str(Path(__file__).parent) + "/"
# Files between a caller and our code, and code generated from graphs.
BETWEEN: Final = (contextlib.__file__, functools.__file__, "<eager ", "<eval_with_key>", "<frozen ")


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the line of the user's code, with the user's module and warning registry, as filters expect."""
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
    """The innermost frame outside of sparsify and torch; the outermost frame if there is none."""
    inside = prefixes()
    while frame.f_code.co_filename.startswith(inside) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def prefixes() -> tuple[str, ...]:
    """Prefixes of file names outside of the user's code."""
    torch = sys.modules.get("torch")
    place = None if torch is None else torch.__file__
    return (PACKAGE, *BETWEEN, *(() if place is None else (str(Path(place).parent) + "/",)))
