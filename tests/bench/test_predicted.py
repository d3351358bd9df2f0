"""Predicted against measured times."""

import time

import pytest

from sparsify.bench import predicted
from sparsify.bench.predicted import Prediction, median_ratio, table
from sparsify.compiler.schedule.cost.machine import Machine


def test_too_much_and_too_little_count_alike():
    found = [Prediction("a", 20.0, 10.0), Prediction("b", 5.0, 10.0), Prediction("c", 10.0, 10.0)]
    assert median_ratio(found) == 2.0
    assert "within 2.00x in the median of 3 kernels" in table(found)


def test_a_kernel_is_measured():
    name, text, make = next(iter(predicted.kernels(0.01)))
    found = predicted.predicted(name, text, make(), Machine(), 0.0, time.perf_counter_ns)
    assert found.predicted_us > 0
    assert found.measured_us > 0
    assert found.to_dict()["ratio"] == pytest.approx(found.predicted_us / found.measured_us)


def test_all_kinds_of_kernels_are_there():
    kinds = [name.split()[0] for name, _, _ in predicted.kernels(0.01)]
    assert {"spmm", "sddmm", "spmv", "spgemm", "add", "linear", "dense"} == set(kinds)
