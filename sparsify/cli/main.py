"""The application `sparsify` and its entry point.

In: the arguments of the command line. Out: an exit status: 0 fine, 1 a negative result, 2 usage, 3 environment.
"""

import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import typer

from sparsify import __version__
from sparsify.cli import bench, cache, doctor, env, explain, partition, recipes, reproduce, run, train
from sparsify.cli.printing import PLAIN
from sparsify.errors import FINE, SparsifyError, exit_status
from sparsify.providers import require_sole_provider

app = typer.Typer(
    name="sparsify",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=PLAIN,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Sparse tensors in PyTorch models: recipes, kernels, measurements."""
    if version:
        typer.echo(f"sparsify {__version__}")
        raise typer.Exit(FINE)


app.command()(run.run)
app.command()(train.train)
app.command()(explain.explain)
app.add_typer(recipes.app)
app.command()(partition.partition)
app.command()(bench.bench)
app.command()(reproduce.reproduce)
app.command()(env.env)
app.command()(doctor.doctor)
app.add_typer(cache.app)


def as_message(message: Warning | str, *place: Any, **line: Any) -> str:
    """A warning as one line for people, without the source location."""
    return f"sparsify: warning: {message}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line, by default `sys.argv`, and ends the process with the exit status."""
    warnings.formatwarning = as_message
    try:
        require_sole_provider()
        given = sys.argv[1:] if arguments is None else list(arguments)
        app(args=given, prog_name="sparsify", obj=shlex.join(["sparsify", *given]))
    except SparsifyError as error:
        print(f"sparsify: {error}", file=sys.stderr)
        sys.exit(exit_status(error))
