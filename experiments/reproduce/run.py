"""Measurement of figures row by row; finished rows are kept, so that an interrupted run continues.

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

from . import manifest, picture, png, registry, table
from .figure import Figure, Record, Row, Setting
from .progress import steps
from .store import Store, key_of

Records = dict[str, list[Record]]


def run(paper: str, names: Sequence[str], setting: Setting, out: Path, *, fresh: bool = False) -> Records:
    """Records of the named figures.

    Args:
        paper: key of `registry.FIGURES`.
        names: names of figures of the paper.
        setting: data root, quick or not, seed.
        out: folder of all written files.
        fresh: measure rows finished by an earlier run, too.
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
    """Conditions of all rows of a run; a stored row is reused while its conditions are equal."""
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
    """Record of a row: from an earlier run, measured now, or with the reason for a missing outcome."""
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
    """Writes CSV, text and pictures of a figure."""
    table.write_csv(figure, records, out / f"{figure.name}.csv")
    (out / f"{figure.name}.txt").write_text(table.text(figure, records) + "\n", encoding="utf-8")
    if picture.panels(figure, records):
        drawing = out / f"{figure.name}.svg"
        drawing.write_text(picture.svg(figure, records), encoding="utf-8")
        png.write(figure, records, drawing, drawing.with_suffix(".png"))
