"""Wanda and SparseGPT against the formulas of their papers in numpy."""

import numpy as np
import pytest
import torch

from sparsify.errors import DataError, ShapeError
from sparsify.pruning.sparsegpt import sparsegpt
from sparsify.pruning.statistics import relative_error
from sparsify.pruning.structure import Structure
from sparsify.pruning.wanda import wanda


def correlated(outputs=12, inputs=16, tokens=200, seed=0):
    """A weight and a gram matrix of inputs that depend on each other."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, inputs // 2)) @ rng.normal(size=(inputs // 2, inputs))
    x += 0.3 * rng.normal(size=x.shape)
    x *= np.exp(rng.normal(size=inputs))
    return torch.from_numpy(rng.normal(size=(outputs, inputs))), torch.from_numpy(x.T @ x)


def asked(share=0.0, **structure):
    """A structure and the share of zeros."""
    return Structure(**structure), share


def reference_wanda(weight, squares, share=0.0, keep=0, of=0):
    """Algorithm 1 of the paper, row by row."""
    scores, mask = np.abs(weight) * np.sqrt(squares), np.zeros(weight.shape, bool)
    for row, kept in zip(scores, mask, strict=True):
        for start in range(0, len(row), of or len(row)):
            group = row[start : start + (of or len(row))]
            count = keep if of else round(len(row) * (1 - share))
            kept[start + np.argsort(-group, kind="stable")[:count]] = True
    return mask


def reference_sparsegpt(weight, gram, share=0.0, keep=0, of=0, columns=4, damping=0.01):
    """Algorithm 1 of the paper with the inverse of each remaining matrix instead of a Cholesky factor."""
    w, h = weight.copy(), gram.copy()
    h += damping * np.mean(np.diag(h)) * np.eye(len(h))
    mask = np.ones(w.shape, bool)
    for j in range(w.shape[1]):
        step = of or columns
        if j % step == 0:
            at = range(j, min(j + step, w.shape[1]))
            # The diagonal of column c is that of the inverse over the columns from c on.
            d = np.array([np.linalg.inv(h[c:, c:])[0, 0] for c in at])
            scores = w[:, j : j + step] ** 2 / d
            if of:
                for row, kept in zip(scores, mask[:, j : j + step], strict=True):
                    kept[np.argsort(-row, kind="stable")[keep:]] = False
            else:
                flat = np.argsort(-scores, axis=None, kind="stable")[round(scores.size * (1 - share)) :]
                mask[:, j : j + step].reshape(scores.shape)[np.unravel_index(flat, scores.shape)] = False
        inverse = np.linalg.inv(h[j:, j:])
        error = np.where(mask[:, j], 0, w[:, j]) / inverse[0, 0]
        w[:, j:] -= np.outer(error, inverse[0])
    return mask, np.where(mask, w, 0)


@pytest.mark.parametrize("how", [{"share": 0.5}, {"share": 0.8}, {"keep": 2, "of": 4}])
def test_wanda_as_in_the_paper(how):
    weight, gram = correlated()
    found = wanda(weight, gram.diagonal(), *asked(**how))
    assert (found.numpy() == reference_wanda(weight.numpy(), gram.diagonal().numpy(), **how)).all()


@pytest.mark.parametrize("how", [{"share": 0.5}, {"share": 0.8}, {"keep": 2, "of": 4}])
def test_sparsegpt_as_in_the_paper(how):
    weight, gram = correlated()
    mask, updated = sparsegpt(weight, gram, *asked(**how), columns=4)
    wanted_mask, wanted = reference_sparsegpt(weight.numpy(), gram.numpy(), **how)
    assert (mask.numpy() == wanted_mask).all()
    np.testing.assert_allclose(updated.numpy(), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("how", [{"share": 0.5}, {"keep": 2, "of": 4}])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_errors(how, seed):
    weight, gram = correlated(48, 64, 400, seed)
    structure, share = asked(**how)
    by_size = torch.where(structure.select(weight.abs(), share, by_row=False), weight, 0)
    by_wanda = torch.where(wanda(weight, gram.diagonal(), structure, share), weight, 0)
    _, updated = sparsegpt(weight, gram, structure, share)
    errors = [relative_error(weight, after, gram) for after in (updated, by_wanda, by_size)]
    assert errors == sorted(errors)
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.parametrize(
    "how",
    [
        {"share": 0.5, "block": (4, 2)},
        {"share": 0.75, "is_by_row": True},
        {"keep": 1, "of": 4, "mode": 0},
        {"keep": 2, "of": 4, "mode": 0, "group": 1},
        {"share": 1.0},
        {"share": 0.0},
    ],
)
@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_structures(how, method):
    weight, gram = correlated()
    structure, share = asked(**how)
    if method == "wanda":
        mask = wanda(weight, gram.diagonal(), structure, share)
    else:
        mask, updated = sparsegpt(weight, gram, structure, share, columns=8)
        assert torch.equal(updated != 0, mask)
    share = share if not structure.of else 1 - structure.keep / structure.of
    assert int(mask.sum()) == round(mask.numel() * (1 - share))
    if structure.is_by_row:
        assert set(mask.float().mean(1).unique().tolist()) == {0.0, 1.0}
    if structure.block:
        blocks = mask.view(3, 4, 8, 2).float().mean((1, 3))
        assert set(blocks.unique().tolist()) == {0.0, 1.0}
    if structure.of:
        assert set(mask.view(-1, structure.of, 16).sum(1).unique().tolist()) == {structure.keep}


def test_inputs_that_are_always_zero():
    weight, gram = correlated()
    gram[3], gram[:, 3] = 0, 0
    mask, updated = sparsegpt(weight, gram, Structure(), 0.5)
    assert updated.isfinite().all()
    assert (updated[:, 3] == 0).all()
    assert int(mask.sum()) == mask.numel() // 2


@pytest.mark.parametrize(
    "how",
    [
        {"share": 0.5},
        {"share": 0.5, "block": (2, 2)},
        {"share": 0.5, "is_by_row": True},
        {"keep": 2, "of": 4},
        {"keep": 2, "of": 4, "mode": 0},
        {"keep": 2, "of": 4, "mode": 0, "group": 1},
    ],
)
@pytest.mark.parametrize("unread", [range(3, 13), range(16)], ids=["many", "all"])
def test_counts_hold_with_inputs_that_are_always_zero(how, unread):
    weight, gram = correlated()
    gram[list(unread)], gram[:, list(unread)] = 0, 0
    structure, share = asked(**how)
    mask, updated = sparsegpt(weight, gram, structure, share, columns=8)
    assert torch.equal(updated != 0, mask)
    assert int(mask.sum()) == mask.numel() // 2
    if len(unread) == 16:  # nothing is to be made up for: what stays is as it was, chosen by magnitude
        assert torch.equal(updated[mask], weight[mask])
        if structure == Structure():
            by_size = torch.cat(
                [structure.select(part.abs(), 0.5, by_row=False) for part in weight.split(8, 1)], 1
            )
            assert torch.equal(mask, by_size)


def test_fewer_tokens_than_inputs():
    weight, gram = correlated(tokens=3)
    before = weight.clone()
    _, updated = sparsegpt(weight, gram.float(), Structure(), 0.5)
    assert updated.dtype == torch.float64
    assert relative_error(weight, updated, gram) < 0.3
    assert torch.equal(weight, before)


def test_what_does_not_fit():
    weight, gram = correlated()
    with pytest.raises(ShapeError, match="groups of 5 do not divide"):
        sparsegpt(weight, gram, Structure(keep=2, of=5))
    with pytest.raises(ShapeError, match="blocks of 5 x 2 do not divide"):
        wanda(weight, gram.diagonal(), Structure((5, 2)), 0.5)
    with pytest.raises(DataError, match="cannot be factored"):
        sparsegpt(weight, gram * torch.nan, Structure(), 0.5)
