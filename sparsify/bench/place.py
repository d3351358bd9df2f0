"""Folders of the data of rows, and the size of generated data."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of real data sets or `None`, and the scale of generated data.

    With a scale below 1 all data is generated: small sizes to try the rows out.
    """

    root: Path | None = None
    scale: float = 1.0
