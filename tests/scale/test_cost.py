"""Predictions of training over parts: bytes are those of the plan, time and memory follow from rows and edges."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparsify.compiler.schedule.cost.machine import Curve, scaled
from sparsify.scale import cost, parts
from sparsify.scale.cost import Machine, even, machine_here, predict_training
from sparsify.scale.partition import partition

WIDTHS = (16, 8, 4)


def graph(tmp_path: Path, count: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    torch.save(torch.randint(0, 60, (2, 300), generator=generator), tmp_path / f"graph-{count}.pt")
    return partition(tmp_path / f"graph-{count}.pt", count, "range", tmp_path / f"parts-{count}", nodes=60)


@pytest.mark.parametrize("count", [2, 4])
def test_bytes_are_those_of_the_plan(tmp_path: Path, count: int) -> None:
    """Rows travel to halos and their gradients back, in each layer; gradients of weights go around a ring."""
    found = predict_training(graph(tmp_path, count), Machine(), WIDTHS)
    rows = 0
    for rank in range(count):
        part = parts.read(tmp_path / f"parts-{count}", rank)
        rows += len(part.send_rows) + len(part.halo)
    weights = 4 * (16 * 8 + 8 * 4)
    assert found.sent_bytes == 4 * (8 + 4) * rows + 2 * weights * (count - 1)
    assert found.sent_bytes / count <= found.most_bytes < found.sent_bytes


def test_one_part_exchanges_nothing(tmp_path: Path) -> None:
    found = predict_training(graph(tmp_path, 1), Machine(), WIDTHS)
    assert (found.exchange_s, found.sent_bytes, found.most_bytes) == (0.0, 0, 0)
    assert found.speedup == 1 and found.memory_bytes == found.one_process_bytes


def test_memory_and_work_fall_with_the_parts() -> None:
    """To a share of one process for the rows and edges, and the halo."""
    machine = Machine(process_bytes=0)
    one = predict_training(even(1 << 20, 1 << 22, 1, 0.0), machine, WIDTHS)
    four = predict_training(even(1 << 20, 1 << 22, 4, 0.1), machine, WIDTHS)
    assert four.work_s == pytest.approx(one.work_s / 4)
    assert 0.25 < four.memory_bytes / one.memory_bytes < 0.25 + 0.1
    slow = predict_training(even(1 << 20, 1 << 22, 4, 0.1), replace(machine, network_bytes_per_s=1e6), WIDTHS)
    assert slow.speedup < 1 < four.speedup <= 4


def test_the_machine_has_the_rates_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(scaled(2, 32), gathers=Curve(((1 << 26, 5_000.0),)), dense=Curve(((256, 80_000.0),)))
    monkeypatch.setattr(cost, "cached_machine", lambda options: found)
    machine = machine_here(Machine(network_bytes_per_s=7.0))
    assert machine.memory_bytes_per_s == 5e9
    assert machine.flops_per_s == pytest.approx(80e9 / found.spread)
    assert machine.network_bytes_per_s == 7.0
