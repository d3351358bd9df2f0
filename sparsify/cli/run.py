"""`sparsify run MODEL`: train, make sparse, verify and time a registered model; print one table."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sparsify.errors import SparsifyError


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write JSON, CSV and the report into this folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would become sparse.")] = False,
) -> None:
    """Train a dense model, make it sparse by its recipe, verify it, time both, print one table."""
    from sparsify.runner.preview import preview
    from sparsify.runner.request import resolve, split_pairs
    from sparsify.runner.run import run_request
    from sparsify.runner.status import exit_status

    try:
        request = resolve(
            model,
            recipe=recipe,
            dataset=dataset,
            data_root=data_root,
            overrides=split_pairs(pairs or []),
            seed=seed,
        )
        found = preview(request) if dry_run else run_request(request, retrain=retrain, out=out)
    except SparsifyError as error:
        typer.echo(f"sparsify run: {error}", err=True)
        raise typer.Exit(exit_status(error)) from None
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    raise typer.Exit(found.exit_status)
