"""Every way in which arrays can be malformed is found and named."""

import pytest
import torch

from sparsify.api import einsum
from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage import validate
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap


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


def ragged(pos, shape=(3, 4), **options):
    """A pattern of rows of different lengths."""
    return Pattern(Format("dense, ragged"), shape, (None, torch.tensor(pos, **options)), (None, None))


VALID = (
    csr([0, 2, 2, 3], [0, 3, 1]),
    csr([0, 0, 0, 0], []),
    csr([0], [], shape=(0, 4)),
    csr([0, 2, 2, 3], [3, 0, 1], form="dense, compressed(unordered)"),
    listed([0, 0, 2], [1, 3, 0]),
    listed([2, 0, 0], [1, 3, 0], form="coordinate(unordered), coordinate"),
    ragged([0, 2, 2, 6]),
    ragged([0], shape=(0, 4)),
    Pattern(Format("bitmap"), (9,), [torch.tensor([0, 2])], [torch.tensor([1, 1], dtype=torch.int8)]),
)


@pytest.mark.parametrize("pattern", VALID, ids=str)
def test_valid(pattern):
    validate.pattern(pattern)


def bitmap(pos, words, dtype=torch.int8):
    """A pattern [2, 9] over positions and bytes, two for each row."""
    crd = torch.tensor(words, dtype=dtype)
    return Pattern(Format("dense, bitmap"), (2, 9), (None, torch.tensor(pos)), (None, crd))


@pytest.mark.parametrize(
    "pattern, message",
    [
        (bitmap([0, 2, 3], [3, 0, 0]), "crd of level 1 .* has 3 bytes; 4, one bit a coordinate"),
        (bitmap([0, 2, 3], [3, 0, 0, 2]), "bits past its 9 coordinates below position 1"),
        (bitmap([0, 1, 3], [3, 0, 0, 1]), "2 bits of level 1 .* are set below position 0; as many"),
        (bitmap([0, 2, 4], [3, 0, 0, 1]), "ends with 4, there are 3 coordinates"),
        (bitmap([0, 2, 3], [3, 0, 0, 1], torch.int32), "is torch.int32; convert it to int8"),
    ],
    ids=str,
)
def test_malformed_bits(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        pattern.validated()


def slices(pos, crd):
    """A pattern [4, 5] over slices of two rows."""
    arrays = torch.tensor(pos), torch.tensor(crd)
    return Pattern(Format("i/2: dense, i%2: dense, j: sliced(2)"), (4, 5), *((None, None, a) for a in arrays))


@pytest.mark.parametrize(
    "pattern, message",
    [
        (slices([0, 1], [0, 1]), "pos of level 2 .* has 2 entries; 3"),
        (slices([0, 1, 1], [0, 1, 2]), "crd of level 2 .* has 3 entries; a multiple of 2"),
        (slices([0, 1, 1], [0, 1, 2, 3]), "ends with 1, there are 2 coordinates"),
        (slices([0, 0, 2], [0, 1, 2, 1]), "entry 3 of level 2 .* is 1 after 1; ascending"),
        (slices([0, 1, 2], [0, 5, 2, 1]), "entry 1 of crd of level 2 .* is 5, outside 0 to 4"),
    ],
    ids=str,
)
def test_malformed_slices(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        pattern.validated()


@pytest.mark.parametrize(
    "pattern, message",
    [
        (ragged([0, 5, 5, 6]), r"level 1 \(j: ragged\) has 5 positions below one parent; at most 4"),
        (ragged([0, 2, 1, 3]), "falls from 2 to 1 at entry 2"),
        (ragged([1, 2, 3, 3]), "starts with 1"),
        (ragged([0, 2, 3]), "has 3 entries; 4, one more than positions above"),
        (ragged([]), "is torch.float32"),
        (ragged([0.0, 1, 2, 3]), "is torch.float32"),
        (ragged([0, 2**40, 2**41, 2**42]), "positions below one parent; at most 4"),
        (
            Pattern(Format("dense, ragged"), (3, 4), (None, None), (None, None)),
            "pos of level 1 .* is missing",
        ),
    ],
    ids=str,
)
def test_malformed_rows_of_different_lengths(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        validate.pattern(pattern)


def test_slices_may_begin_lower_than_the_one_before_ends():
    slices([0, 1, 2], [4, 3, 0, 1]).validated()


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
    ],
)
def test_malformed(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        validate.pattern(pattern)


@pytest.mark.parametrize(
    "pos, crd, shape, message",
    [
        ([0, 2, 2, 3], [0, 3, 1], (3, 4, 5), "stores 2 modes"),
        ([0, 2, 2, 3], [[0], [3], [1]], (3, 4), r"crd of level 1 .* has shape \[3, 1\]"),
        ([0, 2, 2, 3], 5, (3, 4), r"crd of level 1 .* has shape \[\]"),
        ([0, 2, 2, 3], [0, 3, 1], (3, "a"), "has 'a' in mode 1"),
        ([0, 2, 2, 3], [0, 3, 1], (3, -1), "has -1 in mode 1"),
        ([0, 2, 2, 3], [0, 3, 1], None, "the shape None"),
    ],
)
def test_structure(pos, crd, shape, message):
    with pytest.raises((FormatError, InvalidTensorError), match=message):
        csr(pos, crd, shape=shape)


@pytest.mark.parametrize(
    "format, pos, crd, message",
    [
        ("csr", (None, torch.tensor([0, 1])), (None, torch.tensor([0])), "of the format 'csr'"),
        (
            Format("csr"),
            (torch.tensor([0, 1]),),
            (None, torch.tensor([0])),
            "pos arrays for dense, compressed: 1",
        ),
        (Format("csr"), (None, [0, 1]), (None, torch.tensor([0])), "pos of level 1 .* is a list"),
        (Format("csr"), (None, torch.tensor([0, 1])), (None, None), "crd of level 1 .* is missing"),
        (Format("csr"), (None, torch.tensor([0, 1])), None, "crd arrays for dense, compressed: NoneType"),
    ],
    ids=range(5),
)
def test_levels(format, pos, crd, message):
    with pytest.raises((FormatError, InvalidTensorError), match=message):
        Pattern(format, (1, 2), pos, crd)


@pytest.mark.parametrize(
    "pos, crd, message",
    [
        ([0, 2, 2, 3], [0, 10**9, 1], "is 1000000000, outside 0 to 3"),
        ([0, 10**9, 2, 3], [0, 1, 2], "falls from 1000000000"),
        ([0, 3], [0, 1, 2], "has 2 entries; 4"),
    ],
)
def test_no_tensor_of_a_malformed_pattern(pos, crd, message):
    pattern = csr(pos, crd)
    for use in (lambda: SparseTensor(pattern, torch.ones(3)), pattern.coordinates):
        with pytest.raises(InvalidTensorError, match=message):
            use()
    with pytest.raises(InvalidTensorError, match=message):  # what wraps without a look is seen by the kernel
        einsum("ij,jk->ik", wrap(pattern, torch.ones(3)), torch.ones(4, 2))


def test_private_arrays_written_to_after_their_pattern_was_made():
    pattern = csr([0, 2, 2, 3], [0, 3, 1])
    stored, x = SparseTensor(pattern, torch.ones(3)), torch.ones(4, 2)
    einsum("ij,jk->ik", stored, x)
    pattern._crd[1][1] = 10**9
    for use in (lambda: einsum("ij,jk->ik", stored, x), stored.to_dense, lambda: stored.T.to_dense()):
        with pytest.raises(InvalidTensorError, match="was written to after the pattern was made"):
            use()


def test_arrays_that_are_changed_make_another_pattern():
    stored = tensor(torch.eye(3))
    rebuild, arguments = stored.__reduce_ex__(2)
    assert rebuild(*arguments).pattern is rebuild(*arguments).pattern
    arguments[3][1][2] = 1
    assert rebuild(*arguments).coordinates().tolist() == [[0, 1, 2], [0, 1, 1]]
    crow, col = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    csr_ = torch.sparse_csr_tensor(crow, col, torch.ones(2), (2, 2), check_invariants=True)
    first = tensor(csr_)
    assert first.coordinates().tolist() == [[0, 1], [0, 1]]
    col[1] = 0
    assert tensor(csr_).coordinates().tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    "values, fill, message",
    [
        ([1.0, 2.0, 3.0], 0, "values of type list"),
        (torch.ones(3, dtype=torch.uint8), 0, "values of torch.uint8"),
        (torch.ones(3).to_sparse(), 0, "layout torch.sparse_coo"),
        (torch.ones(4), 0, "one dense dimension of 3"),
        (torch.ones(3), "a", "the fill 'a' of type str"),
        (torch.ones(3), None, "the fill None"),
        (torch.ones(3), 1j, "the fill 1j of a tensor of torch.float32"),
        (torch.ones(3, dtype=torch.int32), 0.5, "the fill 0.5"),
        (torch.ones(3, dtype=torch.int32), float("inf"), "the fill inf"),
        (torch.ones(3, dtype=torch.int32), float("nan"), "the fill nan"),
        (torch.ones(3, dtype=torch.int8), 300, "the fill 300"),
        (torch.ones(3, dtype=torch.bool), 2, "the fill 2"),
        (torch.ones(3, dtype=torch.float16), 1e6, "the fill 1000000.0"),
        (torch.ones(3, dtype=torch.float64), 10**400, "the fill, an integer of 1329 bits"),
        (torch.ones(3, dtype=torch.complex64), 1e39j, "the fill 1e[+]39j"),
    ],
    ids=range(15),
)
def test_values_and_fill_that_do_not_fit(values, fill, message):
    with pytest.raises(InvalidTensorError, match=message):
        SparseTensor(csr([0, 2, 2, 3], [0, 3, 1]), values, fill)


def test_no_tensor_without_a_pattern():
    with pytest.raises(InvalidTensorError, match="a NoneType for a pattern"):
        SparseTensor(None, torch.ones(3))


@pytest.mark.parametrize(
    "form", ["dense, compressed(crd=int16)", "coordinate(unordered), coordinate(crd=int16)"]
)
def test_coordinates_that_do_not_fit_their_dtype(form):
    with pytest.raises(FormatError, match=r"70000 in crd of the level .* of int16"):
        tensor(([[0], [70000]], torch.ones(1), (2, 80000)), form)


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


def test_without_memory_there_are_no_entries():
    """What is on meta has a shape and no numbers, dense too."""
    stored = SparseTensor(csr([0, 2, 2, 3], [0, 3, 1]), torch.ones(3))
    made = stored.to("meta").to_dense()
    assert made.is_meta and made.shape == stored.shape
