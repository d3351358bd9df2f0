"""Suggestions for misspelled names.

In: `nearest("magnitud", ("magnitude", "random"))`. Out: `"; did you mean 'magnitude'?"`.
"""

from difflib import get_close_matches
from typing import Any


def nearest(name: str, known: Any, count: int = 3) -> str:
    """`; did you mean 'a' or 'b'?`, or the list of all names without a near one."""
    names = [str(item) for item in known]
    close = get_close_matches(name, names, n=count, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(item) for item in close) + "?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"
