"""`sparsify run MODEL`: train, make sparse, verify and time a registered model; print one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsify.cli.printing import Json, print_json
from sparsify.options import current, override

if TYPE_CHECKING:
    from sparsify.runner.preview import Preview
    from sparsify.runner.result import RunResult


def run(
    model: Annotated[str, typer.Argument(help="A registered model: gcn, gcn-matmul, sage, gin.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Arguments of the recipe, the model or the training: hidden=64 epochs=50.",
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe: built-in name or file.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="synthetic (default), cora, citeseer, pubmed or ogbn-arxiv.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="The folder of real data; only read.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of data, weights and training.")] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train although the cache has weights.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress on standard error.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Write JSON, CSV and the report into this folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would become sparse.")] = False,
) -> None:
    """Train a dense model, make it sparse by its recipe, verify it, time both, print one table."""
    from sparsify.runner.request import resolve, split_pairs

    request = resolve(
        model,
        recipe=recipe,
        dataset=dataset,
        data_root=data_root,
        overrides=split_pairs(pairs or []),
        seed=seed,
    )
    if dry_run:
        from sparsify.runner.preview import preview

        show(preview(request), as_json)
        return
    from sparsify.runner.run import run_request

    with override(quiet=quiet or current().quiet):
        result = run_request(request, retrain=retrain, out=out)
    show(result, as_json)
    raise typer.Exit(result.exit_status)


def show(found: "Preview | RunResult", as_json: bool) -> None:
    """Prints what was found as a table or as JSON."""
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))
