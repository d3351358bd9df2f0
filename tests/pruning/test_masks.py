"""New masks: counts, methods against short references, scopes against the papers, and errors."""

from math import prod
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify.errors import DataError, ShapeError, SparsifyError
from sparsify.pruning import score
from sparsify.pruning.masks import Plan, new_masks
from sparsify.pruning.methods import METHODS, table
from sparsify.pruning.schedule import Schedule
from sparsify.pruning.structure import Structure

FIXED = Schedule("cosine", to=0.75, start_at=0.75, end=100, every=10)


@pytest.fixture
def weight():
    return torch.randn(16, 24, generator=torch.Generator().manual_seed(0))


def half(weight, seed=1):
    order = torch.rand(weight.numel(), generator=torch.Generator().manual_seed(seed)).argsort()
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[order[: weight.numel() // 4]] = True
    return mask.view(weight.shape)


def test_magnitude_keeps_the_largest(weight):
    mask = new_masks(Plan("magnitude", Schedule("oneshot", to=0.9)), {"w": weight})["w"]
    expected = set(weight.abs().flatten().argsort(descending=True)[:38].tolist())
    assert set(mask.flatten().nonzero().flatten().tolist()) == expected


def test_gradual_pruning_drops_what_is_smallest_and_nothing_comes_back(weight):
    schedule = Schedule("cubic", to=0.9, end=40, every=10)
    masks, alive = None, torch.ones(weight.numel(), dtype=torch.bool)
    for step in range(0, 41, 10):
        masks = new_masks(Plan("magnitude", schedule), {"w": weight}, masks, step=step)
        count = round(weight.numel() * (1 - schedule.target(step)))
        size = torch.where(alive, weight.abs().flatten(), -1.0)
        now = torch.zeros_like(alive)
        now[size.argsort(descending=True, stable=True)[:count]] = True
        alive = now
        assert torch.equal(masks["w"].flatten(), alive)
        weight = weight.roll(1, 0) * masks["w"]


@pytest.mark.parametrize("mode", [0, 1])
def test_gradual_groups_with_patterns_step_and_nothing_comes_back(mode):
    """n:m:g as n:m: with each update fewer of a block, in the end as many blocks of each pattern."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    plan = Plan(
        "magnitude",
        Schedule("linear", to=0.75, end=60, every=10),
        structure=Structure(keep=1, of=4, group=4, mode=mode),
    )
    masks, counts = None, []
    for step in range(0, 61, 10):
        found = new_masks(plan, {"w": weight}, masks, step=step)
        mask = found["w"] if mode == 0 else found["w"].T
        assert masks is None or not bool((found["w"] & ~masks["w"]).any()), "an entry came back"
        blocks = mask.view(16, 4, 64).sum(1)
        assert blocks.unique().numel() == 1
        counts.append(int(blocks[0, 0]))
        masks = found
        weight = weight.roll(1, 0).roll(3, 1) * masks["w"]
    assert counts == [max(1, round(4 * (1 - plan.schedule.target(at)))) for at in range(0, 61, 10)]
    assert counts[0] == 4 and counts[-1] == 1 and len(set(counts)) == 4
    chunks = mask.view(16, 4, 4, 16).permute(0, 2, 3, 1).flatten(0, 1)
    for chunk in chunks:
        assert chunk.int().unique(dim=0, return_counts=True)[1].tolist() == [4] * 4


def test_rigl_drops_the_smallest_and_grows_where_gradients_are_largest(weight):
    mask, gradient = half(weight), torch.randn_like(weight)
    weight = weight * mask
    plan = Plan("magnitude", FIXED, regrow="gradient")
    found = new_masks(plan, {"w": weight}, {"w": mask}, step=20, gradients={"w": gradient})["w"]
    count = int(mask.sum())
    dropped = int(FIXED.exchanged(0.3, 20) * count)
    kept = weight.abs().flatten().argsort(descending=True)[: count - dropped]
    free = gradient.abs().flatten().clone()
    free[kept] = -1
    expected = set(kept.tolist()) | set(free.argsort(descending=True)[:dropped].tolist())
    assert dropped > 10
    assert set(found.flatten().nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("kind", ["random", "gradient"])
@pytest.mark.parametrize("scope", ["layer", "erk", "global", "owl"])
def test_regrowth_keeps_the_number_of_entries(weight, kind, scope):
    weights = {"a": weight, "b": weight[:8, :8].clone()}
    plan = Plan("magnitude", FIXED, scope, regrow=kind)
    masks = new_masks(plan, weights)
    total = sum(int(mask.sum()) for mask in masks.values())
    for step in range(0, 101, 10):
        pruned = {name: weights[name] * mask for name, mask in masks.items()}
        gradients = {name: torch.randn_like(w) for name, w in weights.items()}
        old, masks = masks, new_masks(plan, pruned, masks, step=step, gradients=gradients)
        again = new_masks(plan, pruned, old, step=step, gradients=gradients)
        assert all(torch.equal(masks[name], again[name]) for name in masks)
        now = sum(int(mask.sum()) for mask in masks.values())
        assert abs(now - total) <= (2 if scope == "owl" else 0)
        assert step not in (0, 50) or not torch.equal(old["a"], masks["a"])


@pytest.mark.parametrize("form", ["csr", "csc", "bcsr(4, 4)", "j/8: dense, i: dense, j%8: compressed"])
@pytest.mark.parametrize("score", ["magnitude", "gradient", "movement", "random"])
@pytest.mark.parametrize("scope", ["layer", "erk", "global"])
def test_sparse_weights_get_the_masks_of_dense_ones(weight, form, score, scope):
    mask = half(weight)
    mask = mask.view(4, 4, 6, 4).any(3, keepdim=True).any(1, keepdim=True).expand(4, 4, 6, 4).reshape(16, 24)
    mask = mask if form.startswith("bcsr") else half(weight)
    weight = weight * mask
    stored = sparsify.tensor((mask.nonzero().t(), weight[mask], (16, 24)), form)
    facts = {"gradients": {"w": torch.randn(16, 24)}, "statistics": {"w": torch.randn(16, 24)}}
    for regrow in ("none", "gradient", "random"):
        plan = Plan(score, FIXED, scope, regrow=regrow)
        expected = new_masks(plan, {"w": weight}, {"w": mask}, step=20, **facts)["w"]
        assert torch.equal(new_masks(plan, {"w": stored}, {"w": mask}, step=20, **facts)["w"], expected)
    smaller = mask & half(weight, 2)  # not the entries of the tensor
    plan = Plan(score, FIXED, regrow="gradient")
    expected = new_masks(plan, {"w": weight}, {"w": smaller}, step=20, **facts)["w"]
    assert torch.equal(new_masks(plan, {"w": stored}, {"w": smaller}, step=20, **facts)["w"], expected)


def test_set_grows_other_entries_at_other_steps_and_seeds(weight):
    mask = half(weight)
    plan = Plan("magnitude", FIXED, regrow="random")
    drawn = [
        new_masks(plan, {"w": weight * mask}, {"w": mask}, step=step, seed=seed)["w"]
        for step, seed in ((0, 0), (0, 1), (10, 0))
    ]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_movement_keeps_what_moves_away_from_zero(weight):
    statistic = torch.randn_like(weight)
    plan = Plan("movement", Schedule("oneshot", to=0.5))
    mask = new_masks(plan, {"w": weight}, statistics={"w": statistic})["w"]
    expected = set(statistic.flatten().argsort(descending=True)[:192].tolist())
    assert set(mask.flatten().nonzero().flatten().tolist()) == expected


def test_erk_shares_follow_the_formula():
    shapes = {"a": (64, 32), "b": (128, 64), "c": (4, 8, 3, 3)}
    weights = {name: torch.randn(shape) for name, shape in shapes.items()}
    masks = new_masks(Plan("magnitude", Schedule("oneshot", to=0.9), "erk"), weights)
    scale = 0.1 * sum(map(prod, shapes.values())) / sum(map(sum, shapes.values()))
    for name, shape in shapes.items():
        assert abs(int(masks[name].sum()) - scale * sum(shape)) <= 0.5 + 1e-9


def test_owl_gives_more_to_weights_with_outliers(weight):
    outliers = weight.clone()
    outliers[0, :12] *= 100
    masks = new_masks(Plan("magnitude", Schedule("oneshot", to=0.5), "owl"), {"a": weight, "b": outliers})
    assert [int(mask.sum()) for mask in masks.values()] == [round(384 * 0.42), round(384 * 0.58)]


@pytest.mark.parametrize(
    "structure, counts",
    [
        (Structure((4, 4)), lambda m: m.view(4, 4, 6, 4).sum((1, 3)).unique().tolist() == [0, 16]),
        (Structure(is_by_row=True), lambda m: m.sum(1).unique().tolist() == [0, 24]),
        (Structure(keep=1, of=4), lambda m: m.view(-1, 4).sum(1).unique().tolist() == [1]),
        (Structure(keep=1, of=4, group=2, mode=0), lambda m: m.view(4, 4, 24).sum(1).unique().tolist() == [1]),
    ],
    ids=["block", "row", "n:m", "n:m:g"],
)  # fmt: skip
def test_structures_live_and_die_together(weight, structure, counts):
    mask = new_masks(Plan("magnitude", Schedule("oneshot", to=0.75), structure=structure), {"w": weight})["w"]
    assert int(mask.sum()) == 96
    assert counts(mask)


def test_scores_of_users(weight, monkeypatch):
    monkeypatch.setattr(score, "SCORES", dict(score.SCORES))
    score.register_score("last", lambda facts: torch.arange(float(facts.weight.numel())).view(16, 24))
    mask = new_masks(Plan("last", Schedule("oneshot", to=0.5)), {"w": weight})["w"]
    assert mask[8:].all() and not mask[:8].any()
    with pytest.raises(SparsifyError, match="there is a score 'last' already"):
        score.register_score("last", score.magnitude)
    with pytest.raises(SparsifyError, match="no score 'magnitud'"):
        new_masks(Plan("magnitud", FIXED), {"w": weight})


def test_errors(weight):
    plan = Plan("magnitude", FIXED, regrow="gradient")
    with pytest.raises(DataError, match="dense gradient"):
        new_masks(plan, {"w": weight}, {"w": half(weight)})
    with pytest.raises(ShapeError, match="w is \\[16, 24\\], and its mask \\[2\\]"):
        new_masks(plan, {"w": weight}, {"w": torch.ones(2, dtype=torch.bool)})
    with pytest.raises(ShapeError, match="groups of 5 do not divide"):
        new_masks(Plan("magnitude", FIXED, structure=Structure(keep=2, of=5)), {"w": weight})
    weight[3, 3] = torch.nan
    with pytest.raises(DataError, match="w has entries that are not finite"):
        new_masks(Plan("magnitude", FIXED), {"w": weight})


def test_the_page_has_the_table():
    assert table() in (Path(__file__).parents[2] / "docs/pruning.md").read_text(encoding="utf-8")
    assert {method.score for method in METHODS.values()} == set(score.SCORES)
