"""Cost model: the time of message passing over the parts of a graph, and the bytes of an exchange.

In: the sizes of parts in `meta.json`. Out: `predict(meta, Machine())`, with bytes of an exchange and the resulting
speed-up, and `predict_training(meta, Machine(), widths)`: time, memory and bytes of a step of training. The model is
a roofline: memory traffic of one layer over the bandwidth of a process, bytes over the network bandwidth, and a
latency; a layer waits for the slowest process, without overlap of computation and communication. `machine_here()` has
the measured rates of this machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sparsify.compiler.calibrate import cached_machine
from sparsify.options import current

ENTRY_BYTES = 4
PROCESS_BYTES = 450_000_000
FAR_BYTES = 1 << 26
# Sources, targets and numbers of edges (int64), an array of weights, and rows in both directions for kernels.
EDGE_BYTES = 64


@dataclass(frozen=True)
class Machine:
    """Assumed rates of processes and network.

    Attributes:
        columns: columns of the exchanged rows, float32.
        memory_bytes_per_s: memory bandwidth of one process.
        flops_per_s: rate of dense products in one process.
        network_bytes_per_s: bandwidth between two processes, each way.
        latency_s: latency of one exchange.
        process_bytes: memory of a process without a graph: Python, torch and the kernels.
    """

    columns: int = 128
    memory_bytes_per_s: float = 10e9
    flops_per_s: float = 50e9
    network_bytes_per_s: float = 1e9
    latency_s: float = 100e-6
    process_bytes: int = PROCESS_BYTES

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
        cut: share of edges between parts.
        halo: rows read from other parts, as a share of all rows.
        balance: rows and edges of the largest part, over the mean: the greater of the two.
        exchange_bytes: bytes sent by all processes in one exchange.
        most_bytes: maximum bytes sent or received by one process.
        layer_s, exchange_s: time of the slowest process, in one layer.
        one_process_s: time of the layer in one process.
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
    """The prediction for the parts described in a `meta.json`.

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


def even(nodes: int, edges: int, parts: int, halo: float) -> dict[str, Any]:
    """Statistics for `predict` without a graph: equal parts with a share of halo rows.

    >>> even(16, 32, 2, 0.25)["sizes"]
    [{'rows': 8, 'edges': 16, 'halo': 2, 'sent': 2}, {'rows': 8, 'edges': 16, 'halo': 2, 'sent': 2}]
    """
    rows = round(halo * nodes / parts)
    size = {"rows": nodes // parts, "edges": edges // parts, "halo": rows, "sent": rows}
    return {
        "nodes": nodes,
        "edges": edges,
        "parts": parts,
        "cut": 0,
        "sizes": [dict(size) for _ in range(parts)],
    }


def machine_here(assumed: Machine = Machine()) -> Machine:
    """The machine with the single-thread rates of this computer, measured for the kernels' own cost model.

    Rates of the network are the assumed ones.
    """
    found = cached_machine(current())
    return replace(
        assumed,
        memory_bytes_per_s=found.gathers.at(FAR_BYTES) * 1e6,
        flops_per_s=found.dense.at(256) * 1e6 / found.spread,
    )


@dataclass(frozen=True)
class Training:
    """Predicted times, memory and bytes of a step of training.

    Attributes:
        work_s: computation of the slowest process.
        exchange_s: exchange of halo rows and parameter gradients, of the process with the most traffic.
        memory_bytes: memory of the largest process.
        sent_bytes: bytes sent by all processes.
        most_bytes: maximum bytes sent by one process.
        one_process_s, one_process_bytes: time and memory of the step in one process.
    """

    work_s: float
    exchange_s: float
    memory_bytes: int
    sent_bytes: int
    most_bytes: int
    one_process_s: float
    one_process_bytes: int

    @property
    def speedup(self) -> float:
        """The speed-up over one process."""
        return self.one_process_s / (self.work_s + self.exchange_s)

    def __str__(self) -> str:
        return (
            f"{self.memory_bytes / 1e9:.1f} GB in each process ({self.one_process_bytes / 1e9:.1f} GB in one), "
            f"{self.work_s:.3g} s of work and {self.exchange_s:.3g} s of exchange a step, "
            f"{self.most_bytes / 1e9:.3g} GB sent by a process, {self.speedup:.2f}x"
        )


def predict_training(meta: Mapping[str, Any], machine: Machine, widths: Sequence[int]) -> Training:
    """The prediction of a step of training of graph convolutions, each a dense product and a sum along edges.

    Args:
        meta: sizes of the parts.
        machine: rates; `columns` are ignored.
        widths: widths of the features, and of each layer's results.

    >>> found = predict_training(even(16, 32, 2, 0.25), Machine(), (4, 2))
    >>> found.most_bytes  # a halo of 2 rows in, another out, of 2 columns, and 8 weights
    64
    """
    sizes, parts = meta["sizes"], meta["parts"]
    weights = ENTRY_BYTES * sum(before * after for before, after in pairwise(widths))
    reduced = 2 * weights * (parts - 1) / parts  # in a ring
    row = ENTRY_BYTES * sum(widths[1:])
    sent = [row * (size["sent"] + size["halo"]) + reduced for size in sizes]
    travel = max(sent) / machine.network_bytes_per_s + (2 * len(widths) - 1) * machine.latency_s
    one = {"rows": meta["nodes"], "edges": meta["edges"], "halo": 0}
    return Training(
        work_s=max(training_seconds(size["rows"], size["edges"], machine, widths) for size in sizes),
        exchange_s=0.0 if parts == 1 else travel,
        memory_bytes=machine.process_bytes + max(_bytes_of(size, widths) for size in sizes),
        sent_bytes=round(sum(sent)) if parts > 1 else 0,
        most_bytes=round(max(sent)) if parts > 1 else 0,
        one_process_s=training_seconds(one["rows"], one["edges"], machine, widths),
        one_process_bytes=machine.process_bytes + _bytes_of(one, widths),
    )


def training_seconds(rows: int, edges: int, machine: Machine, widths: Sequence[int]) -> float:
    """The time of one process for a step: three dense products a layer, two sums along edges, two passes over the rows.

    `sum_l 6 rows w_(l-1) w_l / flops + (2 edges (4 w_l + 8) + 16 rows w_l) / bandwidth`
    """
    found = 0.0
    for before, after in pairwise(widths):
        moved = 2 * edges * (ENTRY_BYTES * after + 8) + 4 * rows * ENTRY_BYTES * after
        found += 6 * rows * before * after / machine.flops_per_s + moved / machine.memory_bytes_per_s
    return found


def _bytes_of(size: Mapping[str, int], widths: Sequence[int]) -> int:
    """Memory of a part in training."""
    return training_bytes(size["rows"], size["edges"], size["halo"], widths)


def training_bytes(rows: int, edges: int, halo: int, widths: Sequence[int]) -> int:
    """Memory of a part in training: edges, reversed edges, features, and in each layer rows, halo and gradients.

    `EDGE edges + 4 rows w_0 + sum_l 4 (4 rows + halo) w_l` bytes; EDGE = 64.

    >>> training_bytes(8, 16, 2, (1, 1))
    1192
    """
    features = ENTRY_BYTES * rows * widths[0]
    return (
        EDGE_BYTES * edges + features + sum(ENTRY_BYTES * (4 * rows + halo) * width for width in widths[1:])
    )
