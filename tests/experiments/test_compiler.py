"""Every row at a tiny size: right results and a table."""

import pytest

from experiments.compiler import command, first_calls, scheduling, small
from experiments.foundation.command import table
from sparsify.bench.place import Place

TINY = Place(None, 0.004)
QUICK = [name for name in command.CASES if name != "mttkrp-3"]


def check(name):
    row = command.run_row(name, TINY, quick=True)
    assert row["name"] == name
    assert all(contender["median_us"] > 0 for contender in row["contenders"])
    assert all(target["reached"] > 0 for target in row["targets"])
    assert name in table([row])


@pytest.mark.parametrize("name", QUICK)
def test_row(name):
    check(name)


@pytest.mark.slow
def test_row_against_torch_compile():
    check("mttkrp-3")


@pytest.mark.parametrize("name", small.ROWS)
def test_small_work(name):
    row = command.run_row(name, TINY, quick=True)
    assert [target["asked"] for target in row["targets"]] == [5.0]
    assert " us " in table([row])


def test_scheduling():
    row = scheduling.row(12)
    assert [target["asked"] for target in row["targets"]] == [20.0] * 3
    assert row["targets"][2]["reached"] == max(row["taken_ms"].values())
    assert "scheduling" in table([row])


def test_einsums_are_drawn_again_from_their_seeds():
    drawn = [scheduling.draw(seed) for seed in range(40)]
    assert [str(each) for each in drawn] == [str(scheduling.draw(seed)) for seed in range(40)]
    letters = {len(set(each.subscripts) - set(",->")) for each in drawn}
    assert letters == {6, 7, 8} and {len(each.formats) for each in drawn} == {2, 3, 4, 5}


@pytest.mark.sampled(3)
def test_first_calls(monkeypatch):
    monkeypatch.setenv("SPARSIFY_CXXFLAGS", "-O0")  # what is called matters here, not how fast it is
    row = first_calls.row(processor=True, every=80)
    assert [target["asked"] for target in row["targets"][:3]] == [300.0, None, 1500.0]
    assert row["targets"][2]["reached"] == max(row["first_ms"].values())
    assert row["targets"][2]["data"] in table([row])


def test_the_command_knows_its_rows(capsys):
    assert command.main(["--rows", "nothing"]) == 2
    assert "spgemm-pubmed" in capsys.readouterr().err
