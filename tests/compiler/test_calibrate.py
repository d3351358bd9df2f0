"""The figures of the machine: measured once, read back, never where it is switched off."""

import json
import os

import pytest

from sparsify import options
from sparsify.compiler import calibrate
from sparsify.compiler.schedule.machine import Machine, scaled


@pytest.fixture
def settings(tmp_path):
    with options.override(cache_dir=tmp_path, tune_seconds=1.0, threads=None) as chosen:
        yield chosen


def test_nothing_is_measured_where_it_is_switched_off(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured"))
    with options.override(cache_dir=tmp_path, tune_seconds=0.0) as chosen:
        found = calibrate.measured(chosen)
    assert not found.is_measured
    assert not list(tmp_path.iterdir())


def test_figures_are_kept_for_other_processes(settings, monkeypatch):
    made = Machine(is_measured=True, call_us=1.5)
    monkeypatch.setattr(calibrate, "measure", lambda _: made)
    assert calibrate.measured(settings) is made
    calibrate._known.clear()
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured again"))
    assert calibrate.measured(settings) == made
    calibrate._known.clear()


@pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({**Machine().to_dict(), "fma": -1})])
def test_damaged_figures_are_not_used(settings, content):
    place = calibrate._place(settings, calibrate.key_of(settings))
    place.parent.mkdir(mode=0o700)
    place.write_text(content)
    assert calibrate.known(settings) == scaled(
        calibrate.count(settings), calibrate.target.vector_bytes(settings)
    )


def test_figures_that_others_could_write_are_not_used(settings):
    place = calibrate._place(settings, calibrate.key_of(settings))
    place.parent.mkdir(mode=0o700)
    place.write_text(json.dumps({**Machine().to_dict(), "fma": 1.0}))
    os.chmod(place.parent, 0o777)  # noqa: PTH101
    assert not calibrate.known(settings).is_measured


def test_probes_give_rates(monkeypatch):
    monkeypatch.setattr(calibrate, "SIZES", (1 << 14, 1 << 16))
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    monkeypatch.setattr(calibrate, "SAMPLE_NS", 1)
    with options.override(tune_seconds=1.0) as chosen:
        found = calibrate.measure(chosen)
    assert found.is_measured
    assert found.fma_all >= found.fma > 100
    assert 0 < found.call_us < 10_000
    assert all(rate > 10 for _, rate in (*found.reads.points, *found.gathers.points, *found.dense.points))
    assert calibrate.summary(found)["fma_gflops"].endswith("all")
