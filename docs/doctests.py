"""Examples in docstrings as code blocks of the site: Markdown would take `>>>` for quotes in quotes."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring with a fence around each example.

    >>> fenced("Sum.\\n\\n>>> 1 + 1\\n2")
    'Sum.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found.group()}\n```", text)


class Doctests(Extension):
    """Puts fences around the examples of every docstring."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Changes the docstring of an object that was just read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
