"""Folders of the data of rows, and the size of generated data."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of real data sets, `None` without one, and the scale of what is generated instead.

    A scale below 1 generates everything: small sizes for trying the rows out.
    """

    root: Path | None = None
    scale: float = 1.0
