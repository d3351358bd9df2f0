"""Two processes whose gradients are reduced within the backward pass train as one does."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim

from sparsify.errors import DataError
from sparsify.training import data_parallel, distributed_data_parallel, mask_of, set_mask
from tests.fork_server import run_ranks
from tests.training.processes import leave_together
from tests.training.test_all_reduce import SIZE, masks, model

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
STEPS = 5


def batch() -> torch.Tensor:
    return torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0)).double()


def train(net: nn.Module, x: torch.Tensor, accumulate: Any = None, call: Any = None) -> None:
    """Steps of AdamW, with another mask in between; with `accumulate` each gradient is of two backward passes."""
    call = net if call is None else call
    optimizer = optim.AdamW(net.parameters(), 0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        if accumulate is not None:
            with accumulate():
                ((call(x) - 1).square().mean() / 4).backward()
            ((call(x) - 1).square().mean() * 3 / 4).backward()
        else:
            (call(x) - 1).square().mean().backward()
        optimizer.step()
        if step == 2:
            set_mask(net[0].weight, masks()[1], optimizer)


def expected() -> dict[str, torch.Tensor]:
    whole = model(seed=0)
    train(whole, batch())
    return {name: value.to_dense() for name, value in whole.state_dict().items()}


def in_buckets(rank: int) -> None:
    net = model(seed=rank)
    reducer = data_parallel(net, bucket_bytes=1024)
    early = []
    net[0].bias.register_hook(lambda gradient: early.append(reducer._round.sent if reducer._round else 0))
    train(net, batch()[rank::2])
    found = {name: value.to_dense() for name, value in net.state_dict().items()}
    for name, value in expected().items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9)
    assert reducer.early >= 2 and min(early) >= 1, "buckets travel while layers before them are computed"
    values = sum(8 * (int(mask_of(p).sum()) if p is net[0].weight else p.numel()) for p in net.parameters())
    assert reducer.sent_bytes == values + 8 * 4, "stored values, and one number a parameter"

    net.zero_grad()
    if rank == 0:  # a backward pass that reaches one parameter in one process, and another in the other
        (net[2].bias * 3).sum().backward()
    else:
        (net[0].bias * 5).sum().backward()
    assert net[2].bias.grad.tolist() == [1.5] * 4 and net[0].bias.grad.tolist() == [2.5] * SIZE
    assert net[0].weight.grad is None

    before = net[2].bias.grad.clone()
    if rank == 1:
        set_mask(net[0].weight, masks()[0])
    for _ in range(2):
        with pytest.raises(DataError, match=r"parameter 0, \[64, 64\], has another mask"):
            net(batch()).sum().backward()
        assert not torch.equal(net[2].bias.grad, before) and reducer._round is None
    reducer.remove()
    net[0].requires_grad_(False)
    other = data_parallel(net)
    net[0].requires_grad_(True)
    with pytest.raises(DataError, match=r"\[64, 64\] that was frozen in data_parallel trains now"):
        net(batch()).sum().backward()
    other.remove()
    net.zero_grad()
    (net[2].bias * rank).sum().backward()
    assert net[2].bias.grad.tolist() == [rank] * 4


def accumulated(rank: int) -> None:
    for way in ("hooks", "ddp"):
        net = model(seed=rank)
        if way == "hooks":
            train(net, batch()[rank::2], data_parallel(net).no_sync)
        else:
            ddp = distributed_data_parallel(net)
            train(net, batch()[rank::2], ddp.no_sync, ddp)
        for name, value in expected().items():
            torch.testing.assert_close(net.state_dict()[name].to_dense(), value, rtol=1e-6, atol=1e-9)
    with pytest.raises(DataError, match="without a dense parameter"):
        distributed_data_parallel(nn.Sequential(nn.Linear(SIZE, SIZE)).requires_grad_(False))


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    in_buckets(rank)
    accumulated(rank)
    gc.collect()  # DistributedDataParallel is in circles
    leave_together(rank, Path(folder))


@pytest.mark.sampled(3)
def test_gradients_are_reduced_within_the_backward_pass(tmp_path: Path) -> None:
    """Buckets, masks that differ, accumulated gradients, and torch's DistributedDataParallel."""
    run_ranks(run, (str(tmp_path),), 2)
