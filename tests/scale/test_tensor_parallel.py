"""Linear layers in pairs: two processes with a part of the weights each compute what one does."""

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

import sparsify
from sparsify import recipe as recipes
from sparsify.errors import CaptureError, DataError, ProcessError, RecipeError, SparsifyError
from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.rules.prune import prune
from sparsify.scale.tensor_parallel.local import part_of
from sparsify.scale.tensor_parallel.split import Split, reshaped, split_products
from tests.fork_server import run_ranks
from tests.training.processes import leave_together

RECIPE = {"schema": 1, "name": "split", "shard": {"linear": "tensor"}}
PRUNED = {
    **RECIPE,
    "sparsify": [
        {
            "targets": ["param:*weight"],
            "types": ["Linear", "MultiheadAttention"],
            "prune": {"method": "magnitude", "sparsity": 0.8},
        }
    ],
}


class Block(nn.Module):
    """Attention with heads written by hand, groups of heads that share keys, and a gated layer of one fused weight."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query = nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, groups * self.size) for _ in range(2))
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.gated, self.down = nn.Linear(width, 96, bias=False), nn.Linear(48, width)
        self.scale = nn.Parameter(torch.rand(48))

    def apart(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.apart(layer(x), heads)
            for layer, heads in ((self.query, self.heads), (self.key, self.groups), (self.value, self.groups))
        )
        found = scaled_dot_product_attention(query, key, value, enable_gqa=True)
        x = self.norm(x + self.mix(found.transpose(1, 2).reshape(x.shape)))
        gate, up = self.gated(x).chunk(2, -1)
        return x + self.down(silu(gate) * up * self.scale)


class Model(nn.Module):
    """A block of its own, torch's encoder, and a head that is not split."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.block = Block()
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.block(x)))


class Joined(nn.Module):
    """A pair that reads tensors of all processes, before a normalisation with running means and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.gate = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 1)
        self.scale, self.shift = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.rand(1))
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.up(x) * self.scale + self.shift) * self.gate(x).sigmoid()
        return self.drop(self.norm(self.down(inner)))


COLUMNS = ["block.query", "block.key", "block.value", "block.gated", "encoder.layers.0.self_attn.in_proj"]
ROWS = ["block.mix", "block.down", "encoder.layers.0.self_attn.out_proj.weight"]


def model() -> Model:
    torch.manual_seed(0)
    return Model().double()


def inputs(seed: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, 6, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def require_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def inference(rank: int) -> None:
    for recipe in (RECIPE, PRUNED):
        whole = model().eval()
        one = prune(whole, recipes.load(recipe))
        part = sparsify.shard(whole, recipe, (inputs(1),))
        with torch.no_grad():
            for seed, batch in ((1, 3), (2, 5)):
                require_equal(part(inputs(seed, batch)), one(inputs(seed, batch)))
        assert all(any(name.startswith(known) for known in COLUMNS) for name in part.pairs[0][:5])
        assert part.whole == {"head.weight": "5 outputs in 2 parts"}
        large = sum(p.nbytes for n, p in whole.named_parameters() if "weight" in n and p.dim() == 2)
        assert part.weight_bytes < 0.6 * large
    assert part.report.regions, "the parts are packed"
    with pytest.raises(DataError, match="not the same in all processes"):
        part(inputs(rank))
    with pytest.raises(CaptureError if rank else ProcessError, match=r"example inputs|another process"):
        part(inputs(1)[:, :, None] if rank else inputs(1))


def training(rank: int) -> None:
    steps = 10
    whole = model()
    part: Any = sparsify.shard(copy.deepcopy(whole), RECIPE, (inputs(1),))
    nets = (whole, part)
    optimizers = [torch.optim.AdamW(net.parameters(), 0.01) for net in nets]
    for step in range(steps):
        x = inputs(step).requires_grad_()
        found = []
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            found.append(x.grad)
            x.grad = None
            optimizer.step()
        require_equal(found[1], found[0])
    parameters = part.whole_parameters()
    assert parameters.keys() == dict(whole.named_parameters()).keys()
    for name, value in whole.named_parameters():
        torch.testing.assert_close(parameters[name], value.detach(), rtol=1e-9, atol=1e-11)


def joined(rank: int) -> None:
    """Gradients of tensors that parts read, in training and beside it; buffers and random numbers of each call."""
    for trains in (True, False):
        torch.manual_seed(0)
        whole = Joined().double().train(trains)
        part: Any = sparsify.shard(copy.deepcopy(whole), RECIPE, (inputs(1),))
        assert part.pairs == (["up.weight"], ["down.weight"])
        nets, found = (whole, part), []
        for net in nets:
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            for step in range(2):
                torch.manual_seed(step)
                x = inputs(step).requires_grad_()
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
            found.append(x.grad)
        require_equal(found[1], found[0])
        parameters, buffers = part.whole_parameters(), dict(part.local.named_buffers())
        for name, value in whole.named_parameters():
            require_equal(parameters[name], value.detach())
        for name, value in buffers.items():
            torch.testing.assert_close(value, whole.get_buffer(name))
        torch.manual_seed(rank)
        if trains:
            with pytest.raises(DataError, match=r"random numbers, .* torch\.manual_seed"):
                part(inputs(1))
        else:
            part(inputs(1))


def mistakes(rank: int) -> None:
    with pytest.raises(SparsifyError, match="no example inputs"):
        sparsify.shard(model(), RECIPE)
    wrong = {
        **RECIPE,
        "sparsify": [{"targets": ["param:nothing"], "prune": {"method": "magnitude", "sparsity": 0.5}}],
    }
    with pytest.raises(RecipeError if rank else ProcessError, match="nothing" if rank else "process 1"):
        sparsify.shard(model(), wrong if rank else RECIPE, (inputs(1),))


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    inference(rank)
    training(rank)
    joined(rank)
    mistakes(rank)
    gc.collect()
    leave_together(rank, Path(folder))


@pytest.mark.sampled(6)
@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    run_ranks(run, (str(tmp_path),), 2)


def captured(net: nn.Module, *tensors: Tensor) -> Any:
    call = calls.flatten(calls.signature(net), tensors, {})
    return capture(net, call, None).graph


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("count", "rows"), [(2, 4), (4, 3), (3, 1)])
def test_products_are_split_where_operators_allow(count: int, rows: int) -> None:
    """Four processes do not share two groups of keys; three divide the fused weight alone."""
    splits = split_products(captured(model().eval(), inputs(1)), count)
    assert len(splits.rows) == rows
    assert all(splits.reasons[node] for node in splits.reasons)


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        (lambda x: torch.nn.functional.dropout(x, 0.5), "dropout"),
        (lambda x: x.softmax(-1), "reads all of a mode"),
        (lambda x: x + torch.arange(8.0), "all of"),
        (lambda x: x.sum(-1, keepdim=True).expand(-1, 8), "no rule"),
        (lambda x: x.flip(-1), "no rule"),
    ],
    ids=["dropout", "softmax", "other tensors", "sums", "no rule"],
)
def test_products_stay_whole(behind: Any, why: str) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(behind(self.first(x)))

    splits = split_products(captured(Pair(), torch.randn(3, 4)), 2)
    assert not splits.columns and not splits.rows
    assert any(why in reason for reason in splits.reasons.values())


def test_shared_weights_stay_whole() -> None:
    net = model().eval()
    names = frozenset(("block.query.weight",))
    splits = split_products(captured(net, inputs(1)), 2, names)
    assert "block.query.weight" not in [str(node.args[1].target) for node in splits.columns]
    assert "attention of queries" in str(list(splits.reasons.values()))


def test_splits_of_reshapes() -> None:
    assert reshaped((10, 32), Split(1), (10, 4, 8), 2) == Split(1)
    assert reshaped((10, 96), Split(1, 3), (10, 3, 32), 2) == Split(2)
    assert reshaped((10, 4, 8), Split(1), (10, 32), 2) == Split(1)
    assert reshaped((10, 4, 8), Split(1), (40, 8), 2) == Split(0, 10)
    assert reshaped((10, 6), Split(1), (10, 3, 2), 2) is None
    assert part_of(torch.arange(8), Split(0, 2), 1, 2).tolist() == [2, 3, 6, 7]


def test_recipes_say_what_is_divided() -> None:
    with pytest.raises(RecipeError, match="one of `graph: parts/` and `linear: tensor`"):
        sparsify.apply(model(), {**RECIPE, "shard": {}})
    with pytest.raises(RecipeError, match=r"sparsify\.shard\(model, recipe\)"):
        sparsify.apply(model(), RECIPE)
    with pytest.raises(RecipeError, match="`memory` is for the parts"):
        sparsify.shard(model(), {**RECIPE, "shard": {"linear": "tensor", "memory": "1GB"}})
    with pytest.raises(RecipeError, match="without `shard`"):
        sparsify.shard(model(), {"schema": 1, "name": "none"})
    with pytest.raises(RecipeError, match="unknown key 'rows'"):
        sparsify.shard(model(), {**RECIPE, "shard": {"rows": "parts"}})
