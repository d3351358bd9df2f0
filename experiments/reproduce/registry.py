"""Reproducible figures and tables, by paper and name.

In: `find("scorch", "figure5")`. Out: its `Figure`. A new figure is one line of FIGURES and one module; listing imports
no torch. A further paper has a folder beside `scorch`, listed as shipped in `setup.py` and `tests/test_house.py`.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Final

from sparsify.errors import SparsifyError

from .figure import Figure

# This package is `experiments` in a checkout and `sparsify.experiments` in an installation.
ROOT: Final = __name__.rpartition(".reproduce.")[0]
# By paper: the name of the figure and the module with its FIGURE.
FIGURES: Final[Mapping[str, Mapping[str, str]]] = {
    "scorch": {
        "figure5": "scorch.figure5",
        "figure6": "scorch.figure6",
        "figure7": "scorch.figure7",
        "figure8": "scorch.figure8",
        "slides": "scorch.slides",
    },
    "sten": {
        "figure2": "sten.figure2",
        "table1": "sten.table1",
        "finetuning": "sten.finetuning",
        "texts": "sten.texts",
    },
}


def named(text: str) -> str:
    """Canonical name of a figure from a user's spelling.

    >>> named("Figure 5"), named("5"), named("table-1")
    ('figure5', 'figure5', 'table1')
    """
    plain = "".join(character for character in text.lower() if character.isalnum())
    return f"figure{plain}" if plain.isdigit() else plain


def names(paper: str, wanted: str | None = None) -> list[str]:
    """All figures of a paper, or only the wanted figure.

    Raises:
        SparsifyError: there is no such paper or figure.
    """
    if paper.lower() not in FIGURES:
        raise SparsifyError(f"there is no paper {paper!r} to reproduce", f"one of {', '.join(FIGURES)}")
    known = FIGURES[paper.lower()]
    if wanted is None:
        return list(known)
    name = named(wanted)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise SparsifyError(f"{paper} has no {wanted!r} to reproduce", remedy)
    return [name]


def find(paper: str, name: str) -> Figure:
    """Figure of a paper."""
    found: Figure = import_module(f"{ROOT}.{FIGURES[paper.lower()][name]}").FIGURE
    return found
