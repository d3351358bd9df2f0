"""Overlap is chosen where the inner half hides more waiting than its division costs."""

import torch

from sparsify.scale.cost import Machine
from sparsify.scale.overlap.choose import Network, saving
from sparsify.scale.overlap.halves import Half

MACHINE = Machine(memory_bytes_per_s=1e10)


def half(rows: int, edges: int, borrowed: int) -> Half:
    """A half of so many rows, edges and borrowed rows."""
    return Half(
        *(torch.empty(size) for size in ((rows,), (edges,), (2, edges), (borrowed,), (rows + borrowed,)))
    )


HALVES = half(90_000, 900_000, 5_000), half(10_000, 100_000, 5_000)


def test_slow_networks_hide_behind_the_inner_half() -> None:
    found = saving(HALVES, 10_000, [512], 100_000, Network(1e8, 1e-4, 1.0), MACHINE)
    assert found.is_worthwhile and found.inner == 0.9
    assert found.hidden_s < found.exchange_s  # the inner half takes less than 51 ms
    assert found.hidden_s == 900_000 * 520 / 1e10


def test_copies_hide_nothing() -> None:
    """Where this process works for all of the exchange, as within one machine without idle cores."""
    found = saving(HALVES, 10_000, [512], 100_000, Network(1e8, 1e-4, 0.0), MACHINE)
    assert not found.is_worthwhile and found.hidden_s == 0


def test_small_exchanges_are_not_divided() -> None:
    small = half(90, 900, 5), half(10, 100, 5)
    assert not saving(small, 10, [512], 0, Network(1e9, 1e-5, 1.0), MACHINE).is_worthwhile


def test_dividing_large_inputs_costs_more_than_it_hides() -> None:
    network = Network(1e8, 1e-4, 1.0)
    assert saving(HALVES, 10_000, [512], 0, network, MACHINE).is_worthwhile
    assert not saving(HALVES, 10_000, [512], 10**9, network, MACHINE).is_worthwhile
