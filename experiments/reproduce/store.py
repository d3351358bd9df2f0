"""Finished rows on disk, from which an interrupted run continues.

In: `Store(folder).write(figure, row, key, outcome)`. Out: `read` returns the outcome as long as the key is the same.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .figure import Outcome

SCHEMA = 1


class Store:
    """Rows below a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, figure: str, row: str) -> Path:
        """File of a row, distinct for each name; names of matrices have slashes."""
        return self.folder / figure / f"{quote(row, safe='')}.json"

    def read(self, figure: str, row: str, key: str) -> Outcome | None:
        """Outcome of a row measured under the same conditions, or `None`."""
        try:
            stored = json.loads(self.place(figure, row).read_text(encoding="utf-8"))
            return Outcome.of(stored["outcome"]) if stored["key"] == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, figure: str, row: str, key: str, outcome: Outcome) -> None:
        """Writes an outcome atomically: readers find a whole file or none."""
        file = self.place(figure, row)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        content = {"schema": SCHEMA, "key": key, "outcome": outcome.to_dict()}
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(part, file)


def key_of(conditions: Mapping[str, Any]) -> str:
    """Cache key of a row: digest of settings, versions, threads and file hashes."""
    text = json.dumps(conditions, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
