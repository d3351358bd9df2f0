"""Hash levels in storage: tables by linear probing, searched by `locate`, checked against foreign arrays.

A level takes one file of storage and one of lowering, besides its registration and checks:
`test_a_level_is_one_file_of_storage_and_one_of_lowering` lists them.
"""

from pathlib import Path

import pytest
import torch

import sparsify
from sparsify.errors import InvalidTensorError
from sparsify.storage.format import Format
from sparsify.storage.level.hash_table import RANGE, Hash, home
from sparsify.storage.pattern import Pattern

PACKAGE = Path(sparsify.__file__).parent
FORMATS = ("dense, hash", "hash, hash", "j: hash, i: hash(crd=int64)", "hash, compressed", "hash, dense")


def matrix(shape, density=0.3, seed=0):
    random = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=random, dtype=torch.float64) + 0.5
    return torch.where(torch.rand(shape, generator=random) < density, values, 0)


def test_text_reads_back():
    form = Format("dense, hash(crd=int16)")
    assert str(form) == "dense, hash(crd=int16)" and form.letters == "d0h1"
    assert form.levels[1].level == Hash(crd="int16") and not form.levels[1].level.is_ordered


def test_a_table_is_probed_from_the_home():
    vector = sparsify.tensor(torch.tensor([[0.0, 0, 0, 7, 0, 9]]), "dense, hash")
    assert [home(coordinate, 4) for coordinate in (3, 5)] == [3, 0]
    assert vector.pattern.pos[1].tolist() == [0, 4]
    assert vector.pattern.crd[1].tolist() == [5, -1, -1, 3]
    assert vector.values().tolist() == [9, 0, 0, 7]


@pytest.mark.parametrize("coordinates", [[0, 5, 9, 11], [3], [], [7, 7 + 1, 7 + 5, 2]], ids=str)
def test_all_coordinates_in_the_home_of_0(coordinates):
    columns = torch.tensor([[0] * len(coordinates), [RANGE * c for c in coordinates]])
    values = torch.arange(1.0, len(coordinates) + 1)
    stored = sparsify.tensor((columns, values, (1, RANGE * 16)), "dense, hash")
    slots = len(coordinates) * 2
    assert all(home(RANGE * c, slots) == 0 for c in coordinates)
    found = stored.to(format="coo")
    ascending = torch.argsort(columns[1])
    assert stored.pattern.crd[1].dtype == torch.int64
    assert found.pattern.coordinates()[1].tolist() == columns[1][ascending].tolist()
    assert found.values().tolist() == values[ascending].tolist()
    used = [c for c in stored.pattern.crd[1].tolist() if c >= 0]
    assert used == stored.pattern.crd[1].tolist()[: len(coordinates)], (
        "one run of slots from the first slot on"
    )


def test_runs_past_the_end_go_on_in_the_first_slots():
    last = [c for c in range(200) if home(c, 6) == 5][:3]
    dense = torch.zeros(2, 200)
    dense[0, last] = torch.tensor([1.0, 2, 3])
    dense[1, 0] = 4
    stored = sparsify.tensor(dense, "dense, hash")
    assert stored.pattern.crd[1].tolist()[:6] == [last[1], last[2], -1, -1, -1, last[0]]
    assert torch.equal(stored.to_dense(), dense)
    Pattern(stored.format, stored.shape, stored.pattern.pos, stored.pattern.crd).validated()


def test_duplicates_are_summed():
    columns, values = torch.tensor([[0, 0, 1, 0], [2, 2, 0, 2]]), torch.tensor([1.0, 2, 3, 4])
    stored = sparsify.tensor((columns, values, (2, 3)), "dense, hash", duplicates="sum")
    assert stored.to_dense().tolist() == [[0, 0, 7], [3, 0, 0]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (30, 40), (3, 500)], ids=str)
def test_fuzz(form, shape):
    for seed in range(3):
        dense = matrix(shape, seed=seed)
        stored = sparsify.tensor(dense, form)
        assert torch.equal(stored.to_dense(), dense)
        for other in ("csr", "csc", "coo", "dense, bitmap", "dense, ragged", "hash, hash", "ell"):
            there = stored.to(format=other)
            assert torch.equal(there.to_dense(), dense)
            assert torch.equal(there.to(format=form).to_dense(), dense)
        Pattern(stored.format, shape, stored.pattern.pos, stored.pattern.crd).validated()


def test_locate():
    stored = sparsify.tensor(matrix((20, 50)), "dense, hash")
    rows, columns = torch.arange(20).repeat_interleave(50), torch.arange(50).repeat(20)
    found = stored.format.levels[1].level.locate(stored.pattern.level_arrays(1, 20), rows, columns)
    present = stored.to_dense().flatten() != 0
    assert torch.equal(found >= 0, present)
    assert torch.equal(stored.values()[found[present]], stored.to_dense().flatten()[present])


def table(pos, crd, shape=(1, 9)):
    return Pattern(Format("dense, hash"), shape, (None, torch.tensor(pos)), (None, torch.tensor(crd)))


@pytest.mark.parametrize(
    "pattern, message",
    [
        (table([0, 2], [0, 1]), r"the table of level 1 \(j: hash\) below position 0 has no empty slot"),
        (table([0, 4], [0, 0, -1, -1]), "slot 1 .* has the coordinate 0, which a search finds elsewhere"),
        (table([0, 4], [-1, 0, -1, -1]), "slot 1 .* has the coordinate 0, which a search finds elsewhere"),
        (table([0, 4], [0, -1, 9, -1]), "entry 2 of crd .* is 9, outside 0 to 8"),
        (table([0, 4], [0, -2, -1, -1]), "entry 1 of crd .* is -2, outside"),
        (table([0, 3], [0, -1, -1, -1]), "ends with 3, there are 4 coordinates"),
    ],
    ids=str,
)
def test_malformed_tables(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        pattern.validated()


def test_tables_of_any_size_are_valid():
    table([0, 3], [0, -1, -1]).validated()
    table([0, 0, 5], [-1] * 5, shape=(2, 9)).validated()


def test_a_level_is_one_file_of_storage_and_one_of_lowering():
    names = ("level.hash_table", "level import bits, hash_table")
    files = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name in path.read_text(encoding="utf-8") for name in names)
    }
    registration, checks = "storage/level/known_levels.py", "storage/validate.py"
    assert files == {registration, checks, "compiler/loops/lower/levels/hash_table.py"}
