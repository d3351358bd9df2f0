"""Gradients of dense weights under masks: cleared where they lie, unless something else reads their memory."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsify.passes.module.weights import optimizer_steps
from sparsify.storage.subclass import trained_masks

optimizer_steps.watch_trained()


def under_mask(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Parameter, Tensor]:
    """A parameter that remembers a mask, and the mask."""
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.5
    weight = nn.Parameter(torch.randn(shape, dtype=dtype) * mask)
    trained_masks.remember(weight, mask)
    return weight, mask


def copies(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The gradients that are masked from now on by a copy."""
    found: list[Tensor] = []
    masked = trained_masks.masked

    def noted(gradient: Tensor, entries: Tensor) -> Tensor:
        found.append(gradient)
        return masked(gradient, entries)

    monkeypatch.setattr(trained_masks, "masked", noted)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 9), (64, 64), (300, 257)], ids=str)
def test_gradients_of_products_are_masked_in_place(shape, dtype, monkeypatch) -> None:
    first, _ = under_mask(*shape, dtype=dtype)
    nn.functional.linear(torch.randn(5, shape[1], dtype=dtype), first).sum().backward()  # builds what clears
    weight, mask = under_mask(*shape, dtype=dtype)
    plain = weight.detach().clone().requires_grad_()
    x = torch.randn(5, shape[1], dtype=dtype)
    found = copies(monkeypatch)
    for one in (weight, plain):
        nn.functional.linear(x, one).square().sum().backward()
    assert not found
    assert torch.equal(weight.grad, plain.grad * mask)


def test_gradients_that_others_read_stay(monkeypatch) -> None:
    weight, mask = under_mask(8, 8)
    other, seed = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)
    found = copies(monkeypatch)
    (weight + other).backward(seed)
    ((weight + other) * seed).sum().backward()
    assert len(found) == 2
    (weight * 1.0).sum().backward()
    assert torch.equal(other.grad, 2 * seed)
    torch.testing.assert_close(weight.grad, (2 * seed + 1) * mask)


def test_gradients_with_a_graph_of_their_own() -> None:
    weight, mask = under_mask(6, 6)
    (gradient,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), weight)
    torch.testing.assert_close(second, 6 * weight.detach() * mask)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_of_optimizers_need_no_check(make, monkeypatch) -> None:
    weight, mask = under_mask(16, 16)
    optimizer = make([weight], 0.1)
    checks = []
    monkeypatch.setattr(trained_masks, "check", lambda *given: checks.append(given))
    for _ in range(3):
        nn.functional.linear(torch.randn(4, 16), weight).square().sum().backward()
        optimizer.step()
    assert not checks
    assert not weight.detach()[~mask].any() and weight.detach()[mask].all()


def test_weights_that_are_written_to_outside_of_their_masks_train_where_they_are_not_0() -> None:
    weight, mask = under_mask(16, 16)
    with torch.no_grad():
        weight.masked_fill_(~mask, 1.0)[0] = 0
    weight.sum().backward()
    assert torch.equal(weight.grad, (weight.detach() != 0).float())
    trained_masks.remember(weight, torch.ones_like(mask))
    weight.grad = None
    weight.sum().backward()
    assert weight.grad.all()


def test_gradients_of_others_stay_where_memory_is_shared() -> None:
    weight, _ = under_mask(8, 8)
    other = nn.Parameter(torch.randn(64))
    (other * 2 + weight.flatten()).pow(2).sum().backward()
    torch.testing.assert_close(other.grad, (4 * (weight.flatten() + 2 * other)).detach())


@pytest.mark.parametrize(
    "result",
    [
        lambda weight: weight.flatten(),
        lambda weight: weight.unsqueeze(0),
        lambda weight: torch.cat([weight, torch.ones(1, 8)]),
    ],
    ids=["flatten", "unsqueeze", "cat"],
)
def test_gradients_that_a_caller_gives_stay(result) -> None:
    weight, mask = under_mask(8, 8)
    found = result(weight)
    given = torch.ones_like(found)
    found.backward(given)
    assert bool((given == 1).all())
    torch.testing.assert_close(weight.grad, mask.float())


def test_gradients_that_hooks_keep_stay() -> None:
    weight = nn.Parameter(torch.randn(8, 8))
    kept: list[Tensor] = []
    weight.register_hook(kept.append)
    mask = torch.rand(8, 8) < 0.5
    trained_masks.remember(weight, mask)
    x = torch.randn(4, 8)
    (x @ weight).sum().backward()
    torch.testing.assert_close(kept[0], x.sum(0)[:, None].expand(8, 8))
    torch.testing.assert_close(weight.grad, kept[0] * mask)


def test_buffers_of_functions_stay() -> None:
    constant = torch.ones(8, 8)
    outside = np.ones((8, 8), dtype=np.float32)

    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.sum()

        @staticmethod
        def backward(ctx, gradient):
            return constant

    class OfNumpy(Constant):
        @staticmethod
        def backward(ctx, gradient):
            return torch.from_numpy(outside)

    for function in (Constant, OfNumpy):
        weight, mask = under_mask(8, 8)
        function.apply(weight).backward()
        torch.testing.assert_close(weight.grad, mask.float())
    assert bool((constant == 1).all())
    assert (outside == 1).all()


def test_steps_of_optimizers_hold_the_mask_of_momentum_from_before() -> None:
    weight = nn.Parameter(torch.randn(8, 8))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    mask = torch.rand(8, 8) < 0.5
    with torch.no_grad():
        weight.mul_(mask)
    trained_masks.remember(weight, mask)
    weight.sum().backward()
    optimizer.step()
    assert torch.equal(weight != 0, mask)
    assert torch.equal(trained_masks.entries(weight), mask)
