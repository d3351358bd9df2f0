"""Two processes over gloo train as one does, and send the stored values alone."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim

import sparsify
from sparsify.errors import DataError
from sparsify.training import all_reduce_gradients, broadcast_parameters, mask_of, set_mask
from tests.fork_server import run_ranks
from tests.training.processes import leave_together

SIZE = 64


def masks() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(SIZE, SIZE, generator=generator) < 0.1 for _ in range(2)]


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    found = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 4)).double()
    mask = masks()[0] if seed == 0 else masks()[1]
    found[0].weight = nn.Parameter(sparsify.tensor(torch.where(mask, found[0].weight.detach(), 0), "csr"))
    return found


def train(net: nn.Module, x: torch.Tensor, reduce: bool) -> int:
    """Six steps with another mask in between; how many bytes the last one sent."""
    optimizer = optim.AdamW(net.parameters(), 0.01)
    sent = 0
    for step in range(6):
        optimizer.zero_grad()
        (net(x) - 1).square().mean().backward()
        if reduce:
            sent = all_reduce_gradients(net, bucket_bytes=4096)
        optimizer.step()
        if step == 2:
            set_mask(net[0].weight, masks()[1], optimizer)
    return sent


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    net = model(seed=rank)
    net(torch.zeros(1, SIZE).double()).sum().backward()
    before = net[2].bias.grad.clone()
    with pytest.raises(DataError, match=r"parameter 0, \[64, 64\], has another mask"):
        all_reduce_gradients(net)
    assert torch.equal(net[2].bias.grad, before)
    net.zero_grad()
    broadcast_parameters(net)
    x = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0)).double()
    sent = train(net, x[rank::2], reduce=True)
    torch.save((net.state_dict(), mask_of(net[0].weight), sent), f"{folder}/{rank}.pt")
    net.zero_grad()
    if rank == 0:
        net[2].bias.grad = torch.ones(4).double()
    all_reduce_gradients(net)
    assert net[0].weight.grad is None
    assert net[2].bias.grad.tolist() == [0.5] * 4
    leave_together(rank, Path(folder))


@pytest.mark.sampled(3)
@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    run_ranks(run, (str(tmp_path),), 2)
    whole = model(seed=0)
    x = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0)).double()
    train(whole, x, reduce=False)
    (first, mask, sent), (second, other, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(mask, other) and torch.equal(mask, masks()[1])
    for name, value in whole.state_dict().items():
        assert torch.equal(first[name].to_dense(), second[name].to_dense())
        torch.testing.assert_close(first[name].to_dense(), value.to_dense(), rtol=1e-6, atol=1e-9)
    dense = SIZE * SIZE * 8
    rest = (SIZE + 4 * SIZE + 4) * 8
    assert sent - rest == int(mask.sum()) * 8 < 0.12 * dense
