"""Strong scaling of a GCN's training step on a mesh: processes with one thread each against one with one thread.

    python -m experiments.scale.strong_scaling --side 59 --processes 1,2,4 --recipe gcn --out scaling.csv
    python -m experiments.scale.strong_scaling --processes 2 --overlap auto,yes,no --mbit 1000

A cube of side^3 nodes, joined with their six neighbours, is cut into ranges of nodes. The median step: wall time, CPU
time of the busiest process, bytes on the loopback interface, bytes predicted by the plan; and the peak memory of a
process. On processors that share a core, wall time cannot fall with the number of processes. With `--mbit`, exchanges
take at least the time of a network of that rate: processes sleep for the rest of it, without work.
"""

import argparse
import csv
import os
import statistics
import tempfile
import time
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy

import sparsify
from sparsify.runtime.peak import resident_bytes
from sparsify.scale.cost import machine_here, predict_training
from sparsify.scale.partition import partition
from sparsify.scale.parts import read_meta

WIDTHS = (128, 128, 16)
WARM = 3
LATENCY_S = 100e-6
OVERLAPS = {"auto": None, "yes": True, "no": False}


class Gcn(nn.Module):
    """Two graph convolutions with symmetric normalisation, by `index_add_`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(WIDTHS))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        ones = torch.ones_like(target, dtype=x.dtype)
        scale = (1 + torch.zeros(x.shape[0], dtype=x.dtype).index_add_(0, target, ones)).rsqrt()
        weight = (scale[source] * scale[target]).view(-1, 1)
        for place, layer in enumerate(self.layers):
            x = torch.relu(x) if place else x
            rows = layer(x)
            own = (scale * scale).view(-1, 1) * rows
            x = torch.zeros_like(rows).index_add_(0, target, weight * rows[source]) + own
        return x


def cube(side: int) -> dict[str, Tensor]:
    """Both directions of the edges of a cube of nodes, features and classes."""
    number = torch.arange(side**3).view(side, side, side)
    pairs = []
    for mode in range(3):
        first, second = (
            number.narrow(mode, 0, side - 1).reshape(-1),
            number.narrow(mode, 1, side - 1).reshape(-1),
        )
        pairs += [torch.stack([first, second]), torch.stack([second, first])]
    torch.manual_seed(1)
    x, y = torch.randn(side**3, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (side**3,))
    return {"edge_index": torch.cat(pairs, 1), "x": x, "y": y}


def loopback_bytes() -> int:
    """Bytes sent on the loopback interface so far."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


class Delayed:
    """An exchange that ends no earlier than at `until`."""

    def __init__(self, work: Any, until: float) -> None:
        self.work, self.until = work, until

    def wait(self) -> None:
        self.work.wait()
        time.sleep(max(self.until - time.perf_counter(), 0))


def slow_down(mbit: float) -> None:
    """Limits the rate of exchanges of this process."""
    exchange: Any = dist.all_to_all_single

    def delayed(received: Tensor, sent: Tensor, *sizes: Any, async_op: bool = False, **options: Any) -> Any:
        until = time.perf_counter() + LATENCY_S + max(sent.nbytes, received.nbytes) * 8e-6 / mbit
        work = Delayed(exchange(received, sent, *sizes, async_op=True, **options), until)
        return work if async_op else work.wait()

    setattr(dist, "all_to_all_single", delayed)  # noqa: B010  another type


def run(rank: int, count: int, folder: Path, asked: argparse.Namespace, overlap: bool | None) -> None:
    """Main function of one process: times training steps."""
    torch.set_num_threads(1)
    if asked.mbit:
        slow_down(asked.mbit)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet-{count}-{overlap}", rank=rank, world_size=count
    )
    model = Gcn()
    base = resident_bytes() / (1 << 20)
    recipe = None if asked.recipe == "-" else asked.recipe
    part = sparsify.shard(
        model, recipe, graph=folder / f"parts-{count}", verify=asked.verify, overlap=overlap
    )
    data = part.data
    optimizer = torch.optim.AdamW(part.parameters(), 0.01)
    losses, walls, cpus, sent = [], [], [], []
    for _ in range(WARM + asked.steps):
        dist.barrier()
        before, wall, cpu = loopback_bytes(), time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        out = part(data.x, data.edge_index)
        loss = cross_entropy(out, data.y, reduction="sum") / part.part.nodes
        loss.backward()
        optimizer.step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        dist.barrier()
        sent.append(loopback_bytes() - before)
        losses.append(float(part.total(loss)))
    if rank == 0:
        print(f"{count} processes, overlap {overlap}: {part.overlap}", flush=True)
    told = {
        "wall_ms": 1e3 * statistics.median(walls[WARM:]), "cpu_ms": 1e3 * statistics.median(cpus[WARM:]),
        "bytes": statistics.median(sent[WARM:]),
        "base_mib": base, "peak_mib": resident_bytes() / (1 << 20), "loss": losses[-1],
        "regions": len(part.report.regions) if part.report else 0, "halo": len(part.part.halo),
    }  # fmt: skip
    torch.save(told, folder / f"told-{count}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Prints and writes a line for each number of processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=59)
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--recipe", default="gcn", help="- for torch's operators")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--overlap", default="auto", help="auto, yes, no, or several of them")
    parser.add_argument("--mbit", type=float, default=0, help="rate of a slower network, simulated")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found, machine = [], machine_here()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        torch.save(cube(asked.side), folder / "graph.pt")
        overlaps = [OVERLAPS[name] for name in asked.overlap.split(",")]
        for count, overlap in product(map(int, asked.processes.split(",")), overlaps):
            parts = folder / f"parts-{count}"
            meta = (
                read_meta(parts).model_dump()
                if parts.exists()
                else partition(folder / "graph.pt", count, "range", parts)
            )
            spawn(run, (count, folder, asked, overlap), nprocs=count)
            told = [torch.load(folder / f"told-{count}-{rank}.pt") for rank in range(count)]
            most = {key: max(each[key] for each in told) for key in told[0]}
            halo = round(sum(each["halo"] for each in told) / asked.side**3, 4)
            line = {"recipe": asked.recipe, "processes": count, "overlap": overlap, **most, "halo": halo}
            predicted = predict_training(meta, machine, WIDTHS)
            line |= {
                "predicted_bytes": predicted.sent_bytes,
                "predicted_ms": 1e3 * predicted.work_s,
                "predicted_exchange_ms": 1e3 * predicted.exchange_s,
                "predicted_mib": predicted.memory_bytes / (1 << 20),
            }
            found.append(line)
            print(
                {key: round(value, 6) if isinstance(value, float) else value for key, value in line.items()},
                flush=True,
            )
    if asked.out:
        with asked.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, found[0])
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
