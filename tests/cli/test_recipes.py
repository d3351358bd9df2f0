"""`sparsify recipes`: list, show, copy, validate, schema."""

import json
from pathlib import Path

from sparsify import recipe
from sparsify.errors import FINE, NEGATIVE, USAGE

from .conftest import Cli


def test_ls(cli: Cli) -> None:
    found = cli("recipes", "ls")
    assert (found.status, found.err) == (FINE, "")
    assert [line.split()[0] for line in found.out.splitlines()] == recipe.names()


def test_descriptions_are_those_of_the_recipes(cli: Cli) -> None:
    listed = json.loads(cli("recipes", "ls", "--json").out)
    assert listed["schema"] == 1
    for entry in listed["recipes"]:
        assert entry["description"] == recipe.load(entry["path"]).description != ""


def test_show_prints_the_file(cli: Cli) -> None:
    assert cli("recipes", "show", "gcn").out == recipe.path("gcn").read_text()


def test_show_json_is_a_recipe(cli: Cli) -> None:
    shown = json.loads(cli("recipes", "show", "gcn", "--json").out)
    assert shown["schema"] == 1
    assert recipe.load(shown["recipe"]).name == "gcn"


def test_cp(cli: Cli, tmp_path: Path) -> None:
    found = cli("recipes", "cp", "gcn", tmp_path)
    assert (found.status, found.out) == (FINE, f"{tmp_path / 'gcn.yaml'}\n")
    assert recipe.load(tmp_path / "gcn.yaml").name == "gcn"


def test_cp_never_overwrites(cli: Cli, tmp_path: Path) -> None:
    mine = tmp_path / "gcn.yaml"
    mine.write_text("mine")
    found = cli("recipes", "cp", "gcn", mine)
    assert found.status == NEGATIVE
    assert "exists already" in found.err
    assert mine.read_text() == "mine"


def test_cp_of_an_unknown_recipe(cli: Cli, tmp_path: Path) -> None:
    assert cli("recipes", "cp", "gnc", tmp_path).status == USAGE


def test_validate(cli: Cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("schema: 1\nname: wrong\nsparsify:\n  - {id: a, targets: [x], fromat: csr}\n")
    found = cli("recipes", "validate", "gcn", wrong)
    assert found.status == NEGATIVE
    first, second = found.out.splitlines()
    assert first == "gcn: valid"
    assert second.startswith(f"{wrong}:4:")
    assert "unknown key 'fromat'" in second


def test_validate_json(cli: Cli, tmp_path: Path) -> None:
    found = cli("recipes", "validate", "--json", "gcn", tmp_path / "missing.yaml")
    assert found.status == NEGATIVE
    assert [entry["valid"] for entry in json.loads(found.out)["recipes"]] == [True, False]


def test_built_in_recipes_are_valid(cli: Cli) -> None:
    assert cli("recipes", "validate", *recipe.names()).status == FINE


def test_schema_is_the_one_beside_the_recipes(cli: Cli) -> None:
    printed = json.loads(cli("recipes", "schema").out)
    assert printed["title"] == "Recipe"
    assert printed == json.loads(recipe.path("gcn").with_name("schema.json").read_text())
