"""Recipes from files, built-in names, mappings and recipes.

In: `"gcn"`, `"my/recipe.yaml"`, `{"schema": 1, ...}`. Out: a checked `Recipe`, or a `RecipeError` with
file:line:column.
"""

import typing
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from sparsify.errors import RecipeError, RecipeNotFoundError, path_of
from sparsify.recipe import builtin
from sparsify.recipe.limits import MAX_BYTES
from sparsify.recipe.schema import Recipe, Rule
from sparsify.recipe.source import TOO_DEEP, Path, Position, Source, read, substitute
from sparsify.recipe.stages import folded
from sparsify.recipe.suggestion import nearest
from sparsify.recipe.unsupported import refusal

# Maximum number of mistakes in an error text, and maximum characters of each.
COMPLAINTS = 20
WIDTH = 1000
MOST_READ = 1000


def load(recipe: str | PathLike[str] | Mapping[str, Any] | Recipe, **overrides: Any) -> Recipe:
    """Checked recipe of a path, a built-in name or a mapping, with `overrides` of its arguments.

    Raises:
        RecipeError: the file is missing, not YAML, or contradicts the schema.

    >>> load("gcn").name
    'gcn'
    """
    if isinstance(recipe, Recipe):
        return (
            recipe
            if not overrides
            else load(recipe.model_dump(by_alias=True, exclude_unset=True), **overrides)
        )
    if isinstance(recipe, Mapping):
        try:
            data = plain(recipe)
        except RecursionError:
            raise RecipeError(TOO_DEEP, "<recipe>") from None
        return from_source(Source("<recipe>", data, {(): Position(0, 0)}), overrides)
    if not isinstance(recipe, str | PathLike):
        raise RecipeError(
            f"{type(recipe).__name__} is no recipe; a path, a built-in name ({', '.join(builtin.names())}) or a mapping"
        )
    path = locate(recipe)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe: {error}", str(path), 0, 0) from None
    return from_source(read(text, str(path)), overrides)


def loads(text: str, file: str = "<text>", **overrides: Any) -> Recipe:
    """Recipe written in `text`."""
    if not isinstance(text, str):
        raise RecipeError(f"a recipe of type {type(text).__name__}; YAML as text", file)
    return from_source(read(text, file), overrides)


def locate(name: str | PathLike[str]) -> FilePath:
    """File of a recipe given by path or built-in name."""
    path = path_of(name, "the recipe")
    with suppress(OSError):  # a name that is too long for a file
        if path.is_file():
            return path
    known = builtin.names()
    if str(name) in known:
        return builtin.path(str(name))
    kind = None
    with suppress(OSError):
        if path.exists():
            kind = "folder" if path.is_dir() else "pipe or device"
    if kind is not None:
        raise RecipeNotFoundError(f"a {kind} is no recipe", str(name), 0, 0)
    raise RecipeNotFoundError(
        f"no file and no built-in recipe {str(name)!r}{nearest(str(name), known)}", str(name), 0, 0
    )


def plain(value: Any) -> Any:
    """`value` with mappings as dicts and sequences as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_source(source: Source, overrides: Mapping[str, Any]) -> Recipe:
    """Checked recipe of plain data; errors have the position of the offending part."""
    substitute(source, overrides)
    try:
        recipe = Recipe.model_validate(source.data)
    except ValidationError as error:
        raise described(error, source) from None
    recipe._file = source.file
    position_rules(recipe, source)
    return recipe


def position_rules(recipe: Recipe, source: Source) -> None:
    """Writes line and column into the rules of `recipe`."""
    places: list[tuple[Rule, Path]] = [(rule, ("sparsify", r)) for r, rule in enumerate(recipe.sparsify)]
    for number, stage in enumerate(recipe.stages):
        places += [(rule, ("stages", number, "sparsify", r)) for r, rule in enumerate(stage.sparsify)]
    for rule, place in places:
        at = source.position(place)
        rule._line, rule._column = at.line, at.column
    recipe._folded = folded(recipe.stages)  # after the loop: copies of rules include their positions


def described(error: ValidationError, source: Source) -> RecipeError:
    """All mistakes of `error`, a line each, at the position of the first."""
    found: dict[tuple[int, int], RecipeError] = {}
    complaints = error.errors()[:MOST_READ]
    for complaint in sorted(
        complaints, key=lambda one: one["type"] == "missing"
    ):  # a key misspelt comes first
        if complaint["type"] == "string_type" and isinstance(complaint["input"], dict):
            continue  # a format by its levels is no text: the other union member reports the mistake
        one = complained(complaint, source)
        found.setdefault((one.line, one.column), one)  # a union reports once for each member
    first, *others = (found[place] for place in sorted(found))
    lines = [first.message, *map(str, others[: COMPLAINTS - 1])]
    if len(others) >= COMPLAINTS:
        lines.append(f"and {len(others) - COMPLAINTS + 1} further mistakes")
    message = "\n".join(line if len(line) <= WIDTH else f"{line[:WIDTH]}..." for line in lines)
    return RecipeError(message, first.file, first.line, first.column)


def complained(complaint: Any, source: Source) -> RecipeError:
    """One mistake in the words and at the position of the file."""
    path = written(complaint["loc"], source.data)
    name = ".".join(str(part) for part in path)
    message = complaint["msg"].removeprefix("Value error, ")
    section = section_at(path[:-1])
    refused = refusal(section.__name__ if section else "", str(path[-1]) if path else "", complaint["input"])
    if complaint["type"] == "extra_forbidden":
        key = str(path[-1])
        message = refused or f"unknown key {key!r}{nearest(key, keys_of(section))}"
    elif complaint["type"] in ("missing", "too_short") and path[-1] == "targets":
        message = "a rule needs `targets`"
    elif complaint["type"] == "missing" and isinstance(path[-1], int):
        message = f"{name.rpartition('.')[0]}: entry {path[-1] + 1} is missing"
    elif complaint["type"] == "missing":
        message = f"the key {path[-1]!r} is missing"
    elif complaint["type"] == "literal_error" and refused:
        message = refused
    elif complaint["type"] == "literal_error":
        options = [part.strip(" '") for part in complaint["ctx"]["expected"].replace(" or ", ", ").split(",")]
        message = f"{name}: {complaint['input']!r} is not known{nearest(str(complaint['input']), options)}"
    elif name:
        message = f"{name}: {message}"
    return source.error(message, path)


def written(loc: tuple[str | int, ...], data: Any) -> Path:
    """Path of a pydantic location in the file, without the names of union members."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(data, dict) and (part in data or last):
            data = data.get(str(part))
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            continue
        path.append(part)
    return tuple(path)


def section_at(path: Path) -> type[BaseModel] | None:
    """Section of the schema at `path`."""
    model: type[BaseModel] | None = Recipe
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        field = next((f for key, f in model.model_fields.items() if part in (key, f.alias)), None)
        model = model_of(field.annotation) if field else None
    return model


def keys_of(section: type[BaseModel] | None) -> list[str]:
    """Keys of a section."""
    return [field.alias or key for key, field in section.model_fields.items()] if section else []


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Section class inside a type such as `tuple[Rule, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := model_of(part))), None)


def json_schema() -> dict[str, Any]:
    """JSON Schema of recipe files, for editors."""
    schema = Recipe.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "sparsify recipe", **schema}
