"""`sparsify bench`: measures suites against torch, compares runs, and evaluates the cost model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparsify.bench.environment import pin_threads
from sparsify.cli.printing import Json, print_json
from sparsify.errors import NEGATIVE, SparsifyError


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(help="kernels, layers, models, small, memory; all without any.")
    ] = None,
    rows: Annotated[list[str] | None, typer.Option(help="Only rows whose names begin so.")] = None,
    model: Annotated[bool, typer.Option("--model", help="Predicted against measured times.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Three turns a row.")] = False,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="One thread and its time on the processor: for busy machines.")
    ] = False,
    scale: Annotated[float, typer.Option(help="Below 1: operands of that size.")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="Write everything that was measured, as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios; needs the extra `plot`.")] = None,
    compare: Annotated[Path | None, typer.Option(help="A file that --out has written before.")] = None,
    fail_if: Annotated[
        float | None, typer.Option(help="With --compare: status 1 where a ratio is so many times worse.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure suites in turns with their baselines; every result is checked against float64 first."""
    check_limit(fail_if, compare)
    if model and (suites or any(given is not None for given in (rows, out, csv, plot, compare))):
        raise SparsifyError(
            "--model measures kernels of its own", "--quick, --cpu-time, --scale and --json alone beside it"
        )
    if "torch" not in sys.modules:
        pin_threads(1 if cpu_time else None)
    if model:
        show_predictions(quick, cpu_time, scale, as_json)
        return
    from sparsify.bench import compare as comparison
    from sparsify.bench.environment import facts
    from sparsify.bench.plot import check as check_picture
    from sparsify.bench.plot import plot as draw
    from sparsify.bench.run import rows_of, run
    from sparsify.bench.table import check_writable, table, write_csv

    names = [name for name, _ in rows_of(suites or (), rows or ())]
    earlier = comparison.read(compare, names) if compare is not None else []
    check_writable(out, csv, plot)
    if plot is not None:
        check_picture(plot)
    found = run(suites or (), rows or (), quick=quick, cpu_time=cpu_time, scale=scale, out=out)
    changes = comparison.changes(earlier, found)
    if as_json:
        worse = [change.to_dict() for change in changes]
        print_json({"machine": facts(), "rows": found, "changes": worse})
    else:
        typer.echo(table(found))
        if changes:
            typer.echo(comparison.table(changes))
    if csv is not None:
        write_csv(csv, found)
    if plot is not None:
        draw(found, plot)
    if fail_if is not None and any(change.slower > fail_if for change in changes):
        raise typer.Exit(NEGATIVE)


def check_limit(fail_if: float | None, compare: Path | None) -> None:
    """Raises for `--fail-if` without `--compare`, or with a limit not above 0."""
    if fail_if is not None and compare is None:
        raise SparsifyError("--fail-if needs --compare", "name the file of an earlier run")
    if fail_if is not None and not fail_if > 0:
        raise SparsifyError(f"--fail-if {fail_if:g}", "how many times worse, 1.2")


def show_predictions(quick: bool, cpu_time: bool, scale: float, as_json: bool) -> None:
    """Prints predicted times of the cost model beside measured times."""
    from sparsify.bench.predicted import median_ratio, predictions, table
    from sparsify.bench.table import CLOCKS

    found = list(predictions(0.1 if quick else 0.5, CLOCKS[cpu_time], scale))
    if as_json:
        rows = [prediction.to_dict() for prediction in found]
        print_json({"median_ratio": median_ratio(found), "kernels": rows})
    else:
        typer.echo(table(found))
