"""The text of formats: short form, long form and names.

In: `bcsr(16, 16)`. Out: the levels of `i/16: dense, j/16: compressed, i%16: dense, j%16: dense`.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from sparsify.errors import FormatError
from sparsify.storage.format import MODE_NAMES, Kind, LevelExpression, StoredLevel
from sparsify.storage.level.known_levels import LEVELS, level
from sparsify.storage.level.levels import Compressed, Level, Singleton

LEVEL = re.compile(
    r"\s*(?:(?P<expression>[^:(),]+):)?\s*(?P<name>[a-z_]\w*)\s*(?:\((?P<parameters>[^()]*)\))?\s*$"
)
EXPRESSION = re.compile(r"\s*([a-z]\w*)\s*(?:([/%])\s*(\d{1,18})|-\s*([a-z]\w*))?\s*$")
MOST_CHARACTERS = 10_000
DIGITS = 18


def parse(text: str, rank: int | None = None) -> Sequence[Level | StoredLevel]:
    """The levels parsed from a text; a short form gives levels without modes.

    Raises:
        FormatError: the text is no format, or too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise FormatError(
            f"a format of {len(text)} characters, {text[:40]!r}...", f"at most {MOST_CHARACTERS} characters"
        )
    text = " ".join(text.split())
    named = NAMED.get(text.split("(")[0].strip())
    if named is not None and (text.strip() != "dense" or rank is not None):
        return parse(named(_arguments(text), rank))
    if re.fullmatch(r"\s*\w+\s*", text) and text.strip() not in (*LEVELS, "coordinate", "scalar"):
        near = get_close_matches(text.strip(), (*NAMED, *LEVELS, "coordinate"), n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        names = ", ".join((*LEVELS, "coordinate"))
        raise FormatError(
            f"no format is called {text.strip()!r}",
            f"{guess}{', '.join(NAMED)}, or levels, one a mode: {names}",
        )
    parts = _split(text)
    matches = []
    for part in parts:
        match = LEVEL.match(part)
        if match is None:
            raise FormatError(
                f"cannot read {part.strip()!r} in the format {text!r}", "as in dense, compressed"
            )
        matches.append(match)
    levels = _levels([(m["name"], _words(m["parameters"])) for m in matches], text)
    expressions = [m["expression"] for m in matches]
    if not any(expressions):
        return levels
    if not all(expressions):
        raise FormatError(f"only some levels of {text!r} say which mode they store", "all of them, or none")
    return [StoredLevel(e, lv) for e, lv in zip(_expressions(expressions, text), levels, strict=True)]


def _split(text: str) -> list[str]:
    """The text between the commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [] if text.strip() == "scalar" else [*parts, text[start:]]


def _words(parameters: str | None) -> tuple[str, ...]:
    """The parameters of a level."""
    return tuple(word.strip() for word in (parameters or "").split(",") if word.strip())


def _levels(spelled: list[tuple[str, tuple[str, ...]]], text: str) -> list[Level]:
    """The levels; a run of `coordinate` is a compressed level and singletons."""
    levels: list[Level] = []
    for number, (name, parameters) in enumerate(spelled):
        if name != "coordinate":
            try:
                levels.append(level(name, parameters))
            except FormatError as error:
                raise FormatError(f"the format {text!r}: {error.message}", error.remedy) from None
        elif number and spelled[number - 1][0] == "coordinate":
            levels.append(level(Singleton.name, parameters))
        else:
            levels.append(level(Compressed.name, parameters))
    return levels


def _expressions(texts: list[str], form: str) -> list[LevelExpression]:
    """The level expressions of texts; letters number the modes in alphabetical order."""
    matches = []
    for text in texts:
        match = EXPRESSION.match(text)
        if match is None:
            raise FormatError(f"cannot read {text.strip()!r} in the format {form!r}", "i, i/16, i%16 or j-i")
        matches.append(match)
    names = sorted({name for m in matches for name in (m[1], m[4]) if name})
    modes = {name: number for number, name in enumerate(names)}
    kinds: dict[str | None, Kind] = {"/": "block", "%": "within", None: "whole"}
    return [
        LevelExpression(modes[m[1]], "difference", 0, modes[m[4]])
        if m[4]
        else LevelExpression(modes[m[1]], kinds[m[2]], int(m[3] or 0))
        for m in matches
    ]


def _arguments(text: str) -> list[int]:
    """The numbers in the parentheses after a name; `group=` may stand before the last one."""
    match = re.fullmatch(r"\s*\w+\s*(?:\(([\d\s,]*(?:,\s*group\s*=\s*\d+\s*)?)\))?\s*", text)
    if match is None:
        raise FormatError(f"cannot read the format {text!r}", "numbers in parentheses, as in bcsr(16, 16)")
    words = [word.split("=")[-1].strip() for word in (match[1] or "").split(",") if word.strip()]
    if any(len(word) > DIGITS for word in words):
        raise FormatError(f"a number of more than {DIGITS} digits in the format {text!r}", "sizes of blocks")
    return [int(word) for word in words]


def _fixed(form: str, rank: int = 2) -> Callable[[list[int], int | None], str]:
    """A name without arguments."""

    def text(arguments: list[int], tensor_rank: int | None) -> str:
        if arguments:
            raise FormatError(f"a format with the arguments {arguments}", "this name takes none")
        if tensor_rank not in (None, rank):
            raise FormatError(
                f"a format of {rank} modes for a tensor of {tensor_rank}", "coo, csf or the levels themselves"
            )
        return form

    return text


def _repeated(word: str, rank: int) -> Callable[[list[int], int | None], str]:
    """A format name for any rank: one level per mode."""

    def text(arguments: list[int], tensor_rank: int | None) -> str:
        if len(arguments) > 1:
            raise FormatError(f"a format with the arguments {arguments}", "at most the number of modes")
        modes = arguments[0] if arguments else rank if tensor_rank is None else tensor_rank
        if modes > len(MODE_NAMES):
            raise FormatError(f"a format of {modes} modes", f"at most {len(MODE_NAMES)}")
        return ", ".join([word] * modes) or "scalar"

    return text


def _blocked(form: str) -> Callable[[list[int], int | None], str]:
    """A format name with the height and the width of blocks."""

    def text(arguments: list[int], tensor_rank: int | None) -> str:
        if len(arguments) != 2 or tensor_rank not in (None, 2):
            raise FormatError(
                f"blocks of {arguments} in a tensor of {tensor_rank or 2} modes", "two sizes, bcsr(16, 16)"
            )
        return form.format(h=arguments[0], w=arguments[1])

    return text


def _grouped(arguments: list[int], tensor_rank: int | None) -> str:
    """n of every m entries of a row, with one pattern for `group` consecutive rows."""
    if len(arguments) not in (2, 3) or tensor_rank not in (None, 2) or arguments[0] > arguments[1]:
        raise FormatError(
            f"nm{tuple(arguments)} in a tensor of {tensor_rank or 2} modes",
            "n of m entries: nm(2, 4), nm(2, 4, group=16)",
        )
    n, m, group = (*arguments, 1)[:3]
    if group == 1:
        return f"i: dense, j/{m}: dense, j%{m}: grouped({n})"
    return f"i/{group}: dense, j/{m}: dense, j%{m}: grouped({n}), i%{group}: dense"


NAMED: dict[str, Callable[[list[int], int | None], str]] = {
    "dense": _repeated("dense", 2),
    "coo": _repeated("coordinate", 2),
    "csf": _repeated("compressed", 3),
    "csr": _fixed("dense, compressed"),
    "csc": _fixed("j: dense, i: compressed"),
    "dcsr": _fixed("compressed, compressed"),
    "dcsc": _fixed("j: compressed, i: compressed"),
    "bcsr": _blocked("i/{h}: dense, j/{w}: compressed, i%{h}: dense, j%{w}: dense"),
    "bcsc": _blocked("j/{w}: dense, i/{h}: compressed, i%{h}: dense, j%{w}: dense"),
    "nm": _grouped,
    "ell": _fixed("dense, grouped"),
    "dia": _fixed("j-i: compressed, i: dense"),
}
