"""Formats of constant matrices."""

import pytest
import torch

import sparsify
from sparsify.compiler.schedule.cost.machine import Machine, scaled
from sparsify.compiler.schedule.cost.weight_format import (
    COMPACT,
    SLICES,
    Packing,
    pack_matrix,
    pack_tensor,
    slots_of,
)
from sparsify.storage.format import Format


def packed(density: float, rows: int, *, height: int = 1, outputs: int = 768, columns: int = 768) -> Packing:
    seeded = torch.Generator().manual_seed(0)
    mask = torch.rand(outputs // height, columns, generator=seeded) < density
    return pack_matrix(mask.repeat_interleave(height, 0), rows, 4, Machine())[0]


@pytest.mark.parametrize(
    ("density", "rows", "text"),
    [
        (0.5, 128, "j/96: dense, i: dense, j%96: compressed(crd=int8)"),
        (0.5, 16, "j/384: dense, i: dense, j%384: compressed(crd=int16)"),
        (0.02, 128, "dense, compressed(crd=int16)"),
        (0.1, 1, "dense, compressed(crd=int16)"),
        (0.5, 1, "i: dense, j/64: dense, j%64: bitmap"),
    ],
)
def test_panels_stay_in_the_nearest_cache(density, rows, text):
    assert str(packed(density, rows).format) == text


@pytest.mark.parametrize(("density", "rows", "is_sliced"), [(0.1, 1, True), (0.5, 2, True), (0.1, 16, False)])
def test_wide_vectors_look_few_rows_up(density, rows, is_sliced):
    mask = torch.rand(770, 750, generator=torch.Generator().manual_seed(0)) < density
    machine = scaled(1, 64)
    found = pack_matrix(mask, rows, 4, machine)
    assert ("sliced" in str(found[0].format)) == is_sliced
    compact = pack_matrix(mask, rows, 4, machine, compact=True)[0]
    assert compact.bytes <= COMPACT * 6 * int(mask.sum())
    sliced = next(one for one in found if one.format == SLICES)
    stored = sparsify.tensor(mask.float(), SLICES)
    assert stored.pattern.nnz == sliced.stored
    assert sliced.bytes == sum(a.nbytes for a in (stored.values(), *stored.pattern.arrays()))


@pytest.mark.parametrize("shape", [(0, 64), (16, 0), (1, 1)])
def test_small_matrices_have_slots_too(shape):
    mask = torch.ones(shape, dtype=torch.bool)
    assert slots_of(mask)[0] * 16 == sparsify.tensor(mask.float(), SLICES).pattern.nnz


def zeros(name: str, outputs: int, columns: int) -> torch.Tensor:
    """Random weight by density, with `2:4` in each row, or with one in five columns of four rows."""
    seeded = torch.Generator().manual_seed(0)
    if name == "2:4":
        chosen = torch.rand(outputs, columns // 4, 4, generator=seeded).topk(2, dim=2).indices
        return torch.zeros(outputs, columns // 4, 4, dtype=torch.bool).scatter(2, chosen, True).flatten(1)
    height, density = (4, 0.2) if name == "4x1" else (1, float(name))
    return (torch.rand(outputs // height, columns, generator=seeded) < density).repeat_interleave(height, 0)


@pytest.mark.parametrize("name", ["0.5", "0.1", "0.02", "2:4", "4x1"])
@pytest.mark.parametrize("rows", [1, 16, 1024])
def test_compact_is_little_more_than_values_and_short_coordinates(name, rows):
    for outputs, columns in ((768, 768), (256, 256), (768, 3072)):
        mask = zeros(name, outputs, columns)
        fast, compact = (
            pack_matrix(mask, rows, 4, Machine(), compact=compact)[0] for compact in (False, True)
        )
        assert compact.bytes <= COMPACT * 6 * int(mask.sum())
        assert compact.us >= fast.us
        assert fast.is_smaller
        if name == "4x1":
            assert compact.bytes <= COMPACT * 18 * compact.stored / 4


def test_compact_is_the_smallest_where_lists_are_short():
    mask = torch.eye(256, dtype=torch.bool)
    fast, compact = (pack_matrix(mask, 128, 4, Machine(), compact=compact)[0] for compact in (False, True))
    assert str(compact.format) == "dense, compressed(crd=int16)"
    assert compact.bytes <= fast.bytes


@pytest.mark.parametrize("height", [4, 8, 16, 32])
def test_rows_with_the_same_columns_are_blocks(height):
    found = packed(0.3, 128, height=height)
    assert str(found.format).endswith("i%4: dense")
    assert found.stored * 4.5 < found.bytes < found.stored * 4.6


def test_bytes_are_values_and_short_coordinates():
    found = packed(0.1, 128)
    assert found.stored * 6 < found.bytes < found.stored * 6 * 1.15


@pytest.mark.parametrize(
    ("density", "rows", "is_faster"), [(1.0, 128, False), (0.5, 128, True), (0.5, 1, False), (0.1, 1, True)]
)
def test_what_is_faster_than_dense(density, rows, is_faster):
    found = packed(density, rows)
    assert (found.us < found.dense_us) == is_faster


def test_outputs_that_no_block_divides():
    assert "i%" not in str(packed(0.3, 128, outputs=767).format)


@pytest.mark.parametrize(("rows", "item_bytes", "vector_bytes"), [(2, 4, 32), (1, 8, 32), (1, 4, 16)])
def test_bits_are_for_one_row_in_lanes_that_an_instruction_fills(rows, item_bytes, vector_bytes):
    machine = Machine(vector_bytes=vector_bytes)
    found = pack_matrix(zeros("0.5", 768, 768), rows, item_bytes, machine)
    assert not any(one.format.has_bits for one in found)


def test_bytes_of_bits():
    found = packed(0.5, 1, columns=100)
    assert found.format.has_bits
    assert found.bytes == 4 * found.stored + 768 * 2 * (8 + 4) + 4


@pytest.mark.parametrize(("columns", "stored"), [(96, 192), (97, 196)])
def test_pairs_are_offered_where_an_instruction_multiplies_them(columns, stored):
    mask = torch.zeros(8, columns, dtype=torch.bool)
    mask[:4, ::2] = True
    found = {
        str(one.format): one for one in pack_matrix(mask, 64, 2, Machine(vector_bytes=64), has_pairs=True)
    }
    pairs = found["i: dense, j/2: compressed(crd=int8), j%2: dense"]
    assert pairs.stored == 2 * stored
    assert pairs.bytes == stored * (2 * 2 + 1) + 4 * 9
    assert pairs.entries == 8 * columns and pairs.is_smaller
    blocks = found["i/4: dense, j/2: compressed(crd=int8), i%4: dense, j%2: dense"]
    assert blocks.stored == 2 * stored and blocks.bytes < pairs.bytes
    others = {str(one.format) for one in pack_matrix(mask, 64, 2, Machine(vector_bytes=64))}
    assert found.keys() - others == {str(pairs.format), str(blocks.format)}


def test_a_pair_costs_a_number_of_32_bits():
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(768, 768, generator=generator) < 0.2
    found = pack_matrix(mask, 128, 2, Machine(vector_bytes=64), has_pairs=True)
    single = next(one for one in found if str(one.format) == "dense, compressed(crd=int16)")
    pairs = next(
        one for one in found if str(one.format) == "i: dense, j/2: compressed(crd=int16), j%2: dense"
    )
    # Of half as many pairs as numbers, 36 % hold an entry: 0.9 times as many vectors are multiplied.
    assert pairs.stored == pytest.approx(2 * 0.18 * mask.numel(), rel=0.02)
    assert 0.5 < pairs.us / single.us < 1


def test_wide_matrices_have_wide_coordinates_only_without_panels():
    mask = torch.zeros(8, 40_000, dtype=torch.bool)
    mask[:, ::5000] = True
    text = str(pack_matrix(mask[:7], 1, 4, Machine())[0].format)
    assert "int16" in text or text == "dense, compressed"


@pytest.mark.parametrize(
    ("subscripts", "place", "expected"),
    [
        ("bmk,bkn->bmn", 1, "i: dense, k: dense, j: compressed(crd=int8)"),
        ("bmk,bnk->bmn", 1, "i: dense, j: dense, k: compressed(crd=int8)"),
        ("bti,hoi->bhto", 1, "i: dense, j: dense, k: compressed(crd=int8)"),
        ("oij,bi,bj->bo", 0, "i: dense, j: dense, k: compressed(crd=int8)"),
        ("oij,bo,bj->bi", 0, "j: dense, i: dense, k: compressed(crd=int8)"),
    ],
)
def test_tensors_have_sums_inside(subscripts, place, expected):
    mask = torch.rand(6, 7, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    assert pack_tensor(subscripts, place, mask) == Format(expected)


def test_levels_of_which_little_is_stored_are_compressed():
    mask = torch.zeros(100, 200, 300, dtype=torch.bool)
    mask[::3, 5, ::7] = True
    found = pack_tensor("oij,bi,bj->bo", 0, mask)
    assert found == Format("i: dense, j: compressed(crd=int16), k: compressed(crd=int16)")
    assert pack_tensor("bmk,bkn->bmn", 1, torch.zeros(0, 3, 4, dtype=torch.bool)).rank == 3
