"""Patterns of layouts: the tensors accepted by a user's implementation.

In: the pattern `nm(*) | csr` and a tensor in `nm(2, 4)`. Out: a match.

| pattern | fits |
|---|---|
| `"csr"`, `"nm(2, 4)"`, a `Format` | `SparseTensor`s in the format |
| `"nm(*)"`, `"bcsr(16, *)"`, `"csr \\| coo"` | formats with any numbers, one of several formats |
| `SparseTensor`, `torch.Tensor` | any sparse tensor of sparsify, any dense tensor |
| a class of `register_format` | tensors held by the class |
| `None`, `"*"` | anything but a tensor, anything |

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 3: an
implementation is registered with a matching pattern for its inputs and outputs.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.errors import FormatError, SparsifierError
from sparsify.sparsification.registered.user_tensor import UserTensor, format_class
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

ANY: Final = "*"
# Placeholder numbers for a `*` of a format during parsing.
STANDS: Final = (9001, 9011, 9013)
EXACT, WILD, KIND, ANYTHING = 3, 2, 1, 0


def require_pattern(pattern: Any) -> Any:
    """The parsed pattern.

    Raises:
        SparsifierError: not a pattern.
        FormatError: an unknown format.
    """
    if pattern is None or pattern == ANY or isinstance(pattern, Format):
        return pattern
    if isinstance(pattern, type) and (issubclass(pattern, Tensor) or format_class(pattern) is not None):
        return pattern
    if isinstance(pattern, str):
        for part in pattern.split("|"):
            if format_class(part.strip()) is None:
                _form(part.strip())
        return pattern
    raise SparsifierError(
        f"the layout {pattern!r}",
        "a format, 'csr' or 'nm(*)'; torch.Tensor, SparseTensor, a class of register_format, None or '*'",
    )


def fits(value: Any, pattern: Any) -> int | None:
    """Closeness of a value to a pattern, from 0 for `*` to 3 for one format; `None` for a mismatch."""
    if isinstance(pattern, str) and pattern == ANY:
        return ANYTHING
    if pattern is None:
        return None if isinstance(value, Tensor) else EXACT
    return fits_layout(layout_of(value), pattern) if isinstance(value, Tensor) else None


def fits_layout(layout: Any, pattern: Any) -> int | None:
    """Closeness of a layout to the pattern of a tensor; `None` for a mismatch.

    A layout requested by name matches like the formats of the name.
    """
    if isinstance(layout, str):
        layout = format_class(layout) or _form(layout)
    if isinstance(pattern, str):
        if pattern == ANY:
            return ANYTHING
        degrees = [_fits_text(layout, part.strip()) for part in pattern.split("|")]
        return max((n for n in degrees if n is not None), default=None)
    if isinstance(pattern, Format):
        return EXACT if layout == pattern else None
    if pattern is torch.Tensor:
        return EXACT if layout is torch.Tensor else None
    if pattern is SparseTensor:
        return KIND if isinstance(layout, Format) else None
    return EXACT if layout is pattern else None


def layout_of(tensor: Tensor) -> Any:
    """A `Format`, a class of `register_format`, or `torch.Tensor` for dense tensors."""
    if isinstance(tensor, UserTensor):
        return tensor.format
    return tensor.format if isinstance(tensor, SparseTensor) else torch.Tensor


def shown(layout: Any) -> str:
    """A layout or a pattern as source code.

    >>> shown(torch.Tensor), shown(Format("csr")), shown("nm(*)"), shown(None)
    ('torch.Tensor', "'csr'", "'nm(*)'", 'None')
    """
    if layout is torch.Tensor:
        return "torch.Tensor"
    if isinstance(layout, type):
        return layout.__name__
    if isinstance(layout, Format):
        names = [n for n in ("csr", "csc", "coo", "dcsr", "dcsc") if layout.rank == 2 and layout == Format(n)]
        return repr(names[0] if names else str(layout))
    return repr(layout)


def shown_tuple(parts: Iterable[str]) -> str:
    """Texts as the source code of a tuple.

    >>> shown_tuple(["a"]), shown_tuple(["a", "b"])
    ('(a,)', '(a, b)')
    """
    listed = list(parts)
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"


def _fits_text(layout: Any, text: str) -> int | None:
    """Closeness of a layout to a named format, with `*` for any number."""
    user = format_class(text)
    if user is not None or not isinstance(layout, Format):
        return EXACT if user is layout else None
    try:
        form = _form(text, layout.rank)
    except FormatError:  # of another number of modes
        return None
    if isinstance(form, Format):
        return EXACT if form == layout else None
    return WILD if form.fullmatch(str(layout)) else None


@lru_cache(maxsize=256)
def _form(text: str, rank: int | None = None) -> "Format | re.Pattern[str]":
    """A format, or a regular expression for the texts of formats with numbers in place of `*`."""
    if ANY not in text:
        return Format(text) if rank is None else Format(text, rank=rank)
    expressions = []
    for spelled in _spellings(text):
        try:
            expression = re.escape(str(Format(spelled)))
        except FormatError:
            continue
        for number in STANDS:
            expression = expression.replace(str(number), r"\d+")
        expressions.append(f"(?:{expression})")
    if expressions:
        return re.compile("|".join(expressions))
    raise FormatError(
        f"the format {text!r}", "the name of a format with numbers or *, 'nm(*, *)' or 'bcsr(*)'"
    )


def _spellings(text: str) -> list[str]:
    """The format with numbers in place of `*`; a single one stands for all numbers of the format."""
    if "," in text:
        numbers = iter(STANDS)
        return [re.sub(r"\*", lambda _: str(next(numbers)), text)]
    return [text.replace(ANY, ", ".join(map(str, STANDS[:count]))) for count in (1, 2, 3)]
