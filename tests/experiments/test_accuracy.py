"""The table of accuracies: rows of all methods with equal steps, and recipes that ask for what a row says."""

import csv
import json
import re

import pytest

from experiments.accuracy.__main__ import COLUMNS, METHODS, STUDIES, asked_of, main, write
from sparsify import recipe as recipes


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.model)
@pytest.mark.parametrize("method", METHODS)
def test_recipes_ask_for_the_row(study, method):
    rules = [rule for rule in recipes.load(asked_of(study, method, 0.95, 100)).rules if rule.prune]
    assert rules
    assert all(rule.prune.sparsity == 0.95 for rule in rules)
    assert all((rule.schedule is not None) == ("schedule" in METHODS[method]) for rule in rules)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_the_table(tmp_path, capsys):
    file = tmp_path / "rows.csv"
    assert main(["--only", "lenet300", "--steps", "8", "--out", str(file)]) == 0
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert [row["method"] for row in rows] == [
        "dense",
        *(name for name in STUDIES[0].methods for _ in STUDIES[0].zeros),
    ]
    for row in rows[1:]:
        assert float(row["zeros"].rstrip("%")) == pytest.approx(float(row["asked"].rstrip("%")), abs=0.2)
    assert "validation loss" in capsys.readouterr().out


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_what_rows_were_measured_with(tmp_path):
    file = tmp_path / "rows.json"
    asked = ["--only", "lenet300", "--methods", "gmp", "--steps", "4", "--runs", str(tmp_path / "runs")]
    assert main([*asked, "--out", str(file)]) == 0
    first, *_ = rows = json.loads(file.read_text(encoding="utf-8"))
    assert [row["zeros"] for row in rows] == list(STUDIES[0].zeros)
    assert len(first["data sha256"]) == 64 and first["samples"] == 4 * STUDIES[0].batch_size
    assert first["layers"] and first["scope"] == ["layer"] and first["evaluation split"]
    assert first["validations"][-1]["step"] == 4 and first["row"]["method"] == "gmp"
    assert main([*asked, "--out", str(file)]) == 0  # goes on from what is there
    assert json.loads(file.read_text(encoding="utf-8"))[0]["validations"] == first["validations"]


def test_drawings(tmp_path):
    def row(method, zeros, accuracy):
        last = {"accuracy": accuracy, "cosine": None, "loss": 0.5}
        return {
            "model": "lenet5",
            "method": method,
            "zeros": zeros,
            "evaluation split": "test",
            "validations": [{**last, "accuracy": 0.1}, last],
        }

    rows = [row("dense", 0, 0.9), row("gmp", 0.9, 0.7), row("gmp", 0.5, 0.8), row("set", 0.5, 0.4)]
    write(tmp_path / "table.svg", [], rows)
    drawing = (tmp_path / "table-lenet5.svg").read_text(encoding="utf-8")
    curves = dict(
        zip(("dense", "gmp", "set"), re.findall(r'points="([^"]*)" fill="none"', drawing), strict=True)
    )
    (left, dense), (right, level) = [point.split(",") for point in curves["dense"].split()]
    assert dense == level and float(left) < float(right)
    (first, better), (last, worse) = [list(map(float, one.split(","))) for one in curves["gmp"].split()]
    assert first < last and better < worse  # downwards
    assert "accuracy of lenet5, test" in drawing


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["--quick", "--only", "lenet300", "--data-root", str(tmp_path / "none")]) == 3
    assert "there is no folder" in capsys.readouterr().err
