"""Finished rows on disk: what an interrupted run continues from.

In: `Store(folder).write(figure, row, key, outcome)`. Out: `read` gives the outcome back as long as the key is the same.
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
    """The rows below a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, figure: str, row: str) -> Path:
        """The file of a row, another one for each name; names of matrices have slashes."""
        return self.folder / figure / f"{quote(row, safe='')}.json"

    def read(self, figure: str, row: str, key: str) -> Outcome | None:
        """The outcome of a row that was measured under the same conditions, `None` without one."""
        try:
            stored = json.loads(self.place(figure, row).read_text(encoding="utf-8"))
            return Outcome.of(stored["outcome"]) if stored["key"] == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, figure: str, row: str, key: str, outcome: Outcome) -> None:
        """Keeps an outcome; readers find a whole file or none."""
        file = self.place(figure, row)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        content = {"schema": SCHEMA, "key": key, "outcome": outcome.to_dict()}
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(part, file)


def key_of(conditions: Mapping[str, Any]) -> str:
    """A digest of what a row depends on: settings, versions, threads, hashes of its files."""
    text = json.dumps(conditions, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
