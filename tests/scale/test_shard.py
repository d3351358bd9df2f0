"""Several processes equal one: outputs, gradients, ten steps of AdamW; what goes wrong is an error in each of them."""

import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

import sparsify
from sparsify import options
from sparsify.errors import DataError, ProcessError
from sparsify.scale import checkpoint, halo, parts
from sparsify.scale.edge_list import open_edges
from sparsify.scale.partition import partition
from tests.fork_server import run_ranks
from tests.training.processes import leave_together

from .graph_models import NAMES, NODES, Dropped, arguments, losses, model, steps, train, write_graph

# Models by hand need no other library.
PRESENT = NAMES if find_spec("torch_geometric") else ("hand", "norm")
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def pairs_of(names: tuple[str, ...]) -> list[tuple[str, torch.dtype]]:
    """All models in float64, the first one in float32."""
    return [*((name, torch.float64) for name in names), (names[0], torch.float32)]


def run(
    rank: int,
    count: int,
    folder: Path,
    names: tuple[str, ...],
    has_errors: bool,
    kernels: tuple[str, ...] = (),
    overlaps: tuple[str, ...] = (),
) -> None:
    """One process: trains every model on its part."""
    torch.set_num_threads(1)
    timeout = __import__("datetime").timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count, timeout=timeout
    )
    if has_errors:
        refuse(rank, folder)
        compare_calls(rank, folder)
    found = {}
    for name, dtype in pairs_of(names):
        part = sparsify.shard(model(name, dtype), graph=folder / "parts")
        given = arguments(name, part.data, dtype)
        loss = losses(name, part.data, part.count(part.data.train_mask), dtype)
        out, gradients, parameters = train(part, given, loss)
        found[name, dtype] = (out if name == "pooled" else part.whole(out), gradients, parameters)
        if name in kernels and dtype == torch.float64:
            part = sparsify.shard(model(name, dtype), "gcn", graph=folder / "parts")
            with options.override(compiler_flags=("-O0",)):
                out, gradients, parameters = train(part, given, loss)
            assert part.report.regions or len(part.data.rows) < 2, part.report
            found[name, dtype, "gcn"] = (part.whole(out), gradients, parameters)
        if name in overlaps:
            # The last process has no overlap: each decides alone, and all make the same exchanges.
            recipe = "gcn" if name in kernels and dtype == torch.float64 else None
            part = sparsify.shard(
                model(name, dtype), recipe, graph=folder / "parts", overlap=rank < count - 1
            )
            with options.override(compiler_flags=("-O0",)):
                out, gradients, parameters = train(part, given, loss)
            assert part.overlap == (
                "overlap: overlap=True" if rank < count - 1 else "no overlap: overlap=False"
            )
            found[name, dtype, "overlap"] = (part.whole(out), gradients, parameters)
    # Processes measure the network together, where one of them decides by the cost model.
    dropped = sparsify.shard(
        torch.nn.Sequential(torch.nn.Dropout(0.5)),
        graph=folder / "parts",
        overlap=False if rank == 0 else None,
    )
    dropped.data.ones = torch.ones(len(dropped.data.rows), 7)
    found["dropout"] = dropped.whole(dropped(dropped.data.ones))
    values = torch.tensor([[float(rank), torch.nan if rank == count - 1 else 1.0, -1.0]])
    most = halo.all_reduce_amax(values, [0], dropped._number)
    torch.testing.assert_close(most, torch.tensor([[count - 1.0, torch.nan, -1.0]]), equal_nan=True)
    assert halo.all_reduce_amax(torch.tensor([rank, -rank]), [0], dropped._number).tolist() == [count - 1]
    found["more steps"] = train_in_turns(folder, rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    if has_errors and rank == 1:
        os._exit(0)
    if has_errors:
        with pytest.raises(ProcessError, match="failed in process 0: process 1 ended"):
            part.count(part.data.train_mask)
        dist.destroy_process_group()
    else:
        leave_together(rank, folder, count)


def dropped(folder: Path) -> tuple[Any, optim.Optimizer]:
    """A model with dropout over parts, and its optimizer."""
    torch.manual_seed(5)
    part = sparsify.shard(Dropped(), graph=folder)
    return part, optim.AdamW(part.parameters(), 0.05)


def train_in_turns(folder: Path, rank: int) -> Tensor:
    """Ten steps, with a checkpoint after five of them."""
    part, optimizer = dropped(folder / "parts")
    steps(part, optimizer, 5)
    rows = {"memory": part.data.x + 1}
    with pytest.raises(DataError, match=r"process 1: memory is \[3, 8\]"):
        checkpoint.save(
            part, folder / "last", optimizer, rows={"memory": rows["memory"][:3]} if rank else rows
        )
    checkpoint.save(part, folder / "last", optimizer, rows=rows)
    return steps(part, optimizer, 5)


def continue_alone(folder: Path, data: dict[str, Tensor], wanted: Tensor) -> None:
    """One process goes on from the checkpoint of several, and ends where they do."""
    partition(folder / "graph.pt", 1, "range", folder / "whole")
    part, optimizer = dropped(folder / "whole")
    rows = checkpoint.load(part, folder / "last", optimizer)
    assert torch.equal(rows["memory"], data["x"] + 1)
    torch.testing.assert_close(steps(part, optimizer, 5), wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(DataError, match=r"has no readable checkpoint.json"):
        checkpoint.load(part, folder / "none")
    (folder / "last" / "rows-1.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"last cannot be loaded: .*; give a whole checkpoint"):
        checkpoint.load(part, folder / "last")
    (folder / "last" / "state.pt").write_bytes(b"x")
    with pytest.raises(DataError, match=r"(?s)last cannot be loaded: .*; give a whole checkpoint"):
        checkpoint.load(part, folder / "last")
    with pytest.raises(DataError, match="rows called numbers_of_rows"):
        checkpoint.save(part, folder / "other", rows={"numbers_of_rows": part.part.rows})
    dist.destroy_process_group()


def refuse(rank: int, folder: Path) -> None:
    """Each process has an error where one of them cannot start."""
    net = model("hand", torch.float64)
    with pytest.raises(DataError, match=r"process 1: .*graph.safetensors is missing"):
        sparsify.shard(net, graph=folder / "missing")
    with pytest.raises(ProcessError, match="has graph"):
        sparsify.shard(net, graph=folder / ("other" if rank else "parts"))
    with pytest.raises(ProcessError, match="has 3 parts, and 2 processes run; torchrun --nproc-per-node 3"):
        sparsify.shard(net, graph=folder / "three")
    with pytest.raises(DataError, match=r"process 1: .*nothing has no readable meta.json"):
        sparsify.shard(net, graph=folder / ("nothing" if rank else "parts"))
    with pytest.raises(ProcessError, match=r"process 0 has graph|process 1 has graph"):
        sparsify.shard(net, graph=folder / ("same edges" if rank else "other"))
    version, sparsify.__version__ = sparsify.__version__, "9.9" if rank else sparsify.__version__
    with pytest.raises(
        ProcessError, match=r"process . has sparsify .*, and process .*give all of them the same"
    ):
        sparsify.shard(net, graph=folder / "parts")
    sparsify.__version__ = version
    part = sparsify.shard(net, graph=folder / "parts")
    with pytest.raises(DataError, match=r"x is .* in process ., which has .* rows"):
        part(part.data.x[:7], part.data.edge_index, part.data.edge_weight)


class Scaled(nn.Module):
    """A model with dropout, whose second argument all processes have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8).double(), nn.Dropout(0.0)

    def forward(self, x: Tensor, scale: Tensor, power: float = 1.0) -> Tensor:
        return self.dropout(self.linear(x)) * scale.sum(0) ** power


def compare_calls(rank: int, folder: Path) -> None:
    """What is new in one process alone is compared in all of them, and none waits for the others."""
    net = Scaled()
    part = sparsify.shard(net, graph=folder / "other")
    x, scale = part.data.x, torch.full((5,), 2.0, dtype=torch.float64)
    torch.testing.assert_close(part(x, scale), net(x, scale))
    with pytest.raises(DataError, match="scale is not the same in all processes"):
        part(x, scale * (rank + 1))
    with pytest.raises(DataError, match="the call's modes is not the same in all processes"):
        part.train(rank == 0)(x, scale)
    part.eval()
    with pytest.raises(DataError, match="the call's arguments is not the same"):
        part(x, scale, power=1.0 + rank)
    wanted = (DataError, "no sparse") if rank else (ProcessError, "could not begin")
    with pytest.raises(wanted[0], match=wanted[1]):
        part(x, scale.to_sparse() if rank else scale)
    net.linear.bias = nn.Parameter(torch.full((8,), 3.0 + rank, dtype=torch.float64))
    with pytest.raises(DataError, match=r"the model's linear.bias is not the same in all processes"):
        part(x, scale)
    net.linear.bias = nn.Parameter(torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(part(x, scale), net(x, scale))
    rows = torch.ones(len(x), 8, dtype=torch.float64)  # ranges: as many in both processes
    with pytest.raises(DataError, match="scale has a row for each row of every part, and is the same"):
        part(x, rows)
    assert part(x, rows + rank).isfinite().all()
    with pytest.raises(DataError, match="scale has a row for each row of every part, and is the same"):
        part(x, rows)
    part.data.rows_of_parts = rows
    torch.testing.assert_close(part(x, rows), net.linear(x) * 2 * len(x))


def compare(
    folder: Path,
    data: dict[str, torch.Tensor],
    count: int,
    names: tuple[str, ...],
    kernels: tuple[str, ...] = (),
    overlaps: tuple[str, ...] = (),
) -> None:
    """All processes have the results of one."""
    whole: Any = SimpleNamespace(**data)
    told = [torch.load(folder / f"{rank}.pt") for rank in range(count)]
    for name, dtype in pairs_of(names):
        loss = losses(name, whole, int(whole.train_mask.sum()), dtype)
        out, gradients, parameters = train(model(name, dtype), arguments(name, whole, dtype), loss)
        keys = [
            (name, dtype),
            *([(name, dtype, "gcn")] if name in kernels and dtype == torch.float64 else []),
            *([(name, dtype, "overlap")] if name in overlaps else []),
        ]
        for found in [each[key] for each in told for key in keys]:
            pairs = [(out, found[0])]
            for mine, others in zip((gradients, parameters), found[1:]):
                assert mine.keys() == others.keys()
                pairs += [(mine[key], others[key]) for key in mine]
            for one, other in pairs:
                most = TOLERANCES[dtype] * max(float(one.abs().max()), 1e-3)
                assert float((one - other).abs().max()) <= most, (name, dtype)


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    data = write_graph(tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 2, "stream", tmp_path / "parts")
    partition(tmp_path / "graph.pt", 2, "range", tmp_path / "other")
    partition(tmp_path / "graph.pt", 3, "range", tmp_path / "three")
    torch.save({**data, "x": data["x"] + 1}, tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 2, "range", tmp_path / "same edges")
    shutil.copytree(tmp_path / "parts", tmp_path / "missing")
    (tmp_path / "missing" / "part-1" / "graph.safetensors").unlink()
    kernels = tuple(name for name in ("gcn", "gat") if name in PRESENT)
    overlaps = tuple(name for name in ("gat", "hand") if name in PRESENT)
    run_ranks(run, (2, tmp_path, PRESENT, True, kernels, overlaps), 2)
    compare(tmp_path, data, 2, PRESENT, kernels, overlaps)


@pytest.mark.sampled(4)
@pytest.mark.slow
def test_empty_and_unbalanced_parts(tmp_path: Path) -> None:
    data = write_graph(tmp_path / "graph.pt")
    edges = open_edges(tmp_path / "graph.pt")
    edges.count()
    part = np.where(np.arange(NODES) == 7, 3, np.arange(NODES) % 9 == 0).astype(
        np.int32
    )  # 52, 7, 0 and 1 rows
    parts.write(edges, part, 4, tmp_path / "parts", "by hand")
    names = ("hand",)
    run_ranks(run, (4, tmp_path, names, False, names), 4)
    compare(tmp_path, data, 4, names, names)
    (first, *others) = (torch.load(tmp_path / f"{rank}.pt")["dropout"] for rank in range(4))
    assert all(torch.equal(first, other) for other in others)
    assert set(first.unique().tolist()) == {0.0, 2.0} and 0.4 < float((first == 0).float().mean()) < 0.6
    continue_alone(tmp_path, data, torch.load(tmp_path / "0.pt")["more steps"])


def test_checkpoints_replace_checkpoints_alone(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 1, "range", tmp_path / "whole")
    part, optimizer = dropped(tmp_path / "whole")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(DataError, match=r"mine is there and is no checkpoint"):
        checkpoint.save(part, tmp_path / "mine", optimizer)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"
    for _ in range(2):
        checkpoint.save(part, tmp_path / "last", optimizer)
    assert not list(tmp_path.glob("last.*"))
    (tmp_path / "last").rename(tmp_path / "last.old")  # a save that ended between its two renames
    assert checkpoint.load(part, tmp_path / "last", optimizer) == {}
    checkpoint.save(part, tmp_path / "last", optimizer)
    assert not list(tmp_path.glob("last.*")) and (tmp_path / "last").is_dir()


@pytest.mark.sampled(4)
@pytest.mark.slow
def test_killed_process_is_named(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 2, "range", tmp_path / "parts")
    code = (
        "import sys, torch, sparsify; from torch import optim; from tests.scale.graph_models import Dropped, steps\n"
        "part = sparsify.shard(Dropped(), graph=sys.argv[1], timeout_s=30)\n"
        "optimizer = optim.AdamW(part.parameters())\n"
        "while True: steps(part, optimizer, 1), print('step', flush=True)"
    )
    started = start(code, [tmp_path / "parts"] * 2)
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "step\n"
    started[1].kill()
    began = time.monotonic()
    said = started[0].communicate(timeout=60)[1]
    assert started[0].returncode == 1 and time.monotonic() - began < 30
    assert "failed in process 0: process 1 ended or does not answer" in said, said
    started[1].communicate()


def start(code: str, folders: list[Path]) -> list[subprocess.Popen[str]]:
    """Python in a process for each folder, as `torchrun` starts them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    variables = {
        **os.environ,
        "WORLD_SIZE": str(len(folders)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], env={**variables, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, folder in enumerate(folders)
    ]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.slow
def test_process_without_its_folder_ends_all(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 2, "range", tmp_path / "parts")
    code = (
        "import sys, torch, sparsify; sparsify.shard(torch.nn.Linear(8, 8), graph=sys.argv[1], timeout_s=60)"
    )
    started = start(code, [tmp_path / "parts", tmp_path / "nothing"])
    for process in started:
        said = process.communicate(timeout=120)[1]
        assert "DataError: process 1: " in said and "nothing has no readable meta.json" in said
        assert process.returncode == 1  # no abort
