"""A run of a graph model over several local processes, compared with one process: `sparsify run gcn --nproc 2`.

In: the request of `gcn`, 2. Out: a `ShardedResult`; printed, one table. `torchrun` starts the processes, with one part
of the graph each; each process runs `main` of this module.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn.functional import cross_entropy

from sparsify import recipe as recipes
from sparsify.errors import ProcessError, SparsifyError
from sparsify.models import data, registry
from sparsify.runner.measure import milliseconds
from sparsify.runner.request import TRAINING, Request
from sparsify.runner.result import SCHEMA, mebibytes
from sparsify.runtime.machine import machine
from sparsify.runtime.peak import resident_bytes
from sparsify.scale.partition import partition
from sparsify.scale.shard import shard

TOLD: Final = "told"
ASKED: Final = "request.json"
# Warm-up steps without timing: the first steps capture and compile.
WARM: Final = 2
STEPS: Final = 10
SHOWN_LINES: Final = 12


@dataclass(slots=True)
class Processes:
    """The training in some processes.

    Attributes:
        count: number of processes.
        threads: threads of each process.
        step_ms: the median step of the slowest process.
        cpu_ms: the median CPU time of a step in the busiest process.
        sent_bytes: halo bytes sent by all processes in an exchange of one float32 column.
        peak_bytes: peak memory of the largest process.
        regions: kernels in a step.
        losses: loss of each step.
        accuracy: accuracy on the test nodes after the last step.
    """

    count: int
    threads: int
    step_ms: float
    cpu_ms: float
    sent_bytes: int
    peak_bytes: int
    regions: int
    losses: list[float]
    accuracy: float


@dataclass(slots=True, kw_only=True)
class ShardedResult:
    """A finished run over several processes.

    Attributes:
        model, recipe, graph: names of the model, the recipe and the graph.
        one, several: the training in one process, and in the requested number of processes.
        machine: facts on the machine.
    """

    model: str
    recipe: str
    graph: str
    one: Processes
    several: Processes
    machine: dict[str, str | int] = field(default_factory=dict)

    @property
    def difference(self) -> float:
        """The greatest relative difference of the losses of a step; infinite where a loss is not finite."""
        pairs = zip(self.one.losses, self.several.losses, strict=True)
        found = [abs(one - other) / max(abs(one), 1e-12) for one, other in pairs]
        return max(found) if all(map(math.isfinite, found)) else math.inf

    @property
    def exit_status(self) -> int:
        """0 if the losses equal those of one process within 1e-3, 1 otherwise."""
        return 0 if self.difference < 1e-3 else 1

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, with `"schema": 1`."""
        return {"schema": SCHEMA, **asdict(self), "difference": self.difference}

    def __str__(self) -> str:
        rows = [
            [
                f"{_counted(of.count, 'process', 'processes')}, {_counted(of.threads, 'thread', 'threads')} each",
                milliseconds(of.step_ms), milliseconds(of.cpu_ms), mebibytes(of.peak_bytes), of.regions,
                f"{of.losses[-1]:.6f}", f"{of.accuracy:.3f}",
            ]
            for of in (self.one, self.several)
        ]  # fmt: skip
        names = ["", "step", "CPU of a process", "peak memory", "kernels", "loss", "accuracy"]
        ratio = self.one.step_ms / self.several.step_ms
        return (
            f"{self.model} with recipe {self.recipe} on {self.graph}\n"
            f"{tabulate(rows, names, disable_numparse=True)}\n"
            f"{ratio:.2f}x; losses of {len(self.one.losses)} steps differ by {self.difference:.1e}; an exchange sends "
            f"{self.several.sent_bytes} bytes for each column of float32"
        )


def run_sharded(request: Request, count: int) -> ShardedResult:
    """Trains a model in one process and in several.

    Args:
        request: request of a graph model with edges as input.
        count: number of processes on this machine.

    Raises:
        SparsifyError: the model takes no edges, or `count` is below two.
        ProcessError: a process ended with an error.
    """
    if not request.entry.is_graph or request.entry.inputs == "adjacency":
        raise SparsifyError(
            f"--nproc with {request.entry.name}, which takes no edge_index", "gcn, sage, gin or gat"
        )
    if count < 2:
        raise SparsifyError(f"--nproc {count}", "2 or more; without it the model runs in this process")
    graph = data.load(request.dataset, request.data_root, request.seed)
    with tempfile.TemporaryDirectory(prefix="sparsify-") as place:
        folder = Path(place)
        rows = {
            "edge_index": graph.edge_index, "x": graph.x, "y": graph.y,
            "train_mask": _mask(graph.train, graph.nodes), "test_mask": _mask(graph.test, graph.nodes),
        }  # fmt: skip
        torch.save(rows, folder / "graph.pt")
        (folder / ASKED).write_text(json.dumps(written(request, graph.classes)), encoding="utf-8")
        found = [_processes(folder, number) for number in (1, count)]
    return ShardedResult(
        model=request.entry.name, recipe=request.recipe.name, graph=str(graph), one=found[0], several=found[1],
        machine=machine(),
    )  # fmt: skip


def _counted(count: int, one: str, several: str) -> str:
    """A number with a noun in singular or plural."""
    return f"{count} {one if count == 1 else several}"


def _mask(nodes: Tensor, count: int) -> Tensor:
    """Nodes, as numbers or as a mask, as a mask of so many."""
    return (
        nodes
        if nodes.dtype == torch.bool
        else torch.zeros(count, dtype=torch.bool).index_fill_(0, nodes, True)
    )


def _processes(folder: Path, count: int) -> Processes:
    """The training in `count` processes, started by `torchrun`.

    Raises:
        ProcessError: a process ended with an error; the message has the error lines of the processes.
    """
    partition(folder / "graph.pt", count, "stream" if count > 1 else "range", folder / f"parts-{count}")
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
        "-m", "sparsify.runner.sharded", str(folder), str(count),
    ]  # fmt: skip
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        errors = [
            line for line in lines if "Error: " in line and "torch.distributed.elastic" not in line
        ] or lines
        raise ProcessError(f"a process of {count} ended: " + "\n".join(errors[:SHOWN_LINES]))
    files = [folder / f"{TOLD}-{count}-{rank}.json" for rank in range(count)]
    told = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    most = {name: max(each[name] for each in told) for name in ("step_ms", "cpu_ms", "peak_bytes", "regions")}
    sent = sum(each["sent_bytes"] for each in told)
    return Processes(
        count, threads, sent_bytes=sent, losses=told[0]["losses"], accuracy=told[0]["accuracy"], **most
    )


def written(request: Request, classes: int) -> dict[str, Any]:
    """Parts of a request needed by a process, as plain data."""
    return {
        "model": request.entry.name, "arguments": request.arguments, "training": request.training,
        "recipe": request.recipe.model_dump(mode="json", by_alias=True, exclude_unset=True), "seed": request.seed,
        "classes": classes,
    }  # fmt: skip


def main(folder: Path, count: int) -> None:
    """Body of one process: trains on one part of the graph, and writes the measurements."""
    asked = json.loads((folder / ASKED).read_text(encoding="utf-8"))
    rank = int(os.environ["RANK"])
    torch.manual_seed(asked["seed"])  # of dropout
    features = torch.load(folder / "graph.pt")["x"].shape[1]
    model = registry.find(asked["model"]).build(features, asked["classes"], asked["arguments"], asked["seed"])
    part: Any = shard(model, recipes.load(asked["recipe"]), graph=folder / f"parts-{count}")
    rows = part.data
    wanted = TRAINING | asked["training"]
    optimizer = torch.optim.Adam(part.parameters(), wanted["lr"], weight_decay=wanted["weight_decay"])
    trained = part.count(rows.train_mask)
    steps = WARM + (asked["training"].get("epochs") or STEPS)
    part.train()
    losses, walls, cpus = [], [], []
    for _ in range(steps):
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        out = part(rows.x, rows.edge_index)
        loss = cross_entropy(out[rows.train_mask], rows.y[rows.train_mask], reduction="sum") / trained
        loss.backward()
        optimizer.step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        losses.append(float(part.total(loss)))
    regions = len(part.report.regions) if part.report is not None else 0
    part.eval()
    with torch.no_grad():
        is_right = part(rows.x, rows.edge_index).argmax(-1) == rows.y
    told = {
        "step_ms": 1e3 * statistics.median(walls[WARM:]), "cpu_ms": 1e3 * statistics.median(cpus[WARM:]),
        "sent_bytes": 4 * len(part.part.send_rows), "regions": regions, "losses": losses,
        "peak_bytes": resident_bytes(),
        "accuracy": part.count(is_right & rows.test_mask) / max(part.count(rows.test_mask), 1),
    }  # fmt: skip
    (folder / f"{TOLD}-{count}-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
