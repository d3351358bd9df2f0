"""Gradients of dense weights under masks: cleared where they lie, unless something else reads their memory."""

import pytest
import torch
from torch import Tensor, nn

from sparsify.passes.module import optimizer_steps
from sparsify.storage import trained_masks

optimizer_steps.watch_trained()


def under_mask(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Parameter, Tensor]:
    """A parameter that remembers a mask, and the mask."""
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.5
    weight = nn.Parameter(torch.randn(shape, dtype=dtype) * mask)
    trained_masks.remember(weight, mask)
    return weight, mask


def is_in_place(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each gradient that is masked from now on stays the same tensor."""
    found: list[bool] = []
    applied = trained_masks.Mask.applied

    def noted(mask: trained_masks.Mask, gradient: Tensor) -> Tensor:
        result = applied(mask, gradient)
        found.append(result is gradient)
        return result

    monkeypatch.setattr(trained_masks.Mask, "applied", noted)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 9), (64, 64), (300, 257)], ids=str)
def test_gradients_of_products_are_masked_in_place(shape, dtype, monkeypatch) -> None:
    weight, mask = under_mask(*shape, dtype=dtype)
    plain = weight.detach().clone().requires_grad_()
    x = torch.randn(5, shape[1], dtype=dtype)
    found = is_in_place(monkeypatch)
    for one in (weight, plain):
        nn.functional.linear(x, one).square().sum().backward()
    assert found == [True]
    assert torch.equal(weight.grad, plain.grad * mask)


def test_gradients_that_others_read_stay(monkeypatch) -> None:
    weight, mask = under_mask(8, 8)
    other, seed = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)
    found = is_in_place(monkeypatch)
    (weight + other).backward(seed)
    (weight * 1.0).sum().backward()
    ((weight + other) * seed).sum().backward()
    assert found[0] is False and found[2] is False
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
