"""Tokens of index notation.

In: `y[i] += 2 * x[i]`. Out: `y [ i ] += 2 * x [ i ]`, each with its kind and its position in the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.errors import ParseError

MAX_DIGITS = 1000
NUMBER = r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?"
OPERATORS = (
    "**",
    "==",
    "!=",
    "<=",
    ">=",
    "<",
    ">",
    "+",
    "-",
    "*",
    "/",
    "=",
    "(",
    ")",
    "[",
    "]",
    ",",
    ":",
    ";",
)
SPACE = re.compile(r"[ \t\r]+|#[^\n]*")


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the text: `kind` is number, name, assign (`=`, `+=`, ...), operator, newline or end."""

    kind: str
    text: str
    position: int


def tokenize(text: str) -> tuple[Token, ...]:
    """The tokens of `text`; line ends inside brackets are spaces, and the last token is the end.

    Raises:
        ParseError: a character outside of all tokens, or a bracket without its partner.
    """
    return tuple(_statement_ends(text, _scan(text)))


def _scan(text: str) -> Iterator[Token]:
    """All tokens of `text`, every line end included."""
    assigns = sorted((m.assign for m in MONOIDS.values()), key=len, reverse=True)
    word = re.compile(
        rf"(?P<assign>{'|'.join(map(re.escape, assigns))}(?!=))|(?P<number>{NUMBER})|(?P<name>[^\W\d]\w*)"
        rf"|(?P<newline>\n)|(?P<operator>{'|'.join(map(re.escape, OPERATORS))})"
    )
    position = 0
    while position < len(text):
        if space := SPACE.match(text, position):
            position = space.end()
            continue
        found = word.match(text, position)
        if found is None:
            raise ParseError(text, position, f"{text[position]!r} is not part of index notation")
        kind = str(found.lastgroup)
        if kind == "number" and len(found[0]) > MAX_DIGITS:
            raise ParseError(text, position, f"a number of more than {MAX_DIGITS} characters")
        if found[0] in ("=", ";"):
            kind = "assign" if found[0] == "=" else "newline"
        yield Token(kind, found[0], position)
        position = found.end()


def _statement_ends(text: str, tokens: Iterator[Token]) -> Iterator[Token]:
    """The tokens without line ends inside brackets, and with the end."""
    opened: list[Token] = []
    for token in tokens:
        if token.text in ("(", "["):
            opened.append(token)
        elif token.text in (")", "]"):
            partner = opened.pop().text if opened else ""
            if partner + token.text not in ("()", "[]"):
                raise ParseError(text, token.position, f"no bracket is open that {token.text!r} closes")
        if token.kind != "newline" or not opened:
            yield token
        elif token.text == ";":
            break
    if opened:
        raise ParseError(text, opened[-1].position, f"{opened[-1].text!r} is never closed")
    yield Token("end", "", len(text))
