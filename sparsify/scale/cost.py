"""A model of cost: the time of message passing over the parts of a graph, and what an exchange sends.

In: the sizes of parts in `meta.json`. Out: `predict(meta, Machine())`, with bytes of an exchange and the speed-up that
they allow. The model is a roofline: memory traffic of one layer over the bandwidth of a process, bytes over that of the
network, and a latency; a layer waits for the slowest process, and computes while nothing travels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENTRY_BYTES = 4


@dataclass(frozen=True)
class Machine:
    """Assumed rates of processes and network.

    Attributes:
        columns: of the rows that are exchanged, float32.
        memory_bytes_per_s: that one process reads and writes.
        flops_per_s: of dense products in one process.
        network_bytes_per_s: between two processes, each way.
        latency_s: of one exchange.
    """

    columns: int = 128
    memory_bytes_per_s: float = 10e9
    flops_per_s: float = 50e9
    network_bytes_per_s: float = 1e9
    latency_s: float = 100e-6

    def __str__(self) -> str:
        return (
            f"{self.columns} columns of float32, {self.memory_bytes_per_s / 1e9:g} GB/s of memory and "
            f"{self.flops_per_s / 1e9:g} GFLOP/s in each process, {self.network_bytes_per_s / 1e9:g} GB/s and "
            f"{self.latency_s * 1e6:g} us of network, computing waits for the exchange"
        )


@dataclass(frozen=True)
class Prediction:
    """Predicted cut, halo, bytes and times of the parts of a graph.

    Attributes:
        cut: the share of edges between parts.
        halo: rows of others that the parts read, as a share of all rows.
        balance: rows and edges of the largest part, over the mean: the greater of the two.
        exchange_bytes: that all processes send in one exchange.
        most_bytes: that one process sends or receives in it.
        layer_s, exchange_s: the slowest process, in one layer.
        one_process_s: the layer in one process.
    """

    cut: float
    halo: float
    balance: float
    exchange_bytes: int
    most_bytes: int
    layer_s: float
    exchange_s: float
    one_process_s: float

    @property
    def speedup(self) -> float:
        """The speed-up over one process."""
        return self.one_process_s / (self.layer_s + self.exchange_s)


def layer_seconds(rows: int, edges: int, machine: Machine) -> float:
    """The time of gathering and adding rows along edges, and of one dense product of the rows.

    `edges (columns 4 + 8) + 2 rows columns 4` bytes, `2 rows columns^2` operations.
    """
    row = machine.columns * ENTRY_BYTES
    moved = edges * (row + 8) + 2 * rows * row
    return moved / machine.memory_bytes_per_s + 2 * rows * machine.columns**2 / machine.flops_per_s


def predict(meta: Mapping[str, Any], machine: Machine) -> Prediction:
    """The prediction for the parts that a `meta.json` describes.

    >>> sizes = [{"rows": 8, "edges": 16, "halo": 2, "sent": 2}] * 2
    >>> found = predict({"nodes": 16, "edges": 32, "cut": 4, "parts": 2, "sizes": sizes}, Machine(columns=1))
    >>> found.exchange_bytes, found.halo, found.balance
    (16, 0.25, 1.0)
    """
    sizes, parts, row = meta["sizes"], meta["parts"], machine.columns * ENTRY_BYTES
    most = max(max(size["halo"], size["sent"]) for size in sizes) * row
    balances = [
        max(size[kind] for size in sizes) * parts / meta[whole]
        for kind, whole in (("rows", "nodes"), ("edges", "edges"))
        if meta[whole]
    ]
    halo = sum(size["halo"] for size in sizes)
    return Prediction(
        cut=meta["cut"] / max(meta["edges"], 1),
        halo=halo / meta["nodes"],
        balance=max(balances),
        exchange_bytes=halo * row,
        most_bytes=most,
        layer_s=max(layer_seconds(size["rows"], size["edges"], machine) for size in sizes),
        exchange_s=0.0 if parts == 1 else machine.latency_s + most / machine.network_bytes_per_s,
        one_process_s=layer_seconds(meta["nodes"], meta["edges"], machine),
    )
