"""Checks that generated C++ is one self-contained kernel; the syntax of C++ is left to the compiler.

In: the text of a translation unit. Out: nothing, if the text includes no header, closes every bracket and defines the
one called function.
"""

import re
from typing import Final

ENTRY: Final = "int64_t sparsify_kernel("
PAIRS: Final = {")": "(", "]": "[", "}": "{"}
REST: Final = re.compile(r"[^()\[\]{}]+")
COMMENT: Final = re.compile(r"//[^\n]*")


def verify(text: str) -> None:
    """Raises `AssertionError` when the text is no kernel."""
    assert text.count(ENTRY) == 1, f"{text.count(ENTRY)} definitions of sparsify_kernel"
    assert "#include" not in text, "kernels are built without headers"
    opened: list[str] = []
    for character in REST.sub("", COMMENT.sub("", text)):
        if character in PAIRS.values():
            opened.append(character)
        elif character in PAIRS:
            assert opened, f"{character} closes nothing"
            assert opened.pop() == PAIRS[character], f"{character} closes something else"
    assert not opened, f"{opened[-1]} is never closed"
