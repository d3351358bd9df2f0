"""Parser of concrete index notation in one-line form.

In: `forall i: forall j: y[i] += A[i,j] * x[j]`. Out: `Forall("i", Forall("j", Assign(...)))`.

    body       member (";" member)*           a body reaches as far as it can
    member     head ":" body | "(" body ")" | assignment
    head       [kind] "forall" name [policy] ["by positions of" name] ["chunks" number] ["hubs" number]
             | "let" temporary ("," temporary)* | "if" expression
    temporary  name ["[" name ("," name)* "]"] ":" dtype "in" scope ["layout (" numbers ")"] ["pattern of"
               name "[" name ("," name)* "]"] ["listed"] ["marked"]
"""

import re

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.einsum.text.parse import parse_expression, parse_statement
from sparsify.compiler.notation.nodes import (
    Forall,
    If,
    Kind,
    Let,
    Parallel,
    Sequence,
    Serial,
    Statement,
    Temporary,
    Transposed,
    Unrolled,
    Vector,
)
from sparsify.errors import ParseError

NAME = r"[^\W\d]\w*"
FORALL = re.compile(
    rf"\s*(?P<kind>parallel |vector |unrolled |transposed )?\s*forall\s+(?P<index>{NAME})"
    rf"(?:\s+(?P<policy>dynamic|static))?(?:\s+by positions of\s+(?P<by>{NAME}))?"
    rf"(?:\s+chunks\s+(?P<chunks>\d+))?(?:\s+hubs\s+(?P<hubs>\d+))?\s*:"
)
TEMPORARY = re.compile(
    rf"\s*(?P<name>{NAME})(?:\[(?P<indices>[^\]]*)\])?\s*:\s*(?P<dtype>\w+)\s+in\s+(?P<scope>\w+)"
    rf"(?:\s+layout\s*\((?P<layout>[\d,\s]*)\))?"
    rf"(?:\s+pattern of\s+(?P<pattern>{NAME})\[(?P<places>[^\]]*)\])?(?P<listed>\s+listed)?(?P<marked>\s+marked)?"
    r"\s*(?P<end>[,:])"
)
LET = re.compile(r"\s*let\s+")
IF = re.compile(r"\s*if\s+")


def parse_notation(text: str) -> Statement | Assign:
    """The statement parsed from `text`.

    Raises:
        ParseError: `text` is not concrete index notation; the message points at the place.

    >>> print(parse_notation("forall i: y[i] = 2 * x[i]"))
    forall i: y[i] = 2 * x[i]
    """
    loops = frozenset(m["index"] for m in re.finditer(FORALL.pattern, text))
    reader = _Reader(text, loops)
    result = reader.body()
    if reader.position < len(text):
        raise ParseError(text, reader.position, "no bracket is open that ')' closes")
    return result


class _Reader:
    """The text and the current position."""

    def __init__(self, text: str, loops: frozenset[str]) -> None:
        self.text = text
        self.position = 0
        self.loops = loops

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The match of `pattern` at the position, consumed if found."""
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def skip(self, character: str) -> bool:
        """Consumes a character after optional spaces; whether the character was found."""
        return self.match(re.compile(rf"\s*{re.escape(character)}")) is not None

    def body(self) -> Statement | Assign:
        members = [self.member()]
        while self.skip(";"):
            members.append(self.member())
        self.match(re.compile(r"\s*"))
        return members[0] if len(members) == 1 else Sequence(tuple(members))

    def member(self) -> Statement | Assign:
        if found := self.match(FORALL):
            return Forall(found["index"], self.body(), _kind(found))
        if self.match(LET):
            temporaries = self.temporaries()
            return Let(temporaries, self.body())
        if self.match(IF):
            condition = self.upto(":")
            self.skip(":")
            return If(parse_expression(condition, indices=self.loops), self.body())
        if self.skip("("):
            inner = self.body()
            if not self.skip(")"):
                raise ParseError(self.text, self.position, "')' expected")
            return inner
        return self.assignment()

    def assignment(self) -> Assign:
        start = self.position
        try:
            return parse_statement(self.upto(";"), indices=self.loops)
        except ParseError as error:
            raise ParseError(self.text, start + error.position, error.message) from None

    def temporaries(self) -> tuple[Temporary, ...]:
        result: list[Temporary] = []
        while True:
            found = self.match(TEMPORARY)
            if found is None:
                raise ParseError(
                    self.text, self.position, "a temporary expected, as in w[k]: float32 in register"
                )
            result.append(_temporary(found))
            if found["end"] == ":":
                return tuple(result)

    def upto(self, stop: str) -> str:
        """The text before the next `stop` or closing bracket at the current depth."""
        depth, start = 0, self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            depth += (character in "([") - (character in ")]")
            if depth < 0 or (depth == 0 and character == stop):
                break
            self.position += 1
        return self.text[start : self.position]


def _kind(found: re.Match[str]) -> Kind:
    """The loop kind parsed from a loop head."""
    kind = (found["kind"] or "").strip()
    if kind == "parallel":
        counts = int(found["chunks"] or 1), int(found["hubs"] or 0)
        return Parallel(found["policy"] or "static", found["by"] or "", *counts)
    kinds: dict[str, Kind] = {"vector": Vector(), "unrolled": Unrolled(), "transposed": Transposed()}
    return kinds.get(kind, Serial())


def _temporary(found: re.Match[str]) -> Temporary:
    """A temporary parsed from a regular expression match."""
    indices = tuple(name.strip() for name in (found["indices"] or "").split(",") if name.strip())
    layout = tuple(int(n) for n in (found["layout"] or "").split(",") if n.strip())
    places = tuple(name.strip() for name in (found["places"] or "").split(",") if name.strip())
    kept = (found["listed"] is not None, found["marked"] is not None)
    return Temporary(
        found["name"], indices, found["dtype"], found["scope"], layout, found["pattern"], places, *kept
    )
