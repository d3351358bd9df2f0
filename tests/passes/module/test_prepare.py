"""Captures ahead, for servers and threads."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import sparsify
from sparsify.errors import CaptureError, VerificationError

PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}}],
}


class Counted(nn.Module):
    """A perceptron with a normalisation that counts, dropout and an argument by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(128, 256), nn.BatchNorm1d(256), nn.Linear(256, 10)

    def forward(self, x, scale=None):
        y = self.last(nn.functional.dropout(self.norm(self.first(x)).relu(), 0.2, self.training))
        return y if scale is None else y * scale


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.sampled(3)
def test_training_and_evaluation_of_all_sizes(monkeypatch):
    model = Counted().eval()
    few, many = torch.randn(1, 128), torch.randn(64, 128)
    kinds = [
        {"training": False, "inputs": many},
        {"training": False, "inputs": (few,)},
        {"training": True, "inputs": {"x": many, "scale": torch.ones(10)}},
        {"training": False, "inputs": (torch.randn(7, 128),)},
    ]
    sparse = sparsify.apply(model, PRUNED)
    for parameter in sparse.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, random, modes = state_of(sparse), torch.get_rng_state(), [m.training for m in sparse.modules()]
    found = sparse.prepare(kinds)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in sparse.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in sparse.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in sparse.parameters() if p.grad is not None)
    assert [one.is_new for one in found] == [True, True, True, False]
    assert "kinds[2] (training, x [64, 128], scale [10]): captured" in str(found[2])
    assert "kinds[3] (evaluation, x [7, 128]): known" in str(found[3])
    assert len(sparse.variants) == 3

    def build(*_, **__):
        raise AssertionError("a kernel is built for a call that was prepared")

    monkeypatch.setattr("sparsify.compiler.cpp.toolchain.cache.build", build)
    with torch.no_grad():
        sparse(few), sparse(many), sparse(torch.randn(7, 128))
    sparse.train()
    sparse(x=many, scale=torch.ones(10)).square().sum().backward()
    assert len(sparse.variants) == 3
    assert sparse.report is sparse.variants[2].report


@pytest.mark.sampled(2)
def test_apply_warms_up():
    sparse = sparsify.apply(
        Counted().eval(),
        PRUNED,
        torch.randn(64, 128),
        warmup=[{"inputs": torch.randn(1, 128)}, {"training": True, "inputs": torch.randn(64, 128)}],
    )
    assert len(sparse.variants) == 3
    assert not sparse.training
    assert sparse.report is sparse.variants[0].report


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (torch.ones(2), r"kinds\[1\] is a Tensor; a mapping"),
        ({"training": False}, r"kinds\[1\] has no inputs"),
        (
            {"trainning": False, "inputs": torch.ones(2)},
            r"kinds\[1\] has 'trainning'; did you mean 'training'",
        ),
        ({"training": 1, "inputs": torch.ones(2)}, r"kinds\[1\] has training=1; True or False"),
        ({"inputs": 3}, r"kinds\[1\]: example inputs of type int"),
        ({"inputs": (3,)}, r"the inputs of kinds\[1\] hold no tensor"),
        ({"inputs": {"y": torch.ones(2)}}, r"kinds\[1\]: the example inputs do not fit the model's forward"),
        ({"inputs": torch.ones(2, 3)}, r"kinds\[1\] \(evaluation, x \[2, 3\]\): .*shapes"),
    ],
)
def test_errors_name_the_kind(kind, text):
    sparse = sparsify.apply(Counted().eval(), PRUNED, verify=False)
    with pytest.raises(CaptureError, match=text):
        sparse.prepare([{"inputs": torch.ones(4, 128)}, kind])


def test_kinds_that_are_not_verified_are_not_kept(monkeypatch):
    sparse = sparsify.apply(Counted().eval(), PRUNED)

    def differs(*_, **__):
        raise VerificationError("too far away")

    with monkeypatch.context() as patch:
        patch.setattr("sparsify.passes.module.check.verify.compare", differs)
        with pytest.raises(VerificationError, match=r"kinds\[0\] .*too far"):
            sparse.prepare([{"inputs": torch.ones(4, 128)}])
    assert not sparse.variants
    sparse.prepare([{"inputs": torch.ones(4, 128)}])
    assert len(sparse.variants) == 1


@pytest.mark.filterwarnings("ignore:Branches")
def test_kinds_without_a_graph_say_so():
    class Branches(Counted):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else -x

    kinds = [{"inputs": torch.ones(4, 128)}]
    (found,) = sparsify.apply(Branches().eval(), PRUNED).prepare(kinds)
    assert not found.is_new
    assert "1 pieces run in kernels, torch.export cannot capture Branches" in str(found)
    whole = replace(found, pieces=0)
    assert "the source model runs, torch.export cannot capture Branches" in str(whole)


def test_copies_are_prepared_too():
    sparse = sparsify.apply(Counted().eval(), PRUNED)
    sparse.prepare([{"inputs": torch.ones(4, 128)}])
    assert len(copy.deepcopy(sparse).variants) == 1
