"""The table of accuracies: rows of all methods with equal steps, and recipes that ask for what a row says."""

import csv

import pytest

from experiments.accuracy.__main__ import COLUMNS, METHODS, STUDIES, asked_of, main
from sparsify import recipe as recipes


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.model)
@pytest.mark.parametrize("method", METHODS)
def test_recipes_ask_for_the_row(study, method):
    rules = [rule for rule in recipes.load(asked_of(study, method, 0.95, 100)).rules if rule.prune]
    assert rules
    assert all(rule.prune.sparsity == 0.95 for rule in rules)
    assert all((rule.schedule is not None) == ("schedule" in METHODS[method]) for rule in rules)


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


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["--quick", "--only", "lenet300", "--data-root", str(tmp_path / "none")]) == 3
    assert "there is no folder" in capsys.readouterr().err
