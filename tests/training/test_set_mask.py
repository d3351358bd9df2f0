"""Masks of trained parameters, dense and sparse: what stays, what is lost, what starts at 0."""

import copy

import pytest
import torch
from torch import nn, optim

import sparsify
from sparsify.errors import DtypeError, FormatError, InvalidTensorError, ShapeError
from sparsify.training import mask_of, set_mask, set_pattern

FORMATS = ["dense", "csr", "csc", "coo", "dcsr", "bcsr(2, 2)", "nm(2, 4)", "dense, compressed(crd=int16)"]
OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, 0.1, amsgrad=True),
    "adamw": lambda ps: optim.AdamW(ps, 0.1, foreach=True),
    "adagrad": lambda ps: optim.Adagrad(ps, 0.1, initial_accumulator_value=0.5),
    "nadam": lambda ps: optim.NAdam(ps, 0.1),
    "rmsprop": lambda ps: optim.RMSprop(ps, 0.01, momentum=0.9, centered=True),
}


def masks(format: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two masks [8, 12] of which some entries are the same."""
    torch.manual_seed(1)
    if format.startswith("nm"):
        halves = [torch.rand(8, 3, 4).argsort(-1) < 2 for _ in range(2)]
        return halves[0].view(8, 12), halves[1].view(8, 12)
    if format.startswith("bcsr"):
        blocks = [torch.rand(4, 6) < 0.5 for _ in range(2)]
        return tuple(b.repeat_interleave(2, 0).repeat_interleave(2, 1) for b in blocks)
    return torch.rand(8, 12) < 0.4, torch.rand(8, 12) < 0.4


def trained(format: str, kind: str) -> tuple[nn.Linear, optim.Optimizer]:
    """A layer under the first mask after three steps."""
    torch.manual_seed(0)
    layer = nn.Linear(12, 8, bias=False, dtype=torch.float64)
    start = torch.where(masks(format)[0], layer.weight.detach(), 0)
    if format == "dense":
        with torch.no_grad():
            layer.weight.copy_(start)
        set_mask(layer.weight, masks(format)[0])
    else:
        layer.weight = nn.Parameter(sparsify.tensor(start, format))
    optimizer = OPTIMIZERS[kind]([layer.weight])
    step(layer, optimizer, 3)
    return layer, optimizer


def step(layer: nn.Module, optimizer: optim.Optimizer, count: int) -> None:
    x = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    for _ in range(count):
        optimizer.zero_grad()
        (layer(x) - 1).square().sum().backward()
        optimizer.step()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_dense()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_entries_that_stay_keep_everything(format, kind) -> None:
    layer, optimizer = trained(format, kind)
    weight, (old, new) = layer.weight, masks(format)
    assert (old & new).any() and (old & ~new).any() and (~old & new).any()
    assert torch.equal(mask_of(weight), old)
    before = {n: dense(v).clone() for n, v in optimizer.state[weight].items() if torch.is_tensor(v)}
    value, gradient, stored = dense(weight).clone(), dense(weight.grad).clone(), type(weight)
    set_mask(weight, new, optimizer)
    assert layer.weight is weight and type(weight) is stored and isinstance(weight, nn.Parameter)
    assert torch.equal(mask_of(weight), new)
    assert torch.equal(dense(weight), torch.where(old & new, value, 0))
    assert torch.equal(dense(weight.grad), torch.where(old & new, gradient, 0))
    for name, tensor in optimizer.state[weight].items():
        if torch.is_tensor(tensor) and tensor.dim():
            start = {"sum": 0.5}.get(name, 0.0)
            wanted = torch.where(old & new, before[name], torch.where(new, start, 0.0).double())
            assert torch.equal(torch.where(new, dense(tensor), 0), wanted), name
        elif torch.is_tensor(tensor):
            assert torch.equal(tensor, before[name])
    step(layer, optimizer, 2)
    assert torch.equal(mask_of(weight), new)
    grown = dense(weight)[~old & new]
    assert grown.count_nonzero() == grown.numel()
    assert not dense(weight)[~new].any()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_sparse_and_dense_parameters_train_alike(kind) -> None:
    results = []
    for format in ("dense", "csr"):
        layer, optimizer = trained(format, kind)
        new = masks("csr")[1]
        set_mask(layer.weight, masks("csr")[0] & new, optimizer)
        set_mask(layer.weight, new, optimizer)
        step(layer, optimizer, 4)
        results.append(dense(layer.weight))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("format", ["dense", "csr", "bcsr(2, 2)"])
def test_masks_that_do_not_fit_change_nothing(format) -> None:
    layer, optimizer = trained(format, "adam")
    before, state = dense(layer.weight).clone(), dense(optimizer.state[layer.weight]["exp_avg"]).clone()
    new = masks(format)[1]
    with pytest.raises(ShapeError, match=r"a mask \[12, 8\] for a parameter \[8, 12\]"):
        set_mask(layer.weight, new.T, optimizer)
    with pytest.raises(DtypeError, match=r"a mask of torch.float32; a dense tensor of torch.bool"):
        set_mask(layer.weight, new.float(), optimizer)
    if format == "bcsr(2, 2)":
        new = new.clone()
        new[0, 0] = ~new[0, 0]
        with pytest.raises(FormatError, match="whole blocks"):
            set_mask(layer.weight, new, optimizer)
    assert torch.equal(dense(layer.weight), before)
    assert torch.equal(dense(optimizer.state[layer.weight]["exp_avg"]), state)


def test_weights_written_outside_of_their_mask_forget_it() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.0]))
    set_mask(weight, torch.tensor([True, False, True]))
    assert mask_of(weight).tolist() == [True, False, True]
    with torch.no_grad():
        weight.copy_(torch.tensor([0.0, 5.0, 0.0]))
    assert mask_of(weight).tolist() == [False, True, False]


def test_no_entries_and_all() -> None:
    weight = nn.Parameter(sparsify.tensor(torch.eye(3), "csr"))
    set_mask(weight, torch.zeros(3, 3, dtype=torch.bool))
    assert weight.nnz == 0
    set_mask(weight, torch.ones(3, 3, dtype=torch.bool))
    assert weight.nnz == 9 and not weight.values().any()


@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)), torch.randn(32, 64)),
        (lambda: nn.ConvTranspose1d(4, 3, 3), torch.randn(2, 4, 9)),
    ],
    ids=["kernels", "torch"],
)
def test_applied_models_train_under_other_masks(make, x) -> None:
    torch.manual_seed(0)
    prune = {"method": "magnitude", "sparsity": 0.5}
    rule = {"targets": ["param:*weight"], "role": "weight", "prune": prune}
    sparse = sparsify.apply(make().train(), {"schema": 1, "name": "pruned", "sparsify": [rule]}, (x,))
    weight = next(p for name, p in sparse.named_parameters() if name.endswith("weight"))
    optimizer = optim.AdamW(sparse.parameters(), 0.01)
    old = mask_of(weight)
    new = old.roll(1, 0)
    set_mask(weight, new, optimizer)
    plain = make()
    plain.load_state_dict({name: value.to_dense() for name, value in sparse.state_dict().items()})
    for model in (sparse, plain):
        (model(x) - 1).square().sum().backward()
    wanted = next(p for name, p in plain.named_parameters() if name.endswith("weight")).grad * new
    assert wanted[new & ~old].any()
    torch.testing.assert_close(dense(weight.grad), wanted, rtol=1e-4, atol=1e-4)
    optimizer.step()
    assert torch.equal(mask_of(weight), new)
    assert torch.equal(dense(weight) != 0, new & ((wanted != 0) | (old & new)))


@pytest.mark.parametrize("format", ["dense", "csr", "csc"])
def test_patterns_with_values(format) -> None:
    old, new = torch.rand(6, 8) < 0.5, torch.rand(6, 8) < 0.5
    start = torch.where(old, torch.rand(6, 8) + 1, 0)
    weight = nn.Parameter(start.clone() if format == "dense" else sparsify.tensor(start, format))
    set_mask(weight, old)
    optimizer = optim.Adam([weight])
    (weight * 2.0).sum().backward()
    optimizer.step()
    state = optimizer.state[weight]["exp_avg"]
    before = state.clone() if format == "dense" else state.to_dense()
    wanted = torch.where(new, torch.rand(6, 8) + 1, 0)
    source = sparsify.tensor(wanted, "csr")
    for values in (source.values()[1:], torch.ones(3, 3)):
        with pytest.raises(InvalidTensorError):
            set_pattern(weight, source.pattern, values, optimizer)
    assert torch.equal(mask_of(weight), old)
    set_pattern(weight, source.pattern, source.values(), optimizer)
    assert torch.equal(weight.detach() if format == "dense" else weight.detach().to_dense(), wanted)
    assert torch.equal(mask_of(weight), new)
    kept = optimizer.state[weight]["exp_avg"]
    kept = kept if format == "dense" else kept.to_dense()
    assert torch.equal(kept, torch.where(old & new, before, 0))


def test_applied_models_resume_with_the_masks_of_a_state() -> None:
    prune = {"method": "magnitude", "sparsity": 0.9}
    rule = {"targets": ["param:*weight"], "role": "weight", "prune": prune}
    x = torch.randn(32, 64)

    def applied(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).train()
        return sparsify.apply(net, {"schema": 1, "name": "pruned", "sparsify": [rule]}, (x,))

    def steps(model, optimizer) -> None:
        for _ in range(5):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()

    whole, resumed = applied(0), applied(1)
    optimizers = [optim.AdamW(model.parameters(), 0.01) for model in (whole, resumed)]
    steps(whole, optimizers[0])
    assert any(
        (dense(p) != dense(q)).any() for p, q in zip(whole.parameters(), resumed.parameters(), strict=True)
    )
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for model, optimizer in zip((whole, resumed), optimizers, strict=True):
        steps(model, optimizer)
    for first, second in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(mask_of(first), mask_of(second))
        assert torch.equal(dense(first.detach()), dense(second.detach()))
