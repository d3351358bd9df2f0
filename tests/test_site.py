"""The site: `make docs` builds it without a warning, and its pages have what people look for."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sparsify

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src"}


class Loads(HTMLParser):
    """The addresses that a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADED.get(tag, ""))
        if address and not (tag == "link" and given.get("rel") in {"prev", "next", "canonical"}):
            self.found.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(documents) > 20
    for path in documents:
        text = (site / path.with_suffix(".html")).read_text(encoding="utf-8")
        title = (ROOT / "docs" / path).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f">{title}<" in re.sub(r"<a class=\"headerlink.*?</a>", "<", text), path


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Loads()
        page.feed(path.read_text(encoding="utf-8"))
        assert page.found, path
        for address in page.found:
            assert not re.match(r"(https?:)?//", address), f"{path}: {address}"
            base = site if path.name == "404.html" else path.parent
            assert (base / address.partition("#")[0].lstrip("/")).exists(), f"{path}: {address}"


def test_the_reference_of_recipes_has_every_key(site: Path) -> None:
    schema = json.loads((ROOT / "recipes" / "schema.json").read_text(encoding="utf-8"))
    text = (site / "reference" / "recipe.html").read_text(encoding="utf-8")
    for definition in (schema, *schema["$defs"].values()):
        for key in definition.get("properties", {}):
            assert f"<code>{key}</code>" in text, key


def test_measured_figures_have_every_ratio(site: Path) -> None:
    text = (site / "measured.html").read_text(encoding="utf-8")
    files = sorted((ROOT / "docs" / "measurements").glob("*.json"))
    assert files
    for file in files:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        ratios = [
            (row["name"], one["reached"]) for row in rows if row["kind"] == "ratios" for one in row["targets"]
        ]
        limits = [
            (row["name"], one["reached"]) for row in rows if row["kind"] == "limits" for one in row["targets"]
        ]
        assert ratios or limits
        cells = re.findall(r"<tr>\n<td>(.*?)</td>(?:\n<td>.*?</td>){4}\n<td>(.*?)</td>", text)
        assert {(name, f"{reached:.2f}") for name, reached in ratios} <= set(cells)
        parts = re.findall(r"<tr>\n<td>(.*?)</td>(?:\n<td>.*?</td>){3}\n<td>(.*?)</td>\n</tr>", text)
        assert {(name, f"{reached:.0f}") for name, reached in limits} <= set(parts)
        assert (f"measurements/{file.stem}.svg" in text) == file.with_suffix(".svg").exists()


def test_the_reference_has_every_public_function(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    named = set(re.findall(r'id="sparsify(?:\.\w+)*\.(\w+)"', text))
    assert set(sparsify.__all__) <= named


def test_examples_are_code(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in text
    assert text.count('<div class="highlight">') > 10
