"""Every way in which arrays can be malformed is found and named."""

import pytest
import torch

from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage import validate
from sparsify.storage.format import Format
from sparsify.storage.interop import tensor
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor


def csr(pos, crd, shape=(3, 4), form="csr"):
    """A pattern over lists."""
    return Pattern(
        Format(form), shape, (None, torch.tensor(pos)), (None, torch.tensor(crd, dtype=torch.int64))
    )


def listed(*columns, shape=(3, 4), form="coo"):
    """A coordinate pattern over lists."""
    count = len(columns[0])
    rest = [None] * (len(columns) - 1)
    return Pattern(Format(form), shape, (torch.tensor([0, count]), *rest), [torch.tensor(c) for c in columns])


VALID = (
    csr([0, 2, 2, 3], [0, 3, 1]),
    csr([0, 0, 0, 0], []),
    csr([0], [], shape=(0, 4)),
    csr([0, 2, 2, 3], [3, 0, 1], form="dense, compressed(unordered)"),
    listed([0, 0, 2], [1, 3, 0]),
    listed([2, 0, 0], [1, 3, 0], form="coordinate(unordered), coordinate"),
)


@pytest.mark.parametrize("pattern", VALID, ids=str)
def test_valid(pattern):
    validate.pattern(pattern)


@pytest.mark.parametrize(
    "pattern, message",
    [
        (csr([0, 2, 3], [0, 3, 1]), "pos of level 1 .* has 3 entries; 4"),
        (csr([1, 2, 2, 3], [0, 3, 1]), "starts with 1"),
        (csr([0, 3, 2, 3], [0, 3, 1]), "falls from 3 to 2 at entry 2"),
        (csr([0, 2, 2, 4], [0, 3, 1]), "ends with 4, there are 3 coordinates"),
        (csr([0, 2, 2, 2], [0, 3, 1]), "ends with 2, there are 3 coordinates"),
        (csr([0, 2, 2, 3], [0, 4, 1]), "entry 1 of crd of level 1 .* is 4, outside 0 to 3"),
        (csr([0, 2, 2, 3], [0, 3, -1]), "entry 2 of crd of level 1 .* is -1"),
        (csr([0, 2, 2, 3], [3, 0, 1]), "entry 1 .* is unsorted: 0 after 3"),
        (csr([0, 2, 2, 3], [3, 3, 1]), "entry 1 .* is a duplicate of 3"),
        (csr([0, 0, 0, 3], [1, 2, 2]), "entry 2 .* is a duplicate of 2"),
        (csr([0, 3, 3, 3], [3, 1, 3], form="dense, compressed(unordered)"), "entry 2 .* duplicate of 3"),
        (
            csr([0.0, 2.0, 2.0, 3.0], [0, 3, 1]),
            "pos of level 1 .* is torch.float32; convert it to int32 or int64",
        ),
        (
            csr([0, 2, 2, 3], [0, 3, 1], form="dense, compressed(crd=int16)"),
            "is torch.int64; convert it to int16",
        ),
        (listed([0, 2, 0], [1, 3, 0]), r"entry 2 .* is unsorted: \(0, 0\) after \(2, 3\)"),
        (listed([0, 2, 2], [1, 3, 3]), r"entry 2 .* is a duplicate of \(2, 3\)"),
        (listed([0, 2, 2], [1, 3]), "has 2 entries, the level above has 3"),
        (listed([0, 2, 3], [1, 3, 3]), "entry 2 of crd of level 0 .* is 3"),
        (listed([2, 0, 2], [3, 1, 3], form="coordinate(unordered), coordinate"), r"duplicate of \(2, 3\)"),
        (
            Pattern(Format("csr"), (3, 4), (None, None), (None, torch.tensor([0]))),
            "pos of level 1 .* is missing",
        ),
        (Pattern(Format("dense"), (3,), (torch.tensor([0]),), (None,)), "is dense and has arrays"),
        (csr([0, 2, 2, 3], [[0], [3], [1]]), r"has shape \[3, 1\]"),
    ],
)
def test_malformed(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        validate.pattern(pattern)


def test_rank():
    with pytest.raises(FormatError, match="stores 2 modes"):
        validate.pattern(csr([0, 2, 2, 3], [0, 3, 1], shape=(3, 4, 5)))


def test_values():
    pattern = csr([0, 2, 2, 3], [0, 3, 1])
    with pytest.raises(InvalidTensorError, match=r"values of shape \[2\]"):
        validate.values(pattern, torch.zeros(2))
    with pytest.raises(InvalidTensorError, match=r"values of shape \[3, 1\]"):
        SparseTensor(pattern, torch.zeros(3, 1))


@pytest.mark.parametrize(
    "crow, col, message",
    [
        ([0, 2, 3], [0, 9], "values|ends with"),
        ([0, 5, 2], [0, 1], "falls from 5 to 2"),
        ([0, 1, 2], [0, 10**9], "is 1000000000, outside 0 to 3"),
        ([0, 2, 2], [1, 0], "unsorted"),
    ],
)
def test_malformed_torch_csr_is_refused(crow, col, message):
    arrays = (torch.tensor(crow), torch.tensor(col), torch.ones(2))
    data = torch.sparse_csr_tensor(*arrays, size=(2, 4), check_invariants=False)
    with pytest.raises(InvalidTensorError, match=message):
        tensor(data)


def test_malformed_torch_coo_is_refused():
    indices = torch.tensor([[0, 10**9], [0, 1]])
    data = torch.sparse_coo_tensor(indices, torch.ones(2), (2, 4), check_invariants=False)
    with pytest.raises(InvalidTensorError, match=r"entry 1 .*outside the shape \(2, 4\)"):
        tensor(data)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_is_found_or_harmless(seed):
    """Arrays with a random entry overwritten are refused, or still a tensor that every format can hold."""
    random = torch.Generator().manual_seed(seed)
    dense = torch.rand(6, 7, generator=random)
    dense[dense < 0.5] = 0
    for form in ("csr", "coo", "dcsr", "bcsr(2, 3)"):
        good = tensor(dense, form).pattern
        pos = [None if a is None else a.clone() for a in good.pos]
        crd = [None if a is None else a.clone() for a in good.crd]
        arrays = [a for a in (*pos, *crd) if a is not None and a.numel()]
        chosen = arrays[int(torch.randint(len(arrays), (), generator=random))]
        place = int(torch.randint(chosen.numel(), (), generator=random))
        chosen[place] = int(torch.randint(-2, 40, (), generator=random))
        damaged = Pattern(good.format, good.shape, pos, crd)
        try:
            validate.pattern(damaged)
        except InvalidTensorError:
            continue
        coordinates = damaged.coordinates()
        assert int(coordinates.min()) >= 0
        assert coordinates.unique(dim=1).shape == coordinates.shape
