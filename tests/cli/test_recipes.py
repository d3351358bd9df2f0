"""`sparsify recipes`: list, show, copy, validate, schema."""

import json
from pathlib import Path

import pytest

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
    assert "Traceback" not in found.err
    assert mine.read_text() == "mine"


def test_cp_to_a_place_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    found = cli("recipes", "cp", "gcn", tmp_path / "missing" / "mine.yaml")
    assert (found.status, found.out) == (USAGE, "")
    assert found.err.startswith(f"sparsify: cannot write {tmp_path / 'missing' / 'mine.yaml'}: ")


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


def test_validate_lists_all_mistakes(cli: Cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "schema: 1\nname: wrong\nsparsify:\n  - {targets: [x], role: wieght}\n"
        "  - {targets: [y], prune: {sparsity: 2}}\nfuse: {enabld: true}\n"
    )
    found = cli("recipes", "validate", wrong)
    assert found.status == NEGATIVE
    lines = found.out.splitlines()
    assert [line.removeprefix(str(wrong)).split(":")[1] for line in lines] == ["4", "5", "5", "6"]
    assert "did you mean 'weight'?" in lines[0]
    assert "did you mean 'enabled'?" in lines[-1]


def test_validate_looks_at_formats_and_models(cli: Cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "schema: 1\nname: wrong\nmodel: {factory: gcm}\nsparsify:\n"
        "  - {targets: [x], format: crs}\n  - {targets: [y], format: {levels: [dense, dense], ordering: [0, 2]}}\n"
    )
    found = cli("recipes", "validate", "--json", wrong)
    assert found.status == NEGATIVE
    (entry,) = json.loads(found.out)["recipes"]
    assert not entry["valid"]
    first, second, third = entry["errors"]
    assert first.startswith(f"{wrong}:5:5: format: no format is called 'crs'; did you mean csr?")
    assert second.startswith(f"{wrong}:6:5: format: ")
    assert "there is no model 'gcm'; did you mean gcn?" in third


@pytest.mark.parametrize("verb", ["show", "cp"])
def test_a_wrong_name_gets_a_suggestion(cli: Cli, verb: str) -> None:
    found = cli("recipes", verb, "gnc")
    assert (found.status, found.out) == (USAGE, "")
    names = ", ".join(recipe.names())
    assert found.err == f"sparsify: no built-in recipe 'gnc'; did you mean gcn or gin? there are {names}\n"


def test_a_folder_is_no_recipe(cli: Cli, tmp_path: Path) -> None:
    assert "a folder is no recipe" in cli("recipes", "validate", tmp_path).out


def test_schema_json(cli: Cli) -> None:
    printed = json.loads(cli("recipes", "schema", "--json").out)
    assert printed["schema"] == 1
    assert printed["json_schema"] == recipe.json_schema()
