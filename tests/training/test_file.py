"""Files of sparse states: the same arrays again, masks included, nothing dense in between."""

import json

import pytest
import torch
from safetensors import safe_open
from torch import nn, optim

import sparsify
from sparsify import SparseTensor
from sparsify.errors import DataError
from sparsify.training import load_file, mask_of, save_file, set_mask


def model(seed: int = 0, format: str = "csr") -> nn.Sequential:
    torch.manual_seed(seed)
    found = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    mask = torch.rand(8, 12) < 0.3
    found[0].weight = nn.Parameter(sparsify.tensor(torch.where(mask, found[0].weight.detach(), 0), format))
    return found


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bcsr(2, 2)", "dense, compressed(crd=int16)"])
def test_states_come_back(format, tmp_path, monkeypatch) -> None:
    net = model(format=format)
    with monkeypatch.context() as patch:
        patch.setattr(SparseTensor, "to_dense", None)  # no dense copy
        save_file(net, tmp_path / "net.safetensors")
        found = load_file(tmp_path / "net.safetensors")
    wanted = net.state_dict()
    assert list(found.keys() ^ wanted.keys()) == []
    weight = found["0.weight"]
    assert isinstance(weight, SparseTensor) and weight.format == net[0].weight.format
    assert weight.pattern.equals(net[0].weight.pattern)
    assert torch.equal(weight.values(), wanted["0.weight"].values())
    assert [a.dtype for a in weight.pattern.arrays()] == [a.dtype for a in net[0].weight.pattern.arrays()]
    assert torch.equal(found["1.num_batches_tracked"], wanted["1.num_batches_tracked"])
    with safe_open(tmp_path / "net.safetensors", "pt") as file:
        assert "0.weight" not in file.keys()  # noqa: SIM118
        assert json.loads(file.metadata()["sparsify.sparse"])["0.weight"]["shape"] == [8, 12]


def test_models_take_the_masks_of_a_file(tmp_path) -> None:
    net, other = model(0), model(1)
    optimizer = optim.AdamW(other.parameters())
    weight = other[0].weight
    other(torch.randn(4, 12)).sum().backward()
    optimizer.step()
    assert not torch.equal(mask_of(weight), mask_of(net[0].weight))
    load_file(save_file(net, tmp_path / "net.safetensors"), other, optimizer)
    assert other[0].weight is weight and torch.equal(mask_of(weight), mask_of(net[0].weight))
    assert torch.equal(weight.values(), net[0].weight.values())
    other(torch.randn(4, 12)).sum().backward()
    optimizer.step()


def test_tied_tensors_are_stored_once(tmp_path) -> None:
    net = model()
    net.append(nn.Linear(12, 8))
    net[3].weight = net[0].weight
    found = load_file(save_file(net, tmp_path / "net.safetensors"))
    assert torch.equal(found["3.weight"].values(), found["0.weight"].values())
    with safe_open(tmp_path / "net.safetensors", "pt") as file:
        assert len([name for name in file.keys() if name.endswith("_vals")]) == 1  # noqa: SIM118


def test_files_that_do_not_fit_change_nothing(tmp_path) -> None:
    place = save_file(model(), tmp_path / "net.safetensors")
    other = model(1)[:2]
    before = mask_of(other[0].weight)
    with pytest.raises(DataError, match=r"2\.(weight|bias) of .* does not fit the model: not there"):
        load_file(place, other)
    assert torch.equal(mask_of(other[0].weight), before)
    place.write_bytes(place.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot read"):
        load_file(place)
    with pytest.raises(DataError, match="extra is no tensor"):
        save_file({"extra": 1}, place)


def test_a_resumed_run_is_the_same_with_other_masks_meanwhile(tmp_path) -> None:
    def steps(net, optimizer, count) -> None:
        for step in range(count):
            optimizer.zero_grad()
            x = torch.randn(4, 12, generator=torch.Generator().manual_seed(step))
            (net(x) - 1).square().sum().backward()
            optimizer.step()

    net = model()
    optimizer = optim.AdamW(net.parameters(), 0.01)
    steps(net, optimizer, 3)
    set_mask(net[0].weight, mask_of(model(1)[0].weight), optimizer)
    steps(net, optimizer, 2)
    save_file(net, tmp_path / "net.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    steps(net, optimizer, 5)
    resumed = model()
    optimizer = optim.AdamW(resumed.parameters(), 0.01)
    load_file(tmp_path / "net.safetensors", resumed, optimizer)
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    steps(resumed, optimizer, 5)
    for name, value in net.state_dict().items():
        assert torch.equal(resumed.state_dict()[name].to_dense(), value.to_dense()), name
