"""Which entries pruning by magnitude keeps."""

import pytest
import torch

from sparsify.errors import ShapeError
from sparsify.pruning.plan import first_masks
from sparsify.recipe import Prune, Rule
from sparsify.sparsification.rules.grouped import assign_patterns, grouped_mask
from sparsify.sparsification.rules.largest import largest

WEIGHT = torch.tensor([[4.0, -1.0, 0.5, 3.0], [-2.0, 0.1, 0.2, -5.0]])


def magnitude_masks(weights: list[torch.Tensor], prune: Prune) -> list[torch.Tensor]:
    return first_masks(weights, Rule(targets="param:w", prune=prune))


def kept(weights: list[torch.Tensor], **how: object) -> list[list[list[int]]]:
    masks = magnitude_masks(weights, Prune(method="magnitude", **how))
    return [mask.int().tolist() for mask in masks]


def test_the_largest_stay():
    assert kept([WEIGHT], sparsity=0.5) == [[[1, 0, 0, 1], [1, 0, 0, 1]]]
    assert kept([WEIGHT], sparsity=1.0) == [[[0] * 4] * 2]
    assert kept([WEIGHT], sparsity=0.0) == [[[1] * 4] * 2]


def test_one_threshold_for_all_weights():
    small = WEIGHT / 100
    assert kept([WEIGHT, small], sparsity=0.5, scope="global") == [[[1] * 4] * 2, [[0] * 4] * 2]


@pytest.mark.parametrize(
    ("dim", "mask"),
    [
        (None, [[1, 0, 0, 1], [1, 0, 0, 1]]),
        ("in", [[1, 0, 0, 1], [1, 0, 0, 1]]),
        ("out", [[1, 1, 1, 0], [0, 0, 0, 1]]),
        (0, [[1, 1, 1, 0], [0, 0, 0, 1]]),
    ],
)
def test_groups(dim, mask):
    assert kept([WEIGHT], pattern="1:2", dim=dim) == [mask]


def test_blocks():
    assert kept([WEIGHT], sparsity=0.5, pattern={"block": [2, 1]}) == [[[1, 0, 0, 1]] * 2]
    assert kept([WEIGHT], sparsity=0.5, pattern={"block": [1, 2]}) == [[[1, 1, 0, 0], [0, 0, 1, 1]]]


def test_the_first_of_equals_stay():
    assert largest(torch.ones(4), 0.5).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_scores_of_any_dtype(dtype):
    assert largest(torch.tensor([1.0, 3.0, 2.0, 2.0], dtype=dtype), 0.5).tolist() == [
        False,
        True,
        True,
        False,
    ]


def test_what_is_not_a_number_stays():
    assert largest(torch.tensor([1.0, torch.nan, 2.0]), 0.34).tolist() == [False, True, False]


@pytest.mark.parametrize("how", [{"pattern": "1:3"}, {"sparsity": 0.5, "pattern": {"block": [3, 1]}}])
def test_what_does_not_divide(how):
    with pytest.raises(ShapeError, match="do not divide"):
        kept([WEIGHT], **how)


def test_groups_with_a_pattern_in_common():
    torch.manual_seed(0)
    weight = torch.randn(12, 48)
    (mask,) = magnitude_masks([weight], Prune(method="magnitude", pattern="2:4:4"))
    blocks = mask.view(3, 4, 2, 24).permute(0, 2, 3, 1).flatten(0, 1)  # [chunks, blocks, entries]
    for chunk in blocks:
        patterns, counts = chunk.unique(dim=0, return_counts=True)
        assert patterns.sum(1).tolist() == [2] * 6 and counts.tolist() == [4] * 6
    free = magnitude_masks([weight], Prune(method="magnitude", pattern="2:4", dim="out"))[0]
    drawn = torch.rand(12, 48).view(3, 4, 48).argsort(1).argsort(1).view(12, 48) < 2
    held, best, any_ = ((weight.abs() * m).sum() for m in (mask, free, drawn))
    assert any_ < 0.9 * held < held <= best
    (turned,) = magnitude_masks([weight.t()], Prune(method="magnitude", pattern="2:4:4", dim="in"))
    assert torch.equal(turned, mask.t())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_groups_that_do_not_fill_a_weight(dtype):
    weight = torch.randn(13, 25, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight[0, 0], weight[5, 5] = torch.inf, torch.nan
    mask = grouped_mask(weight, 1, 4, 2)
    assert mask.shape == weight.shape and mask[0, 0] and mask[5, 5]
    assert mask[:12].view(3, 4, 25).sum(1).eq(1).all()  # whole blocks keep one of four
    assert grouped_mask(weight.view(13, 5, 5), 1, 4, 2).equal(mask.view(13, 5, 5))


@pytest.mark.parametrize("group, patterns", [(1, 2), (3, 4), (2, 6)])
@pytest.mark.parametrize("has_ties", [False, True])
def test_patterns_are_given_out_as_by_a_loop_over_sorted_pairs(group, patterns, has_ties):
    scores = torch.rand(5, group * patterns, patterns, generator=torch.Generator().manual_seed(group))
    scores = (4 * scores).round() if has_ties else scores
    found = assign_patterns(scores, group)
    for own, of_chunk in zip(found.tolist(), scores.tolist(), strict=True):
        pairs = [(-value, b, p) for b, row in enumerate(of_chunk) for p, value in enumerate(row)]
        left, chosen = [group] * patterns, {}
        for _, b, p in sorted(pairs):
            if b not in chosen and left[p]:
                chosen[b], left[p] = p, left[p] - 1
        assert own == [chosen[b] for b in range(len(own))]


def test_groups_that_are_larger_than_a_weight():
    with pytest.raises(ShapeError, match=r"a chunk of 2:4:16 is 6 patterns of 16 blocks, 96 side by side"):
        grouped_mask(torch.ones(8, 64), 2, 4, 16)
    with pytest.raises(ShapeError, match="is for matrices"):
        grouped_mask(torch.ones(8), 2, 4, 1)
    for shape in ((0, 6), (8, 0)):
        with pytest.raises(ShapeError, match="is for matrices with entries"):
            grouped_mask(torch.ones(shape), 2, 4, 1)


def test_constant_keeps_the_zeros_that_are_there():
    weight = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    (mask,) = magnitude_masks([weight], Prune(method="constant"))
    assert mask.tolist() == [[False, True], [True, False]]


def test_gradual_methods_start_dense_and_those_with_regrowth_sparse():
    def zeros(**prune: object) -> int:
        spec = {"end": 100, "every": 10}
        rule = Rule(targets="param:w", prune={"sparsity": 0.75, **prune}, schedule=spec)
        return int((~first_masks([WEIGHT], rule)[0]).sum())

    assert zeros(method="gmp") == zeros(method="movement") == 0
    assert zeros(method="rigl") == zeros(method="set", scope="erk") == 6
