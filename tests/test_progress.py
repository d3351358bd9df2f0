"""The line that shows progress: on a terminal, for long work, gone in the end."""

import threading
import warnings

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options, progress
from sparsify.progress import CLEAR, stage, working


def show_on_terminal(monkeypatch, quiet_seconds=0.0):
    """Takes standard error for a terminal, and work of so many seconds for long."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", quiet_seconds)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)


def lines(text):
    return [line.rstrip("\r") for line in text.split(CLEAR) if line]


def test_stages_take_the_place_of_each_other_and_go(monkeypatch, capsys):
    show_on_terminal(monkeypatch)
    with working("GCN"):
        stage("capturing")
        with working("piece 2"):
            stage("timing")
        stage("verifying")
    text = capsys.readouterr().err
    assert lines(text) == ["GCN: capturing, 0 s", "GCN, piece 2: timing, 0 s", "GCN: verifying, 0 s"]
    assert text.endswith(CLEAR)


def test_short_work_shows_nothing(monkeypatch, capsys):
    show_on_terminal(monkeypatch, 2.0)
    with working("GCN"):
        stage("capturing")
    assert capsys.readouterr().err == ""


def test_a_first_stage_shows_itself_when_it_takes_long(monkeypatch, capsys):
    show_on_terminal(monkeypatch, 0.05)
    with working("GCN"):
        stage("capturing")
        threading.Event().wait(1.0)
    assert lines(capsys.readouterr().err) == ["GCN: capturing, 0 s"]


@pytest.mark.parametrize("quiet", [False, True])
def test_nothing_without_a_terminal_or_where_options_say_quiet(monkeypatch, capsys, quiet):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: quiet, raising=False)
    with options.override(quiet=quiet), working("GCN"):
        stage("capturing")
        progress.clear()
    assert capsys.readouterr().err == ""


def test_long_lines_are_cut_at_the_width_of_the_terminal(monkeypatch, capsys):
    show_on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "20")
    with working("GCN"):
        stage("a" * 50)
    assert [len(line) for line in lines(capsys.readouterr().err)] == [19]


def test_the_line_goes_when_work_fails(monkeypatch, capsys):
    show_on_terminal(monkeypatch)

    def fails():
        with working("GCN"):
            stage("capturing")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert capsys.readouterr().err.endswith(CLEAR)
    stage("later")
    assert capsys.readouterr().err == ""


@pytest.mark.sampled(2)
def test_apply_shows_its_stages_and_later_calls_none(monkeypatch, capsys):
    show_on_terminal(monkeypatch)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    rule = {"targets": ["param:0.weight"], "source": "given", "format": "csr"}
    recipe = {"schema": 1, "name": "line", "sparsify": [rule]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = sparsify.apply(model, recipe, (torch.randn(2, 8),))
    shown = lines(capsys.readouterr().err)
    assert shown[0] == "Sequential: capturing, 0 s"
    assert any("pass 1 of " in line for line in shown)
    assert any("comparing with the source model" in line for line in shown)
    sparse(torch.randn(3, 8))
    assert capsys.readouterr().err == ""
