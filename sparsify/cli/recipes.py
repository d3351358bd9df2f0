"""`sparsify recipes ls|show|cp|validate|schema|plot|import`: the recipes that ship with the package, and one's own."""

import io
import json
from pathlib import Path
from typing import Annotated

import typer

from sparsify import recipe
from sparsify.cli.printing import PLAIN, Json, print_json, print_rows
from sparsify.errors import NEGATIVE, SparsifyError

app = typer.Typer(
    name="recipes", help="List, show, copy and check recipes.", no_args_is_help=True, rich_markup_mode=PLAIN
)

Name = Annotated[str, typer.Argument(help="A built-in recipe, as `sparsify recipes ls` lists it.")]


@app.command("ls")
def list_recipes(as_json: Json = False) -> None:
    """List the built-in recipes."""
    found = [(name, recipe.description(name)) for name in recipe.names()]
    if as_json:
        print_json(
            {
                "recipes": [
                    {"name": name, "description": text, "path": recipe.path(name)} for name, text in found
                ]
            }
        )
    else:
        print_rows(found)


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Print a recipe."""
    recipe.require(name)
    if as_json:
        loaded = recipe.load(name)
        print_json({"recipe": loaded.model_dump(mode="json", by_alias=True, exclude_unset=True)})
    else:
        typer.echo(recipe.path(name).read_text(encoding="utf-8"), nl=False)


@app.command()
def cp(
    name: Name,
    target: Annotated[Path, typer.Argument(help="A folder or a new file.")] = Path(),
    as_json: Json = False,
) -> None:
    """Copy a recipe, to change it."""
    place = recipe.copy(name, target)
    if as_json:
        print_json({"path": place})
    else:
        typer.echo(str(place))


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="Files or built-in names.")],
    as_json: Json = False,
) -> None:
    """Check recipes; the exit status is 1 when one is not valid."""
    from sparsify.runner.validate import complaints

    found = {file: complaints(file) for file in files}
    if as_json:
        rows = [{"recipe": file, "valid": not errors, "errors": errors} for file, errors in found.items()]
        print_json({"recipes": rows})
    else:
        for file, errors in found.items():
            typer.echo("\n".join(errors) or f"{file}: valid")
    if any(found.values()):
        raise typer.Exit(NEGATIVE)


@app.command()
def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of recipe files, for editors; with --json inside an object, as all verbs do."""
    if as_json:
        print_json({"json_schema": recipe.json_schema()})
    else:
        typer.echo(json.dumps(recipe.json_schema(), indent=2))


@app.command()
def plot(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="A file or a built-in name.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the drawing as SVG.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the share of zeros over the steps of a training."""
    from sparsify.pruning import plot as drawing

    found = drawing.schedules(recipe.load(name))
    if out is not None:
        try:
            out.write_text(drawing.as_svg(found), encoding="utf-8")
        except OSError as error:
            raise SparsifyError(f"cannot write {out}: {error.strerror}", "choose another place") from error
    if as_json:
        rows = [
            {"rule": rule, "updates": [[s, one.target(s)] for s in range(one.end + 1) if one.is_update(s)]}
            for rule, one in found.items()
        ]
        print_json({"schedules": rows})
    else:
        typer.echo(drawing.as_text(found))


@app.command("import")
def import_recipe(
    file: Annotated[Path, typer.Argument(help="A YAML file of SparseML or llm-compressor.")],
    steps_per_epoch: Annotated[
        int | None, typer.Option(help="Turns epochs into steps; needed for parts of epochs.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the recipe.")] = None,
    as_json: Json = False,
) -> None:
    """Read a recipe of SparseML or llm-compressor: modifiers that prune become rules, others are listed."""
    from ruamel.yaml import YAML

    found = recipe.import_recipe(file, steps_per_epoch)
    text = io.StringIO()
    text.writelines(f"# passed over: {note}\n" for note in found.notes)
    writer = YAML()
    writer.default_flow_style = None
    writer.dump(found.recipe, text)
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as opened:
                opened.write(text.getvalue())
        except OSError as error:
            raise SparsifyError(f"cannot write {out}: {error.strerror}", "choose another place") from error
    if as_json:
        print_json({"recipe": found.recipe, "notes": found.notes, "path": out})
    else:
        typer.echo(text.getvalue() if out is None else str(out), nl=out is not None)
