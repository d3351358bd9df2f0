"""`sparsify cache dir|size|prune|clean`: the compiled kernels on disk."""

from typing import Annotated

import typer

from sparsify.cli.printing import PLAIN, Json, print_json
from sparsify.compiler.cpp.toolchain import cache_directory

app = typer.Typer(
    name="cache",
    help="Look at or empty the cache of compiled kernels.",
    no_args_is_help=True,
    rich_markup_mode=PLAIN,
)


@app.command("dir")
def directory(as_json: Json = False) -> None:
    """Print where compiled kernels are kept."""
    place = cache_directory.cache_dir()
    if as_json:
        print_json({"directory": place, "exists": place.is_dir()})
    else:
        typer.echo(str(place))


@app.command()
def size(as_json: Json = False) -> None:
    """Print how many kernels there are and what they take."""
    kernels, total = cache_directory.cache_size()
    if as_json:
        print_json({"kernels": kernels, "bytes": total})
    else:
        typer.echo(f"{kernels} kernels, {total / 2**20:.1f} MiB")


@app.command()
def prune(
    mebibytes: Annotated[float, typer.Option("--to", min=0, help="Mebibytes that may stay.")] = 256.0,
    as_json: Json = False,
) -> None:
    """Delete the kernels used longest ago until the rest is small enough."""
    report(cache_directory.prune(int(mebibytes * 2**20)), as_json)


@app.command()
def clean(as_json: Json = False) -> None:
    """Delete all compiled kernels; they are built again when needed."""
    report(cache_directory.clean(), as_json)


def report(deleted: int, as_json: bool) -> None:
    """Prints how many kernels were deleted."""
    if as_json:
        print_json({"deleted": deleted})
    else:
        typer.echo(f"{deleted} kernels deleted")
