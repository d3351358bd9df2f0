"""What trains dense parameters trains sparse ones: compared with dense parameters under the same mask in float64."""

import copy
import io

import pytest
import torch
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import sparsify
from sparsify import SparseTensor
from sparsify.training import mask_of, set_mask

SGD = {"lr": 0.01, "momentum": 0.9, "nesterov": True}
CASES = [
    (name, {**(SGD if name == "SGD" else {"lr": 0.01}), "weight_decay": 0.1, **how})
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD")
    for how in ({"foreach": False}, {"foreach": True}, {"fused": True})
    if "fused" not in how or name in ("SGD", "Adam", "AdamW", "Adagrad")
]
X = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def layers() -> tuple[nn.Linear, nn.Linear]:
    """A layer with a sparse weight, and the same with a dense one under its mask."""
    torch.manual_seed(0)
    dense = nn.Linear(12, 8, dtype=torch.float64)
    set_mask(dense.weight, torch.rand(8, 12) < 0.4)
    sparse = nn.Linear(12, 8, dtype=torch.float64)
    sparse.load_state_dict(dense.state_dict())
    sparse.weight = nn.Parameter(sparsify.tensor(dense.weight.detach(), "csr"))
    return sparse, dense


def loss(layer: nn.Module, x: torch.Tensor = X) -> torch.Tensor:
    return (layer(x) - 1).square().sum()


def assert_alike(sparse: nn.Module, dense: nn.Module) -> None:
    torch.testing.assert_close(
        sparse.weight.detach().to_dense(), dense.weight.detach(), rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(sparse.bias, dense.bias, rtol=1e-9, atol=1e-12)
    assert torch.equal(mask_of(sparse.weight), mask_of(dense.weight))


@pytest.mark.parametrize(("name", "how"), CASES, ids=str)
def test_steps(name, how) -> None:
    pair = layers()
    for layer in pair:
        optimizer = getattr(optim, name)(layer.parameters(), **how)
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            loss(layer).backward()
            loss(layer, X * 0.5).backward()  # accumulated
            optimizer.step()
    assert_alike(*pair)
    state = optimizer.state[pair[1].weight]
    sparse = layers()[0]
    optimizer = getattr(optim, name)(sparse.parameters(), **how)
    loss(sparse).backward()
    optimizer.step()
    stored = [v for v in optimizer.state[sparse.weight].values() if torch.is_tensor(v) and v.dim()]
    assert len(stored) == sum(torch.is_tensor(v) and v.dim() > 0 for v in state.values())
    assert all(value.nnz == sparse.weight.nnz for value in stored)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_], ids=["norm", "value"])
@pytest.mark.parametrize("foreach", [False, True])
def test_clipping(clip, foreach) -> None:
    pair = layers()
    for layer in pair:
        loss(layer).backward()
        clip(layer.parameters(), 0.5, foreach=foreach)
    found, wanted = (layer.weight.grad.to_dense() for layer in pair)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, float("inf")])
def test_scaled_gradients(factor) -> None:
    pair = [layer.float() for layer in layers()]
    before = pair[0].weight.detach().to_dense()
    for layer in pair:
        optimizer, scaler = optim.SGD(layer.parameters(), 0.01), torch.amp.GradScaler("cpu")
        scaler.scale(loss(layer, X.float()) * factor).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (2**16 if factor == 1 else 2**15)
    torch.testing.assert_close(pair[0].weight.detach().to_dense(), pair[1].weight.detach())
    assert torch.equal(pair[0].weight.detach().to_dense(), before) == (factor != 1)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_activations(use_reentrant) -> None:
    sparse, plain = layers()[0], layers()[0]
    x = X.clone().requires_grad_()
    (checkpoint(sparse, x, use_reentrant=use_reentrant) - 1).square().sum().backward()
    loss(plain).backward()
    assert torch.equal(sparse.weight.grad.values(), plain.weight.grad.values())


def test_averages_of_weights() -> None:
    pair = layers()
    averages = []
    for layer in pair:
        how = optim.swa_utils.get_ema_multi_avg_fn(0.9)
        averages.append(optim.swa_utils.AveragedModel(layer, multi_avg_fn=how))
        optimizer = optim.SGD(layer.parameters(), 0.01)
        for _ in range(3):
            loss(layer).backward()
            optimizer.step()
            averages[-1].update_parameters(layer)
    assert averages[0].module.weight.nnz == pair[0].weight.nnz
    assert_alike(averages[0].module, averages[1].module)


def test_vectors_of_parameters() -> None:
    sparse, dense = layers()
    vector = nn.utils.parameters_to_vector(dense.parameters())
    nn.utils.vector_to_parameters(vector.detach() * 2, sparse.parameters())
    torch.testing.assert_close(sparse.weight.detach().to_dense(), dense.weight.detach() * 2)


def test_states_of_the_same_mask_and_of_another() -> None:
    sparse, dense = layers()
    with torch.no_grad():
        dense.weight.mul_(2)
    sparse.load_state_dict(dense.state_dict())
    assert_alike(sparse, dense)
    dense_state = {"weight": torch.ones(8, 12, dtype=torch.float64), "bias": sparse.bias.detach()}
    outside = int((~mask_of(sparse.weight)).sum())
    with pytest.raises(RuntimeError, match=f"{outside} entries outside of the pattern.*set_mask"):
        sparse.load_state_dict(dense_state)
    assert_alike(sparse, dense)


@pytest.mark.parametrize("format", ["csr", "csc", "dense, compressed(crd=int16)"])
def test_states_of_another_mask_take_their_place(format) -> None:
    sparse, other = layers()[0], layers()[0]
    set_mask(other.weight, ~mask_of(sparse.weight))
    with torch.no_grad():
        other.weight.values().copy_(torch.arange(1.0, other.weight.nnz + 1))
    weight, before = sparse.weight, mask_of(sparse.weight)
    state = {"weight": other.weight.detach().to(format=format), "bias": other.bias.detach()}
    sparse.load_state_dict(state)
    assert sparse.weight is weight and weight.format == other.weight.format
    assert torch.equal(weight.detach().to_dense(), other.weight.detach().to_dense())
    assert torch.equal(mask_of(weight), ~before)
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(state["weight"].to_dense(), other.weight.detach().to_dense())  # no memory is shared
    loss(sparse).backward()
    assert weight.grad.pattern is weight.pattern
    with pytest.raises(NotImplementedError, match="copy_ into Pattern"):  # another object keeps its pattern
        layers()[0].weight.detach().copy_(state["weight"].to(format="csr"))


def test_autocast_to_bfloat16() -> None:
    pair = [layer.float() for layer in layers()]
    for layer in pair:
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(layer, X.float())
        value.backward()
    assert pair[0].weight.grad.dtype == torch.float32
    found, wanted = pair[0].weight.grad.to_dense(), pair[1].weight.grad
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


def test_copies_of_modules_train_apart() -> None:
    sparse = layers()[0]
    loss(sparse).backward()
    other = copy.deepcopy(sparse)
    assert isinstance(other.weight, nn.Parameter) and torch.equal(other.weight, sparse.weight)
    assert torch.equal(other.weight.grad, sparse.weight.grad)
    before = sparse.weight.values().clone()
    optim.SGD(other.parameters(), 0.1).step()
    set_mask(other.weight, ~mask_of(other.weight))
    assert torch.equal(sparse.weight.values(), before)
    assert not (mask_of(sparse.weight) & mask_of(other.weight)).any()


def test_resumed_runs_are_the_same() -> None:
    def steps(layer, optimizer, count) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            loss(layer).backward()
            optimizer.step()

    whole = layers()[0]
    optimizer = optim.AdamW(whole.parameters(), 0.01)
    steps(whole, optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, file)
    steps(whole, optimizer, 5)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = layers()[0]
    optimizer = optim.AdamW(resumed.parameters(), 0.01)
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    steps(resumed, optimizer, 5)
    assert torch.equal(resumed.weight.values(), whole.weight.values())
    assert torch.equal(resumed.bias, whole.bias)


def test_memory_is_proportional_to_the_entries() -> None:
    torch.manual_seed(0)
    mask = torch.rand(512, 512) < 0.1
    taken = {}
    for format in ("dense", "csr", "dense, compressed(crd=int16)"):
        layer = nn.Linear(512, 512, bias=False)
        if format != "dense":
            layer.weight = nn.Parameter(sparsify.tensor(torch.where(mask, layer.weight.detach(), 0), format))
        optimizer = optim.AdamW(layer.parameters())
        layer(torch.randn(4, 512)).sum().backward()
        optimizer.step()
        tensors = [layer.weight, layer.weight.grad, *optimizer.state[layer.weight].values()]
        arrays = []
        for tensor in tensors:
            names = tensor.__tensor_flatten__()[0] if isinstance(tensor, SparseTensor) else []
            arrays += [getattr(tensor, name) for name in names] or [tensor]
        taken[format] = sum({a.data_ptr(): a.nbytes for a in arrays}.values())
    assert taken["csr"] <= 0.15 * taken["dense"]
    assert taken["dense, compressed(crd=int16)"] < taken["csr"]
