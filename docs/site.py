"""The pages of the site that lie elsewhere: the reference of recipe files, made from their JSON Schema, and the files
beside the README.

In: `recipes/schema.json`. Out: `reference/recipe.md`, a table of keys for each part of a recipe. MkDocs calls
`on_files` before it reads the pages, `on_page_markdown` with each.
"""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Files beside the README that are pages of the site.
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page of recipe files and the files beside the README."""
    schema = json.loads((ROOT / "recipes" / "schema.json").read_text(encoding="utf-8"))
    files.append(File.generated(config, "reference/recipe.md", content=recipe_page(schema)))
    for name in BESIDE:
        text = (
            (ROOT / name)
            .read_text(encoding="utf-8")
            .replace("](docs/", "](")
            .replace("](README.md", "](index.md")
        )
        for other in BESIDE:
            text = text.replace(f"]({other}", f"]({other.lower()}")
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with links to the files beside the README as pages of the site."""
    for name in BESIDE:
        markdown = markdown.replace(f"](../{name}", f"]({name.lower()}")
    return markdown


def recipe_page(schema: dict[str, Any]) -> str:
    """The reference of recipe files as Markdown: the keys at the top, then those of each part."""
    parts = [
        "# Keys of recipe files\n",
        "Every key of a recipe, its values and its default. [Recipes](../recipes.md) explains them by examples; "
        "`sparsify recipes validate FILE` checks a file, and `sparsify recipes schema` prints the JSON Schema that "
        "this page is made from, which editors read.\n",
        "## The file\n",
        table(schema),
    ]
    for name, definition in sorted(schema["$defs"].items()):
        description = definition.get("description", "")
        parts += [f"## {name}\n", f"{description}\n" if description else "", table(definition)]
    return "\n".join(parts)


def table(definition: dict[str, Any]) -> str:
    """The keys of a part of a recipe as a Markdown table."""
    properties = definition.get("properties", {})
    if not properties:
        return f"{values(definition)}\n"
    required = definition.get("required", ())
    rows = ["| key | values | default |", "|---|---|---|"]
    for key, value in properties.items():
        default = "required" if key in required else code(value.get("default"))
        rows.append(f"| `{key}` | {values(value)} | {default} |")
    return "\n".join(rows) + "\n"


def values(schema: dict[str, Any]) -> str:
    """The values that a JSON Schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(values(option) for option in schema[key]))
    if schema.get("type") == "array":
        return f"list of {values(schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping of names to {values(schema['additionalProperties'])}"
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = [f"{word} {schema[key]}" for key, word in bounds.items() if key in schema]
    return ", ".join([schema.get("type", "any value"), *limits])


def code(value: Any) -> str:
    """A value of JSON in a table cell."""
    return f"`{json.dumps(value)}`".replace("|", "\\|")
