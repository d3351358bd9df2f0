"""Models whose gradients a captured graph may lose: checkpoints, functions with a backward pass of their own, state."""

import copy
import os
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparsify import options
from sparsify.errors import VerificationError
from sparsify.passes.apply import apply
from sparsify.passes.capture import autograd_functions
from sparsify.passes.module.check.verify import compare_training
from sparsify.recipe import Verify

NOTHING = {"schema": 1, "name": "nothing", "sparsify": []}
PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.75}}],
}


@pytest.fixture(autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


class Round(torch.autograd.Function):
    """Rounding whose gradient is that of its operand."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Sums(nn.Module):
    """Messages over edges behind a linear layer."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def messages(self, x, edge_index):
        return torch.zeros_like(x).index_add(0, edge_index[1], self.lin(x)[edge_index[0]])

    def forward(self, x, edge_index):
        return self.messages(x, edge_index)


class Reentrant(Sums):
    """The same under a reentrant checkpoint."""

    def forward(self, x, edge_index):
        return checkpoint(self.messages, self.lin(x), edge_index, use_reentrant=True)


class Recomputed(Sums):
    """The same under another checkpoint."""

    def forward(self, x, edge_index):
        return checkpoint(self.messages, self.lin(x), edge_index, use_reentrant=False)


class Rounded(Sums):
    """The same, rounded."""

    def forward(self, x, edge_index):
        return Round.apply(self.messages(x, edge_index) * 3)


def inputs(seed, nodes=30, edges=90):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 6, generator=draw)
    return x, torch.randint(0, nodes, (2, edges), generator=draw)


def gradients(model, parameters, seed=5):
    x, edge_index = inputs(seed, 25, 70)
    x.requires_grad_()
    for one in parameters:
        one.grad = None
    model(x, edge_index).square().sum().backward()
    return [x.grad, *[one.grad.clone() for one in parameters]]


@pytest.mark.parametrize("kind", [Reentrant, Recomputed])
def test_checkpoints_inside_are_captured_with_their_gradients(kind):
    model = kind().train()
    sparse = apply(model, "gcn", inputs(0))
    assert sparse.report.regions
    parameters = list(model.parameters())
    torch.testing.assert_close(gradients(sparse, parameters), gradients(model, parameters))


def test_functions_with_a_backward_pass_leave_models_in_training_dense_with_one_warning():
    model = Rounded().train()
    with pytest.warns(RuntimeWarning, match="Round, whose own backward pass a graph does not have") as said:
        sparse = apply(model, "gcn", inputs(0))
    assert len(said) == 1
    parameters = list(model.parameters())
    torch.testing.assert_close(gradients(sparse, parameters), gradients(model, parameters))
    assert all(one.abs().max() > 0 for one in gradients(sparse, parameters))


def test_functions_with_a_backward_pass_are_captured_for_inference():
    model = Rounded().eval()
    sparse = apply(model, "gcn", inputs(0))
    assert sparse.report.regions
    with torch.no_grad():
        torch.testing.assert_close(sparse(*inputs(2)), model(*inputs(2)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [Rounded, Reentrant])
def test_the_backend_leaves_such_graphs_dense_with_gradients(kind):
    torch._dynamo.reset()
    model = kind().train()
    parameters = list(model.parameters())
    expected = gradients(model, parameters)
    compiled = torch.compile(model, backend="sparsify", options={"recipe": "gcn", "inner": "eager"})
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        found = gradients(compiled, parameters)
    torch.testing.assert_close(found, expected)


def test_functions_of_other_calls_are_as_they_were():
    before = torch.autograd.Function.__dict__["apply"]
    with autograd_functions.inlined(has_gradients=True), torch.no_grad():
        Round.apply(torch.randn(3))
    assert torch.autograd.Function.__dict__["apply"] is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_children_forked_meanwhile_have_functions_as_they_were():
    before = torch.autograd.Function.__dict__["apply"]
    begun, over = threading.Event(), threading.Event()

    def stay():
        with autograd_functions.inlined(has_gradients=True):
            begun.set()
            over.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    begun.wait()
    pid = os.fork()
    if not pid:
        os._exit(torch.autograd.Function.__dict__["apply"] is not before)
    _, status = os.waitpid(pid, 0)
    over.set()
    thread.join()
    assert status == 0


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_applied_models_run_under_checkpoints(early, reentrant):
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).train()
    x = torch.randn(8, 16, requires_grad=True)
    sparse = apply(model, PRUNED, x.detach(), verify=not early)
    expected = torch.autograd.grad(sparse.original(x).square().sum(), list(sparse.parameters()))
    for _ in range(2):
        sparse.zero_grad()
        checkpoint(sparse, x, use_reentrant=reentrant).square().sum().backward()
        kept = [
            torch.where(one != 0, want, 0) for one, want in zip(sparse.parameters(), expected, strict=True)
        ]
        have = [torch.where(one != 0, one.grad, 0) for one in sparse.parameters()]
        torch.testing.assert_close(have, kept)


LIMITS = Verify(rtol=1e-4, atol=1e-5)


def trained(dense, sparse, *tensors):
    return compare_training(dense, sparse, LIMITS, tensors, tuple)


def test_verification_compares_gradients():
    x = torch.randn(5, requires_grad=True)
    assert trained(lambda: x * 2, lambda: x + x, x) < 1e-6
    with pytest.raises(VerificationError, match="gradient 0 differs"):
        trained(lambda: x * 2, lambda: x.detach() + x, x)
    with pytest.raises(VerificationError, match="gradient 0 exists only densely"):
        trained(lambda: x * 2, lambda: x.detach() * 2, x)


def test_gradients_of_zeros_may_be_missing():
    x = torch.randn(5, requires_grad=True)
    y = torch.randn(5, requires_grad=True)
    assert trained(lambda: y * 2 + x * 0, lambda: y * 2, x, y) == 0.0


def test_gradients_that_fail_only_sparsely_are_refused():
    x = torch.randn(5, requires_grad=True)

    def overwritten():
        y = x.exp()
        z = y * 1
        y.detach().mul_(1)
        return z

    assert trained(overwritten, overwritten, x) == 0.0
    with pytest.raises(VerificationError, match="gradients exist only densely"):
        trained(lambda: x.exp() * 1, overwritten, x)


class Memory(nn.Module):
    """Results that depend on what earlier calls left in a buffer."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("last", torch.zeros(4, 6))

    def forward(self, x):
        y = self.norm(self.lin(x))
        with torch.no_grad():
            self.last[0] += y.mean(0)
            self.last[:, 1].mul_(0.5).add_(1)
        return y + self.last[0]


@pytest.mark.parametrize("training", [True, False])
def test_state_of_calls_is_no_difference(training):
    model = Memory().train(training)
    source = copy.deepcopy(model)
    sparse = apply(model, NOTHING, torch.randn(5, 6))
    torch.testing.assert_close(model.last, torch.zeros(4, 6))
    for seed in range(2):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(seed))
        found, expected = sparse(x), source(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(model.last, source.last)
        found.square().sum().backward()
        expected.square().sum().backward()
    torch.testing.assert_close(model.lin.weight.grad, source.lin.weight.grad)


class Uninitialised(nn.Module):
    """A graph that hands memory without values to another one, and reads it there."""

    def forward(self, x, edge_index):
        y = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        found = y.new_empty(y.shape)
        torch._dynamo.graph_break()
        return found.copy_(y)


@pytest.mark.filterwarnings("ignore:torch.compile cut the graph")
def test_uninitialised_memory_is_not_compared():
    torch._dynamo.reset()
    model = Uninitialised().eval()
    x, edge_index = inputs(1)
    large = [torch.full((30, 6), 1e10) for _ in range(50)]
    del large  # what new memory is likely to hold
    compiled = torch.compile(model, backend="sparsify", options={"recipe": "gcn", "inner": "eager"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, edge_index), model(x, edge_index))


@torch.library.custom_op("sparsify_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Twice a tensor."""
    return 2 * x


doubled.register_fake(torch.empty_like)
torch.library.register_autograd(
    "sparsify_tests::doubled", lambda ctx, gradient: 2 * gradient, setup_context=lambda *_, **__: None
)


class Doubled(nn.Module):
    """A layer behind an operator with a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.ops.sparsify_tests.doubled(self.linear(x)))


def test_operator_with_a_gradient_is_captured() -> None:
    model, x = Doubled(), torch.randn(4, 8)
    recipe = {"schema": 1, "name": "r", "sparsify": [{"targets": ["param:linear.weight"], "optional": True}]}
    sparse = apply(model, recipe, (x,))
    assert len(sparse.variants) == 1
    (wanted,) = torch.autograd.grad(model(x).sum(), model.linear.weight)
    (found,) = torch.autograd.grad(sparse(x).sum(), sparse.linear.weight)
    torch.testing.assert_close(found, wanted)
