"""`sparsify reproduce PAPER [FIGURE]`: figures and tables of papers measured on this machine."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsify.bench.environment import pin_threads
from sparsify.cli.printing import Json, print_json
from sparsify.errors import ENVIRONMENT, FINE, NEGATIVE, SparsifyError
from sparsify.options import current, override

Root = Annotated[Path | None, typer.Option(help="The folder of real data; only read.")]
Out = Annotated[
    Path | None, typer.Option(help="The folder for tables, CSV, pictures, manifest; ./reproduced/PAPER.")
]


def reproduce(
    paper: Annotated[str, typer.Argument(help="scorch or sten.")],
    figure: Annotated[str | None, typer.Argument(help="figure5, ...; all without one.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small: fewer epochs, turns and rows.")] = False,
    data_root: Root = None,
    out: Out = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches and generated operands.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure rows of earlier runs again.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress on standard error.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what a paper reports: ours, peers, the paper's number; a table, CSV, pictures and a manifest.

    An interrupted run continues with the rows that are missing. Rows without data or peers say how to get them; status
    3 only where no row could run.
    """
    if "torch" not in sys.modules:
        pin_threads()
    registry = module("registry")
    names = registry.names(paper, figure)
    from sparsify.bench.table import check_writable

    folder = out or Path("reproduced") / paper.lower()
    check_writable(folder / "manifest.json")
    setting = module("figure").Setting(data_root, quick, seed)
    with override(quiet=quiet or current().quiet):
        records = module("run").run(paper, names, setting, folder, fresh=fresh)
    if as_json:
        print_json({"out": str(folder), "figures": plain(records)})
    else:
        table = module("table")
        for name, found in records.items():
            typer.echo(table.text(registry.find(paper, name), found) + "\n")
        drawn = [name for name in records if (folder / f"{name}.svg").is_file()]
        has_png = all((folder / f"{name}.png").is_file() for name in drawn)
        pictures = "SVG, PNG" if has_png else "SVG"
        without = "" if has_png else f"; {module('png').HOW}"
        typer.echo(f"written to {folder}: CSV, {pictures} and text of each figure, manifest.json{without}")
    raise typer.Exit(status(records))


def module(name: str) -> Any:
    """A module of the room `experiments/reproduce`."""
    return import_module(f"{package()}.reproduce.{name}")


def package() -> str:
    """The package of the experiments: from a checkout, or the one installed inside of `sparsify`.

    Raises:
        SparsifyError: the installation has no experiments.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "experiments" / "reproduce" / "run.py").is_file():
        if find_spec("experiments") is None:
            sys.path.append(str(root))
        return "experiments"
    if find_spec("sparsify.experiments") is None:
        raise SparsifyError(
            "this installation has no experiments", "install sparsify-fx anew, or use a checkout"
        )
    return "sparsify.experiments"


def plain(records: Any) -> dict[str, Any]:
    """The records as plain data."""
    return {
        name: [
            {
                "row": record.row,
                "data": record.data,
                "reason": record.reason,
                "reused": record.reused,
                "outcome": None if record.outcome is None else record.outcome.to_dict(),
            }
            for record in found
        ]
        for name, found in records.items()
    }


def status(records: Any) -> int:
    """Exit status: 1 if a row failed, 3 if no row could run, else 0."""
    every = [record for found in records.values() for record in found]
    if any(record.failed for record in every):
        return NEGATIVE
    return FINE if any(record.outcome is not None for record in every) else ENVIRONMENT
