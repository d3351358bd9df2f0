"""Figures of the machine: measured once, read back, never measured if switched off."""

import json
import os

import pytest

from sparsify import options
from sparsify.compiler import calibrate
from sparsify.compiler.schedule.cost.machine import Curve, Machine, believable, scaled


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
    forget()
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured again"))
    assert calibrate.measured(settings) == made
    forget()


def forget() -> None:
    """As in another process."""
    calibrate._known.clear()
    calibrate._final.clear()


def test_what_was_disturbed_is_measured_again_elsewhere(settings, monkeypatch):
    tried = []

    def measure(_: object) -> Machine:
        tried.append(1)
        return Machine(is_measured=True, is_agreed=False, fma=80.0 + len(tried), call_us=float(len(tried)))

    monkeypatch.setattr(calibrate, "measure", measure)
    calibrate.measured(settings)
    assert calibrate.measured(settings).tries == 1  # once a process
    for tries in range(2, calibrate.TRIES + 3):
        forget()
        found = calibrate.measured(settings)
        assert found.tries == len(tried) == min(tries, calibrate.TRIES)
    assert (found.fma, found.call_us) == (80.0 + calibrate.TRIES, 1.0)
    forget()


def test_one_calm_measurement_is_enough(settings, monkeypatch):
    measured = iter([Machine(is_measured=True, is_agreed=False), Machine(is_measured=True, fma=1e5)])
    monkeypatch.setattr(calibrate, "measure", lambda _: next(measured))
    for _ in range(4):
        forget()
        found = calibrate.measured(settings)
    assert (found.is_agreed, found.tries, found.fma) == (True, 2, 1e5)
    forget()


def test_figures_that_no_machine_has_are_put_right():
    assumed = Machine()
    reads = Curve(((1 << 14, 10.0), (1 << 18, 9e4), (1 << 22, 6e4), (1 << 26, 1e12)))
    dense = Curve(((1, 5e4), (16, 2e4), (256, 7e4)))
    found = believable(Machine(reads=reads, dense=dense, fma=1e-3, call_us=1e6, is_measured=True))
    most = assumed.reads.points[-1][1] * 50
    assert [rate for _, rate in found.reads.points] == [most] * 4
    assert [rate for _, rate in found.dense.points] == [5e4, 5e4, 7e4]
    assert (found.fma, found.call_us) == (assumed.fma / 50, assumed.call_us * 50)


@pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({**Machine().to_dict(), "fma": -1})])
def test_damaged_figures_are_not_used(settings, content):
    place = calibrate._place(settings, calibrate.key_of(settings))
    place.parent.mkdir(mode=0o700)
    place.write_text(content)
    assert calibrate.cached_machine(settings) == scaled(
        calibrate.count(settings), calibrate.target.vector_bytes(settings)
    )


def test_figures_that_others_could_write_are_not_used(settings):
    place = calibrate._place(settings, calibrate.key_of(settings))
    place.parent.mkdir(mode=0o700)
    place.write_text(json.dumps({**Machine().to_dict(), "fma": 1.0}))
    os.chmod(place.parent, 0o777)  # noqa: PTH101
    assert not calibrate.cached_machine(settings).is_measured


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


@pytest.mark.parametrize(("vector_bytes", "registers"), [(32, 16), (64, 32)])
def test_products_hide_the_latency_of_an_fma_in_the_registers_that_there_are(vector_bytes, registers):
    rows, columns = calibrate.product_tile(vector_bytes)
    vectors = columns * 4 // vector_bytes
    assert 2 * 4 <= rows * vectors <= registers - vectors - 1  # two a cycle, each done after four


def test_copying_a_matrix_hardly_counts_in_the_rate_of_products():
    lanes, copied = 16, calibrate.PRODUCT**2
    assert copied < 0.03 * calibrate.PRODUCT_ROWS * calibrate.PRODUCT**2 / lanes
