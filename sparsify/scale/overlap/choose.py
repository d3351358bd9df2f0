"""The decision for or against overlap, by the cost model with measured rates of the network.

In: the halves of a part, bytes of a row in each exchange, `Network`, the rates between the processes. Out:
`saving(...)`, the expected time saved in a call, and `measure(plan)`, the rates.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from sparsify.runtime.failures import named
from sparsify.scale.cost import Machine
from sparsify.scale.overlap.halves import Half

# Bytes sent by each process in a measurement, and the number of measurements.
MEASURED_BYTES: Final = 4 << 20
TRIES: Final = 3
# The time of the further calls of operators and kernels for a second half.
HALF_S: Final = 100e-6


@dataclass(frozen=True)
class Network:
    """Measured rates of an exchange between all processes.

    Attributes:
        bytes_per_s: bytes sent by a process over the time of an exchange.
        latency_s: time of an exchange of one byte for each process.
        waiting: share of the time without work of this process, 0 to 1; copies into and out of messages are work.
    """

    bytes_per_s: float
    latency_s: float
    waiting: float

    def __str__(self) -> str:
        return (
            f"{self.bytes_per_s / 1e9:.2g} GB/s and {self.latency_s * 1e6:.0f} us between processes, "
            f"{100 * self.waiting:.0f} % of it waiting"
        )


@dataclass(frozen=True)
class Saving:
    """The expected effect of overlap on one call.

    Attributes:
        inner: share of rows in the inner half.
        exchange_s: time of the exchanges without overlap.
        hidden_s: waiting time of the exchanges, as far as the inner half takes as long.
        extra_s: time of further copies and calls.
    """

    inner: float
    exchange_s: float
    hidden_s: float
    extra_s: float

    @property
    def is_worthwhile(self) -> bool:
        """Whether the hidden time exceeds the extra time."""
        return self.hidden_s > self.extra_s

    def __str__(self) -> str:
        return (
            f"{100 * self.inner:.0f} % of the rows are inner; exchanges take {self.exchange_s * 1e3:.3g} ms, of which "
            f"the inner rows hide {self.hidden_s * 1e3:.3g} ms and the division costs {self.extra_s * 1e3:.3g} ms"
        )


def saving(
    halves: Sequence[Half],
    sent_rows: int,
    row_bytes: Sequence[int],
    divided_bytes: int,
    network: Network,
    machine: Machine,
) -> Saving:
    """The expected effect of overlap on one call.

    `sum_e min(waiting (latency + sent b_e / rate), inner edges (b_e + 8) / bandwidth)` against copies of borrowed rows,
    of divided inputs and joined outputs, and calls for a second half.

    Args:
        halves: inner and boundary half.
        sent_rows: rows sent or received, the greater number.
        row_bytes: bytes of a row in each exchange.
        divided_bytes: bytes of the inputs and outputs with rows.
        network, machine: rates.
    """
    inner, boundary = halves
    borrowed = len(inner.borrowed) + len(boundary.borrowed)
    exchange_s = hidden_s = 0.0
    extra_s = 2 * divided_bytes / machine.memory_bytes_per_s
    for size in row_bytes:
        travel_s = network.latency_s + sent_rows * size / network.bytes_per_s
        inner_s = inner.edges.numel() * (size + 8) / machine.memory_bytes_per_s
        exchange_s += travel_s
        hidden_s += min(network.waiting * travel_s, inner_s)
        extra_s += 2 * borrowed * size / machine.memory_bytes_per_s + HALF_S
    rows = len(inner.rows) + len(boundary.rows)
    return Saving(len(inner.rows) / max(rows, 1), exchange_s, hidden_s, extra_s)


def measure(group: Any = None) -> Network:
    """The rates of an exchange; called by all processes together, some 20 ms in a network of 1 GB/s."""
    count = dist.get_world_size(group)
    small = [_exchange_s(1, count, group)[0] for _ in range(2 * TRIES)][1:]
    large = sorted(_exchange_s(max(MEASURED_BYTES // count, 1), count, group) for _ in range(TRIES))
    wall_s, work_s = large[len(large) // 2]
    latency_s = min(sorted(small)[len(small) // 2], 0.5 * wall_s)
    return Network(
        bytes_per_s=MEASURED_BYTES * (count - 1) / count / (wall_s - latency_s),
        latency_s=latency_s,
        waiting=min(max(1 - work_s / wall_s, 0.0), 1.0),
    )


def _exchange_s(size: int, count: int, group: Any) -> tuple[float, float]:
    """The wall time of an exchange of `size` bytes with each process, and the CPU time of this process."""
    sent, received = (torch.zeros(size * count, dtype=torch.uint8) for _ in range(2))
    with named("a measurement of the network", group):
        dist.barrier(group)
        began, worked = time.perf_counter(), time.process_time()
        dist.all_to_all_single(received, sent, group=group)
        return time.perf_counter() - began, time.process_time() - worked
