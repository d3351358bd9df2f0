"""Several processes equal one: outputs, gradients, ten steps of AdamW; what goes wrong is an error in each of them."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import sparsify
from sparsify.errors import DataError, ProcessError
from sparsify.scale import parts
from sparsify.scale.edge_list import open_edges
from sparsify.scale.partition import partition

from .graph_models import NAMES, NODES, arguments, losses, model, train, write_graph

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def pairs_of(names: tuple[str, ...]) -> list[tuple[str, torch.dtype]]:
    """All models in float64, the first one in float32."""
    return [*((name, torch.float64) for name in names), (names[0], torch.float32)]


def run(rank: int, count: int, folder: Path, names: tuple[str, ...], has_errors: bool) -> None:
    """One process: trains every model on its part."""
    torch.set_num_threads(1)
    timeout = __import__("datetime").timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count, timeout=timeout
    )
    if has_errors:
        refuse(rank, folder)
    found = {}
    for name, dtype in pairs_of(names):
        part = sparsify.shard(model(name, dtype), graph=folder / "parts")
        given = arguments(name, part.data, dtype)
        loss = losses(name, part.data, part.count(part.data.train_mask), dtype)
        out, gradients, parameters = train(part, given, loss)
        found[name, dtype] = (out if name == "pooled" else part.whole(out), gradients, parameters)
    dropped = sparsify.shard(torch.nn.Sequential(torch.nn.Dropout(0.5)), graph=folder / "parts")
    found["dropout"] = dropped.whole(dropped(torch.ones(len(dropped.data.rows), 7)))
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    if has_errors and rank == 1:
        os._exit(0)
    if has_errors:
        with pytest.raises(ProcessError, match="failed in process 0: process 1 ended"):
            part.count(part.data.train_mask)
    else:
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
    part = sparsify.shard(net, graph=folder / "parts")
    with pytest.raises(DataError, match=r"x is .* in process ., which has .* rows"):
        part(part.data.x[:7], part.data.edge_index, part.data.edge_weight)


def compare(folder: Path, data: dict[str, torch.Tensor], count: int, names: tuple[str, ...]) -> None:
    """All processes have the results of one."""
    whole: Any = SimpleNamespace(**data)
    told = [torch.load(folder / f"{rank}.pt") for rank in range(count)]
    for name, dtype in pairs_of(names):
        loss = losses(name, whole, int(whole.train_mask.sum()), dtype)
        out, gradients, parameters = train(model(name, dtype), arguments(name, whole, dtype), loss)
        for found in told:
            pairs = [(out, found[name, dtype][0])]
            for mine, others in zip((gradients, parameters), found[name, dtype][1:]):
                assert mine.keys() == others.keys()
                pairs += [(mine[key], others[key]) for key in mine]
            for one, other in pairs:
                most = TOLERANCES[dtype] * max(float(one.abs().max()), 1e-3)
                assert float((one - other).abs().max()) <= most, (name, dtype)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    data = write_graph(tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 2, "stream", tmp_path / "parts")
    partition(tmp_path / "graph.pt", 2, "range", tmp_path / "other")
    partition(tmp_path / "graph.pt", 3, "range", tmp_path / "three")
    shutil.copytree(tmp_path / "parts", tmp_path / "missing")
    (tmp_path / "missing" / "part-1" / "graph.safetensors").unlink()
    mp.spawn(run, (2, tmp_path, NAMES, True), nprocs=2)
    compare(tmp_path, data, 2, NAMES)


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
    mp.spawn(run, (4, tmp_path, names, False), nprocs=4)
    compare(tmp_path, data, 4, names)
    (first, *others) = (torch.load(tmp_path / f"{rank}.pt")["dropout"] for rank in range(4))
    assert all(torch.equal(first, other) for other in others)
    assert set(first.unique().tolist()) == {0.0, 2.0} and 0.4 < float((first == 0).float().mean()) < 0.6
