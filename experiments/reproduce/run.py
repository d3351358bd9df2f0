"""The rows of figures measured one by one; finished rows are kept, so that an interrupted run continues.

In: `run("scorch", ["figure5"], Setting(root), out)`. Out: the records by figure; in `out` a CSV, a picture and the
text of each figure, and `manifest.json`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsify.bench.harness import WrongResultError
from sparsify.errors import DataError, SparsifyError
from sparsify.runtime.machine import machine

from . import manifest, picture, registry, table
from .figure import Figure, Record, Row, Setting
from .progress import steps
from .store import Store, key_of

Records = dict[str, list[Record]]


def run(paper: str, names: Sequence[str], setting: Setting, out: Path, *, fresh: bool = False) -> Records:
    """The records of the figures with these names.

    Args:
        paper: of `registry.FIGURES`.
        names: its figures.
        setting: data root, quick or not, seed.
        out: the folder for everything that is written.
        fresh: measure rows that an earlier run has finished, too.
    """
    figures = {name: registry.find(paper, name) for name in names}
    rows = {name: list(figure.rows(setting)) for name, figure in figures.items()}
    store = Store(out / ("rows-quick" if setting.quick else "rows"))
    conditions = conditions_of(setting)
    records: Records = {name: [] for name in figures}
    try:
        with steps([row.seconds for found in rows.values() for row in found]) as progress:
            for name, found in rows.items():
                for row in found:
                    progress.begin(f"{name} {row.name}")
                    record = measured(name, row, setting, store, conditions, fresh)
                    records[name].append(record)
                    progress.finish(record.reused or record.outcome is None)
    finally:
        out.mkdir(parents=True, exist_ok=True)
        content = manifest.manifest(paper, setting, records, conditions)
        (out / "manifest.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for name, figure in figures.items():
            write(figure, records[name], out)
    return records


def conditions_of(setting: Setting) -> dict[str, Any]:
    """The conditions of all rows of a run; a stored row is reused while its conditions are equal."""
    return {
        "quick": setting.quick,
        "seed": setting.seed,
        **machine(),
        "packages": manifest.versions(),
        "sources": manifest.sources(),
    }


def measured(
    figure: str, row: Row, setting: Setting, store: Store, conditions: Mapping[str, Any], fresh: bool
) -> Record:
    """The record of a row: of an earlier run, measured now, or the reason why not."""
    hashes = manifest.hashes(setting.root, row.files)
    key = key_of({**conditions, "hashes": hashes})
    if not fresh and (kept := store.read(figure, row.name, key)) is not None:
        return Record(row.name, row.data, kept, hashes=hashes, reused=True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            outcome = row.measure(setting)
    except DataError as error:
        return Record(row.name, row.data, None, str(error), hashes=hashes)
    except (SparsifyError, WrongResultError) as error:
        is_missing = isinstance(error.__cause__, ImportError)
        return Record(row.name, row.data, None, str(error), failed=not is_missing, hashes=hashes)
    store.write(figure, row.name, key, outcome)
    return Record(row.name, row.data, outcome, hashes=hashes)


def write(figure: Figure, records: Sequence[Record], out: Path) -> None:
    """Writes what is shown of a figure."""
    table.write_csv(figure, records, out / f"{figure.name}.csv")
    (out / f"{figure.name}.txt").write_text(table.text(figure, records) + "\n", encoding="utf-8")
    if picture.panels(figure, records):
        (out / f"{figure.name}.svg").write_text(picture.svg(figure, records), encoding="utf-8")
        picture.write_png(figure, records, out / f"{figure.name}.png")
