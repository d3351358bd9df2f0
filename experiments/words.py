"""Pronouns and place words in docstrings: their share by folder, and first lines that begin with one.

In: `python -m experiments.words [FOLDER ...] [--first-lines]`. Out: `sparsify/compiler/einsum  9,120 words  5.1 %`, the
folders with the largest shares first. People judge: a pronoun next to its noun is fine, one across sentences is not.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PRONOUNS: Final = [
    "it",
    "its",
    "they",
    "them",
    "their",
    "those",
    "these",
    "this",
    "that",
    "what",
    "which",
    "whose",
    "such",
]
PLACES: Final = ("here", "there", "where")
COUNTED: Final = re.compile(rf"\b({'|'.join((*PRONOUNS, *PLACES))})\b", re.IGNORECASE)
WORD: Final = re.compile(r"[A-Za-z']+")
FIRST: Final = re.compile(r"(What|Which|How|Where|Those|That|Of|By)\b")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(file: Path) -> Iterator[tuple[str, str]]:
    """Name and docstring of each module, class and function of a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "module"), text


def share(text: str) -> tuple[int, int]:
    """Number of pronouns and place words of a text, and number of all words."""
    return len(COUNTED.findall(text)), len(WORD.findall(text))


def by_folder(folders: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """Shares of all folders with Python files below `folders`."""
    found: dict[Path, Counter[int]] = defaultdict(Counter)
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        for _, text in docstrings(file):
            found[file.parent].update(dict(enumerate(share(text))))
    return {folder: (counts[0], counts[1]) for folder, counts in found.items()}


def lines(folders: Sequence[Path]) -> Iterator[str]:
    """A line for each folder in descending order of shares, and the sum."""
    found = by_folder(folders)
    for folder, (some, words) in sorted(found.items(), key=lambda item: -item[1][0] / max(item[1][1], 1)):
        yield f"{folder!s:44} {words:>8,} words {some / max(words, 1):6.1%}"
    some, words = (sum(counts[place] for counts in found.values()) for place in range(2))
    yield f"{'all':44} {words:>8,} words {some / max(words, 1):6.1%}"


def first_lines(folders: Sequence[Path]) -> Iterator[str]:
    """Docstrings with a first line beginning with a pronoun, a place word or a preposition."""
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        for name, text in docstrings(file):
            if FIRST.match(text):
                yield f"{file}: {name}: {text.splitlines()[0]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m experiments.words", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("sparsify")])
    parser.add_argument("--first-lines", action="store_true", help="docstrings that begin with such a word")
    asked = parser.parse_args(arguments)
    for line in (first_lines if asked.first_lines else lines)(asked.folders):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
