"""Attention patterns against their definitions, pair by pair."""

import numpy
import pytest
import scipy.sparse
import torch

import sparsify
from sparsify import patterns
from sparsify.errors import InvalidTensorError, ShapeError, SparsifyError
from sparsify.sparsification.masks.mask_spec import MaskSpec

SHAPES = [(0, 0), (1, 1), (33, 64), (100, 131)]
# Each pattern with small numbers, and whether query i attends to key j.
KINDS = {
    "window": (
        lambda *shape, **how: patterns.sliding_window(*shape, before=9, after=4, **how),
        lambda i, j: (j - i >= -9) & (j - i <= 4),
    ),
    "longformer": (
        lambda *shape, **how: patterns.longformer(*shape, window=10, global_=2, dilation=3, **how),
        lambda i, j: (((j - i).abs() <= 15) & ((j - i) % 3 == 0)) | (i < 2) | (j < 2),
    ),
    "strided": (
        lambda *shape, causal, **how: patterns.strided(*shape, stride=7, causal=causal, **how),
        lambda i, j: ((j - i).abs() <= 7) | ((i - j) % 7 == 0),
    ),
    "fixed": (
        lambda *shape, causal, **how: patterns.fixed(*shape, stride=7, summary=2, causal=causal, **how),
        lambda i, j: (i // 7 == j // 7) | (j % 7 >= 5),
    ),
    "segments": (
        lambda *shape, **how: patterns.block_diagonal(*shape, size=6, **how),
        lambda i, j: i // 6 == j // 6,
    ),
}


def pairs(shape, keeps, causal=False):
    i, j = torch.arange(shape[0])[:, None], torch.arange(shape[1])[None, :]
    found = keeps(i, j)
    return found & (j <= i) if causal else found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_pairs(kind, block, causal):
    make, keeps = KINDS[kind]
    for shape in SHAPES:
        mask = make(*shape, block=block, causal=causal)
        expected = pairs(shape, keeps, causal)
        assert torch.equal(mask.to_dense(), expected)
        assert mask.nnz <= int(expected.sum()) * block**2  # no block without a pair
        assert torch.equal(patterns.from_tensor(expected, block=block).to_dense(), expected)


def test_causal():
    for shape in SHAPES:
        assert torch.equal(patterns.causal(*shape, block=16).to_dense(), pairs(shape, lambda i, j: j <= i))


@pytest.mark.parametrize(("window", "global_", "random"), [(3, 2, 3), (2, 1, 2), (1, 0, 0), (5, 3, 1)])
def test_bigbird(window, global_, random):
    size, block = 200, 16
    count = -(-size // block)
    mask = patterns.bigbird(size, block=block, window=window, global_=global_, random=random, seed=1)
    kept = mask.to_dense()
    blocks = torch.stack([kept[r * block :, c * block :][0, 0] for r in range(count) for c in range(count)])
    blocks = blocks.view(count, count)
    assert torch.equal(kept, blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)[:size, :size])
    i, j = torch.arange(count)[:, None], torch.arange(count)[None, :]
    sure = (j - i >= -(window // 2)) & (j - i <= (window - 1) // 2)
    first, last = (global_ + 1) // 2, global_ // 2
    sure |= (i < first) | (j < first) | (i >= count - last) | (j >= count - last)
    assert bool(blocks[sure].all())
    drawn = (blocks & ~sure).sum(1)
    assert torch.equal(drawn, (~sure).sum(1).clamp(max=random))


def test_seeds_and_heads():
    same = [patterns.bigbird(256, block=16, seed=3).to_dense() for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], patterns.bigbird(256, block=16, seed=4).to_dense())
    heads = patterns.bigbird(256, block=16, heads=3, seed=3)
    assert tuple(heads.shape) == (3, 256, 256)
    assert torch.equal(heads.to_dense()[0], same[0])
    assert not torch.equal(heads.to_dense()[1], same[0])
    again = patterns.from_tensor(heads.to_dense(), block=16)
    assert again.format == heads.format
    assert torch.equal(again.to_dense(), heads.to_dense())


def test_causal_draws_are_before_the_query():
    mask = patterns.bigbird(512, block=16, random=2, causal=True).to_dense()
    assert not mask.triu(1).any()
    full = patterns.bigbird(512, block=16, random=0, causal=True).to_dense()
    assert mask[256:].sum() == full[256:].sum() + 240 * 2 * 16  # the last block attends to all


@pytest.mark.parametrize("form", ["csr", "coo", "bcsr(4,4)"])
def test_from_sparse(form):
    dense = torch.rand(9, 13) < 0.3
    assert torch.equal(patterns.from_tensor(sparsify.tensor(dense.float(), form), block=4).to_dense(), dense)


def test_files(tmp_path):
    dense = torch.rand(9, 13) < 0.3
    numpy.save(tmp_path / "a.npy", dense.numpy())
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(dense.numpy()))
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.coo_array(dense.float().numpy()))
    torch.save(dense, tmp_path / "a.pt")
    for name in ("a.npy", "a.npz", "a.mtx", "a.pt"):
        assert torch.equal(patterns.from_file(tmp_path / name, 9, 13, block=4).to_dense(), dense)
    with pytest.raises(ShapeError, match=r"holds a mask \[9, 13\], and \[9, 9\] is wanted"):
        patterns.from_file(tmp_path / "a.npy", 9)


def test_files_that_are_none(tmp_path):
    (tmp_path / "a.npy").write_text("no array")
    (tmp_path / "a.txt").write_text("no array")
    numpy.save(tmp_path / "b.npy", numpy.array([object()]), allow_pickle=True)
    torch.save({"a": 1}, tmp_path / "a.pt")
    for name in ("a.npy", "a.txt", "b.npy", "a.pt", "none.npy"):
        with pytest.raises(SparsifyError, match=name):
            patterns.from_file(tmp_path / name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: patterns.bigbird(64, block=0), "block=0; a whole number from 1 to"),
        (lambda: patterns.bigbird(64, seed="x"), "seed=.x.; a whole number from 0 to"),
        (lambda: patterns.bigbird(64, random=-1), "random=-1"),
        (lambda: patterns.bigbird(-1), "rows=-1"),
        (lambda: patterns.bigbird(64, heads=0), "heads=0"),
        (lambda: patterns.fixed(64, stride=4, summary=5), "summary=5"),
        (lambda: patterns.sliding_window(64, before=True), "before=True"),
    ],
)
def test_numbers_that_are_none(make, message):
    with pytest.raises(ShapeError, match=message):
        make()


def test_tokens_that_are_none():
    with pytest.raises(InvalidTensorError, match="the global token 64 is none of 64"):
        patterns.longformer(64, global_=[0, 64])


def test_what_is_no_mask():
    with pytest.raises(InvalidTensorError, match=r"shape \[4\]"):
        patterns.from_tensor(torch.ones(4))


def test_pictures():
    text = patterns.picture(patterns.bigbird(64, block=8, random=0, global_=1), width=8)
    assert text.splitlines()[1:] == [
        "████████", "███.....", "████....", "█.███...", "█..███..", "█...███.", "█....███", "█.....██",
    ]  # fmt: skip
    assert text.startswith("64 x 64, 53 % kept, a character is 8 x 8")
    assert patterns.picture(patterns.bigbird(64, block=16, heads=2)).count("head ") == 2
    assert patterns.picture(patterns.causal(0)).startswith("0 x 0")


def test_specs_remember():
    spec = MaskSpec.of("longformer", {"window": 4, "global_": [0, 2]})
    assert str(spec) == "longformer(global=(0, 2), window=4)"
    assert spec.mask(20, 20) is MaskSpec.of("longformer", {"window": 4, "global_": (0, 2)}).mask(20, 20)
    assert not spec.causal().mask(20, 20).to_dense().triu(1).any()
    assert MaskSpec.of("causal", {}).causal() == MaskSpec.of("causal", {})
