"""Pruned weights that torch's operators read in training: zeros get no gradient, entries the dense one."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify.errors import VerificationError
from sparsify.passes.module import capture_call
from sparsify.storage.subclass import trained_masks


class Batched(nn.Module):
    """A weight of three modes in an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("oic,bi->boc", self.weight, x)


class Twice(nn.Module):
    """A weight that a kernel reads, and torch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight) + torch.cumsum(self.weight, 0)[0]


def recipe(**how: str) -> dict:
    prune = {"method": "magnitude", "sparsity": 0.5}
    rule = {"targets": ["param:*weight"], "role": "weight", "prune": prune, **how}
    return {"schema": 1, "name": "pruned", "sparsify": [rule]}


def gradients(model: nn.Module, x: Tensor) -> Tensor:
    """Those of the weight."""
    model(x).square().sum().backward()
    found = next(p.grad for name, p in model.named_parameters() if name.endswith("weight"))
    return found.to_dense() if isinstance(found, sparsify.SparseTensor) else found


@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize(
    ("make", "x", "left"),
    [
        (lambda: nn.ConvTranspose1d(4, 3, 3), torch.randn(2, 4, 9), ["conv_transpose1d"]),
        (lambda: nn.Conv2d(4, 4, 3, groups=2), torch.randn(2, 4, 9, 7), ["conv2d"]),
        (Batched, torch.randn(3, 5), []),
        (lambda: nn.Embedding(10, 4), torch.tensor([1, 7, 7]), ["embedding"]),
        (Twice, torch.randn(3, 5), ["cumsum"]),
    ],
)
def test_zeros_get_no_gradient(make, x, left) -> None:
    torch.manual_seed(0)
    sparse = sparsify.apply(make().train(), recipe(types=[type(make()).__name__]), (x,))
    assert [entry.op for entry in sparse.report.dense] == left
    assert len(sparse.report.regions) == (make in (Batched, Twice))
    dense = make()
    dense.load_state_dict(copy.deepcopy(sparse.state_dict()))
    found, wanted = gradients(sparse, x), gradients(dense, x)
    is_kept = dense.weight.detach() != 0
    assert 0 < is_kept.sum() < is_kept.numel()
    torch.testing.assert_close(found, wanted * is_kept, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_gradients_are_verified_where_entries_are(monkeypatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 9, 2, 3)
    sparse = sparsify.apply(nn.Conv2d(9, 5, 1).train(), recipe(), (x,))
    assert sparse.verify_gradients(x) < 1e-3
    monkeypatch.setattr(
        trained_masks.Mask, "applied", lambda mask, gradient, held: gradient
    )  # zeros get some, too
    with pytest.raises(VerificationError, match="gradient 0 differs"):
        sparse.verify_gradients(x)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_weights_that_are_read_dense_get_all_gradients() -> None:
    torch.manual_seed(0)
    sparse = sparsify.apply(
        nn.Embedding(10, 4).train(), recipe(format="dense, dense", types=["Embedding"]), (torch.arange(10),)
    )
    sparse(torch.arange(10)).sum().backward()
    assert (next(sparse.parameters()).grad == 1).all()


class Cross(nn.Module):
    """Attention to other tokens: two products read parts of one weight, of which a kernel may take one."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.attention(x, y, y, need_weights=False)[0]


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize("left", [0, 1])
def test_parts_of_a_weight_of_which_a_kernel_reads_one(left, monkeypatch) -> None:
    torch.manual_seed(0)

    def without_one(draft):
        del draft.regions[left]
        return draft

    taken = [
        replace(step, run=without_one) if step.name == "contested" else step for step in capture_call.PASSES
    ]
    monkeypatch.setattr(capture_call, "PASSES", [step for step in taken if step.name != "priced"])
    model, x, y = Cross().train(), torch.randn(2, 9, 64), torch.randn(2, 12, 64)
    asked = recipe()
    asked["sparsify"][0]["targets"] = ["param:*in_proj_weight"]
    sparse = sparsify.apply(model, asked, (x, y))
    assert len(sparse.report.regions) == 1
    weight = sparse.get_parameter("attention.in_proj_weight")
    sparse(x, y).square().sum().backward()
    dense = copy.deepcopy(model)
    values = weight.detach().to_dense() if isinstance(weight, sparsify.SparseTensor) else weight.detach()
    dense.attention.in_proj_weight = nn.Parameter(values.clone())
    dense(x, y).square().sum().backward()
    got = weight.grad.to_dense() if isinstance(weight.grad, sparsify.SparseTensor) else weight.grad
    torch.testing.assert_close(got, dense.attention.in_proj_weight.grad * (values != 0))


@pytest.mark.parametrize("form", ["bcsr(4, 4)", "bcsr(3, 3)", "bcsr(5, 4)"])
def test_zeros_within_blocks_get_no_gradient_and_stay(form) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)
    layer.weight.data *= torch.rand(16, 16) < 0.3
    asked = {
        "schema": 1,
        "name": "blocks",
        "sparsify": [{"targets": ["param:0.weight"], "source": "given", "format": form}],
    }
    dense = nn.Sequential(layer, nn.ReLU()).train()
    mask = layer.weight.detach() != 0
    sparse = sparsify.apply(copy.deepcopy(dense), asked, (x,))
    assert len(sparse.report.regions) == 1
    for net in (sparse, dense):
        net(x).square().sum().backward()
    weight = sparse.get_parameter("0.weight")
    torch.testing.assert_close(weight.grad, layer.weight.grad * mask)
    optimizer = torch.optim.Adam(sparse.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        sparse(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
    assert torch.equal(sparse.get_parameter("0.weight") != 0, mask)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_parameters_that_are_sparse_tensors_before_apply(mode) -> None:
    """Their products are kernels already, and nothing is left dense."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 5)), torch.randn(6, 24)
    for layer in (net[0], net[2]):
        kept = sparsify.sparsify(layer.weight.detach(), sparsify.sparsifiers.ScalarFraction(0.8), "csr")
        layer.weight = nn.Parameter(kept)
    asked = {"schema": 1, "name": "given", "sparsify": [{"targets": ["param:*.weight"], "source": "given"}]}
    sparse = sparsify.apply(getattr(net, mode)(), asked, x)
    assert not sparse.report.dense
    sparse(x).square().sum().backward()
    found = [parameter.grad for parameter in net.parameters()]
    net.zero_grad(set_to_none=True)
    net(x).square().sum().backward()
    for gradient, parameter in zip(found, net.parameters(), strict=True):
        assert type(gradient) is type(parameter.grad)
        values = [
            g.values() if isinstance(g, sparsify.SparseTensor) else g for g in (gradient, parameter.grad)
        ]
        torch.testing.assert_close(*values)
