"""The pages of the site that are made from other files: the reference of recipe files from their JSON Schema, measured
figures from what `sparsify bench --out` wrote, and the files beside the README.

In: `recipes/schema.json`, `docs/measurements/*.json`. Out: `reference/recipe.md`, a table of keys for each part of a
recipe; `measured.md`, tables of ratios. MkDocs calls `on_files` before it reads the pages, `on_page_markdown`
with each.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Files beside the README that are pages of the site.
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page of recipe files, that of measured figures and the files beside the README."""
    schema = json.loads((ROOT / "recipes" / "schema.json").read_text(encoding="utf-8"))
    files.append(File.generated(config, "reference/recipe.md", content=recipe_page(schema)))
    measured = sorted((ROOT / "docs" / "measurements").glob("*.json"))
    files.append(File.generated(config, "measured.md", content=measured_page(measured)))
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


def measured_page(files: Sequence[Path]) -> str:
    """The figures of files that `sparsify bench --out` wrote, as Markdown: a part for each with its picture, if any."""
    parts = [
        "# Measured figures\n",
        "Each part was measured by one command of [Measurements](bench.md), on the machine that it names; times are "
        "medians of calls in turns, ratios have their 95 % interval. Other machines have other figures.\n",
    ]
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        machine = document["machine"]
        command = document["command"].partition(" --out")[0]
        words = command.partition(" bench ")[2].split(" --")[0].split()
        suites = ", ".join(words).capitalize() or "All suites"
        versions = f"torch {machine['torch']}, {machine['compiler']}"
        parts += [
            f"## {suites}: {machine['cpu']}, {machine['vector']}, {machine['threads']} threads\n",
            f"`{command}`, {versions}\n",
        ]
        if file.with_suffix(".svg").exists():
            parts.append(f"![Ratios of the rows below](measurements/{file.stem}.svg)\n")
        parts += [part(document["rows"]) for part in (measured_table, limits_table)]
    return "\n".join(parts)


def measured_table(rows: Sequence[dict[str, Any]]) -> str:
    """The ratios of measured rows as a Markdown table; nothing where no row has any."""
    if all(row["kind"] != "ratios" for row in rows):
        return ""
    lines = [
        "| row | work | ours, ms | against | its ms | times as fast | interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = {one["name"]: one["median_us"] / 1e3 for one in row.get("contenders", ())}
        for target in row["targets"] if row["kind"] == "ratios" else ():
            fresh = ", fresh results" if target["ours"].endswith("fresh") else ""
            ours, theirs = times[target["ours"]], times[target["baseline"]]
            ratio = f"{target['reached']:.2f} | {target['low']:.2f}-{target['high']:.2f}"
            what = f"{row['name']} | {row['work']}"
            lines.append(f"| {what} | {ours:.4g}{fresh} | {target['baseline']} | {theirs:.4g} | {ratio} |")
    return "\n".join(lines) + "\n"


def limits_table(rows: Sequence[dict[str, Any]]) -> str:
    """The limits of measured rows, as memory has them, as a Markdown table; nothing where no row has any."""
    parts = [(row, target) for row in rows if row["kind"] == "limits" for target in row["targets"]]
    if not parts:
        return ""
    lines = ["| row | work | compared with | at most, % | reached, % |", "|---|---|---|---|---|"]
    for row, target in parts:
        what = f"{row['name']} | {row['work']} | {target['label']}"
        lines.append(f"| {what} | {target['asked']:.0f} | {target['reached']:.0f} |")
    return "\n".join(lines) + "\n"


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
