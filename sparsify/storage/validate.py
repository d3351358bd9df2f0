"""Validation of the arrays of a tensor, before a kernel reads them.

In: a pattern over foreign arrays. Out: nothing, or `InvalidTensorError` naming the first offending entry.
"""

from collections.abc import Sequence
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage import convert
from sparsify.storage.fill import Fill
from sparsify.storage.level import bits, hash_table, slices
from sparsify.storage.parts import require_readable
from sparsify.storage.pattern import Pattern

COORDINATE_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
POSITION_DTYPES = (torch.int32, torch.int64)
MOST_ENTRIES = 2**63 - 1
# Symbolic numbers of a traced graph.
TRACED = (torch.SymFloat, torch.SymInt, torch.SymBool)
VALUE_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)


def pattern(pattern: Pattern) -> None:
    """Checks the arrays of a pattern against its format.

    Raises:
        InvalidTensorError: wrong dtypes, lengths, positions, coordinates out of range, unsorted or twice.
        FormatError: a format without storage, or of another rank.
    """
    format = pattern.format
    if format.rank != pattern.rank:
        raise FormatError(
            f"{format} stores {format.rank} modes, the shape is {list(pattern.shape)}", "another format"
        )
    parents, number = 1, 0
    while number < len(format.levels):
        stored = format.levels[number]
        if parents:
            stored.level.check(stored.expression.extent(pattern.shape))
        _check_arrays(pattern, number)
        if stored.level.has_bits:
            parents = _check_bits(pattern, number, parents)
            number += 1
        elif stored.level.has_empty_slots:
            parents = _check_slots(pattern, number, parents)
            number += 1
        elif stored.level.stride > 1:
            parents = _check_slices(pattern, number, parents)
            number += 1
        elif "crd" in stored.level.arrays:
            run = _run(pattern, number)
            parents = _check_run(pattern, number, run, parents)
            number += run
        else:
            if stored.level.arrays:
                pos = _array(pattern, number, "pos", pattern._pos[number], POSITION_DTYPES)
                _positions_of(pattern, number, parents, int(pos[-1]) if len(pos) else 0)
            if not stored.level.is_full:
                _check_rule(pattern, number, parents)
            parents = pattern.positions(number + 1)
            number += 1


def values(pattern: Pattern, values: Tensor) -> None:
    """Checks that values fit a pattern: a dense tensor with one value per entry, of a supported dtype."""
    if not isinstance(pattern, Pattern):
        raise InvalidTensorError(
            f"a {type(pattern).__name__} for a pattern", "sparsify.Pattern(format, shape, pos, crd)"
        )
    if not isinstance(values, Tensor):
        raise InvalidTensorError(f"values of type {type(values).__name__}", "a torch tensor")
    require_readable(values, "values")
    value_dtype(values.dtype)
    countable(pattern.shape)
    if values.layout != torch.strided or values.dim() != 1 or values.shape[0] != pattern.nnz:
        layout = "" if values.layout == torch.strided else f" and layout {values.layout}"
        raise InvalidTensorError(
            f"values of shape {list(values.shape)}{layout} for {pattern}",
            f"one dense dimension of {pattern.nnz}",
        )


def fill(fill: Fill, dtype: torch.dtype) -> Fill:
    """A fill as a Python number representable in a dtype.

    Raises:
        InvalidTensorError: no number, or a number outside the dtype.
    """
    if isinstance(fill, TRACED):
        return fill
    if isinstance(fill, Tensor | np.generic) and fill.ndim == 0:
        fill = fill.item()
    if not isinstance(fill, bool | int | float | complex):
        raise InvalidTensorError(f"the fill {fill!r} of type {type(fill).__name__}", "a number")
    if fill == 0:
        return fill
    if isinstance(fill, int) and not isinstance(fill, bool) and not -(2**63) <= fill < 2**63:
        raise InvalidTensorError(
            f"the fill, an integer of {fill.bit_length()} bits", "a fill that the dtype can hold"
        )
    if dtype.is_complex or (dtype.is_floating_point and not isinstance(fill, complex)):
        largest = max(abs(fill.real), abs(fill.imag))
        if largest == inf or not largest > torch.finfo(dtype).max:
            return fill
    if not isinstance(fill, complex) and not dtype.is_floating_point:
        low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        if low <= fill <= high and fill == int(fill):
            return fill
    raise InvalidTensorError(
        f"the fill {fill} of a tensor of {dtype}", "a fill that the dtype can hold, or another dtype"
    )


def countable(shape: Sequence[int]) -> None:
    """Checks that torch can count the entries of a shape."""
    if prod(shape) > MOST_ENTRIES:
        raise InvalidTensorError(
            f"the shape {tuple(shape)} has more entries than torch can count", "fewer than 2**63"
        )


def value_dtype(dtype: torch.dtype) -> None:
    """Checks for a supported dtype of values."""
    if dtype not in VALUE_DTYPES:
        listed = ", ".join(str(d).removeprefix("torch.") for d in VALUE_DTYPES)
        raise InvalidTensorError(f"values of {dtype}", f"convert them to one of {listed}")


def coordinates(coordinates: Sequence[Tensor], shape: Sequence[int]) -> None:
    """Checks that entries are inside the shape."""
    for mode, (column, extent) in enumerate(zip(coordinates, shape, strict=True)):
        if column.shape[0] == 0:
            continue
        low, high = torch.aminmax(column)
        if int(low) >= 0 and int(high) < extent:
            continue
        entry = int(((column < 0) | (column >= extent)).nonzero()[0])
        coordinate_tuple = tuple(int(c[entry]) for c in coordinates)
        raise InvalidTensorError(
            f"entry {entry} has the coordinates {coordinate_tuple}, outside the shape {tuple(shape)} in mode {mode}",
            f"coordinates from 0 to {extent - 1}" if extent else "no entries, as the mode has no extent",
        )


def _check_arrays(pattern: Pattern, number: int) -> None:
    """Checks that a level has exactly the arrays of its format."""
    level = pattern.format.levels[number].level
    for role, array in (("pos", pattern._pos[number]), ("crd", pattern._crd[number])):
        if array is not None and role not in level.arrays:
            raise InvalidTensorError(
                f"level {number} of {pattern.format} is {level.name} and has arrays: {role}",
                "None for both" if not level.arrays else f"None for {role}",
            )


def _run(pattern: Pattern, number: int) -> int:
    """The number of levels stored together: a level and the branchless ones below."""
    end = number + 1
    while end < len(pattern.format.levels) and pattern.format.levels[end].level.is_branchless:
        end += 1
    return end - number


def _check_run(pattern: Pattern, number: int, run: int, parents: int) -> int:
    """Checks a level that lists coordinates, with the branchless levels below; the number of its positions."""
    level = pattern.format.levels[number].level
    arrays = [_coordinates_of(pattern, n) for n in range(number, number + run)]
    count = arrays[0].shape[0]
    if "pos" in level.arrays:
        begins = _positions_of(pattern, number, parents, count)
    else:
        begins = _computed_positions(pattern, number, parents, count)
    for offset, crd in enumerate(arrays):
        if crd.shape[0] != count:
            raise InvalidTensorError(
                f"crd of level {number + offset} has {crd.shape[0]} entries, the level above has {count}",
                "as many",
            )
        _check_range(pattern, number + offset, crd)
    if count > 1:
        _check_order(pattern, number, begins, arrays, level.is_ordered)
    return count


def _check_bits(pattern: Pattern, number: int, parents: int) -> int:
    """Checks a level of bits: a set bit per position below each parent, none past the extent; returns the positions."""
    stored, words = pattern.format.levels[number], _coordinates_of(pattern, number)
    extent = stored.expression.extent(pattern.shape)
    expected = parents * bits.row_bytes(extent)
    if words.shape[0] != expected:
        raise InvalidTensorError(
            f"crd of level {number} ({stored}) has {words.shape[0]} bytes",
            f"{expected}, one bit a coordinate",
        )
    is_set = bits.unpacked(words, parents, extent)
    if bool(is_set[:, extent:].any()):
        parent = int(is_set[:, extent:].any(1).nonzero()[0])
        raise InvalidTensorError(
            f"crd of level {number} ({stored}) has bits past its {extent} coordinates below position {parent}",
            "zeros in what is left of the last byte",
        )
    counts = is_set.sum(1)
    count = int(counts.sum())
    wrong = _positions_of(pattern, number, parents, count).diff() != counts
    if bool(wrong.any()):
        parent = int(wrong.nonzero()[0])
        raise InvalidTensorError(
            f"{int(counts[parent])} bits of level {number} ({stored}) are set below position {parent}",
            "as many as pos has entries there",
        )
    return count


def _check_slots(pattern: Pattern, number: int, parents: int) -> int:
    """Checks a level of hash tables: coordinates in their slots, -1 in empty ones; the number of positions."""
    crd = _coordinates_of(pattern, number)
    pos = _positions_of(pattern, number, parents, crd.shape[0])
    _check_range(pattern, number, torch.where(crd == hash_table.EMPTY, 0, crd))
    name = f"level {number} ({pattern.format.levels[number]})"
    hash_table.check(name, pattern.level_arrays(number, parents), pos.long(), crd)
    return crd.shape[0]


def _check_slices(pattern: Pattern, number: int, parents: int) -> int:
    """Checks a level of slices: coordinates ascend below each interleaved parent; the number of positions."""
    stored, crd = pattern.format.levels[number], _coordinates_of(pattern, number)
    stride, count = stored.level.stride, crd.shape[0]
    if count % stride:
        raise InvalidTensorError(
            f"crd of level {number} ({stored}) has {count} entries",
            f"a multiple of {stride}, as many below each parent of a slice",
        )
    pos = _positions_of(pattern, number, parents // stride, count // stride)
    _check_range(pattern, number, crd)
    slots = crd.view(-1, stride)
    bad = slots[1:] <= slots[:-1]
    starts = pos[(pos > 0) & (pos < slots.shape[0])].long()
    bad[starts - 1] = False
    if bool(bad.any()):
        slot, parent = (int(coordinate) for coordinate in bad.nonzero()[0])
        before, after = int(slots[slot, parent]), int(slots[slot + 1, parent])
        raise InvalidTensorError(
            f"entry {(slot + 1) * stride + parent} of level {number} ({stored}) is {after} after {before}",
            "ascending coordinates below each parent",
        )
    return count


def _check_rule(pattern: Pattern, number: int, parents: int) -> None:
    """Checks a level with computed coordinates: within the extent, ascending below each parent."""
    stored, at = pattern.format.levels[number], pattern.level_arrays(number, parents)
    begins = stored.level.begin(at, torch.arange(parents + 1))
    most = int(begins.diff().max()) if parents else 0
    if most > at.extent:
        raise InvalidTensorError(
            f"level {number} ({stored}) has {most} positions below one parent",
            f"at most {at.extent}, one a coordinate",
        )
    above = torch.repeat_interleave(begins.diff())
    computed = stored.level.coordinate(at, above, torch.arange(int(begins[-1])))
    wrong = (computed < 0) | (computed >= at.extent)
    wrong[1:] |= (computed[1:] <= computed[:-1]) & (above[1:] == above[:-1])
    if bool(wrong.any()):
        entry = int(wrong.nonzero()[0])
        raise InvalidTensorError(
            f"position {entry} of level {number} ({stored}) has the coordinate {int(computed[entry])} by its rule",
            f"ascending coordinates from 0 to {at.extent - 1}",
        )


def _computed_positions(pattern: Pattern, number: int, parents: int, count: int) -> Tensor:
    """The starts of the segments of a level without a `pos` array; the coordinates must fill the segments exactly."""
    stored = pattern.format.levels[number]
    begins: Tensor = stored.level.begin(pattern.level_arrays(number, parents), torch.arange(parents + 1))
    if int(begins[-1]) != count:
        raise InvalidTensorError(
            f"crd of level {number} ({stored}) has {count} entries below {parents} positions",
            f"{int(begins[-1])}, the same number below each",
        )
    return begins


def _coordinates_of(pattern: Pattern, number: int) -> Tensor:
    """The `crd` array of a level, of the right kind."""
    return _array(pattern, number, "crd", pattern._crd[number], COORDINATE_DTYPES)


def _array(
    pattern: Pattern, number: int, role: str, array: Tensor | None, allowed: Sequence[torch.dtype]
) -> Tensor:
    """An index array, checked: present, one-dimensional, contiguous, on the CPU and of the right dtype."""
    stored = pattern.format.levels[number]
    name = f"{role} of level {number} ({stored})"
    if array is None:
        raise InvalidTensorError(f"{name} is missing", f"an array of integers for {role}")
    fixed = getattr(stored.level, role, None)
    dtypes = (convert.DTYPES[fixed],) if fixed else allowed
    if array.dtype not in dtypes:
        listed = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise InvalidTensorError(f"{name} is {array.dtype}", f"convert it to {listed}")
    if array.dim() != 1 or not array.is_contiguous():
        raise InvalidTensorError(f"{name} has shape {list(array.shape)}", "one contiguous dimension")
    if array.device.type != "cpu":
        raise InvalidTensorError(f"{name} is on {array.device}", "the CPU")
    return array


def _positions_of(pattern: Pattern, number: int, parents: int, count: int) -> Tensor:
    """The `pos` array of a level, checked: starts at 0, never falls and ends at the number of coordinates."""
    pos = _array(pattern, number, "pos", pattern._pos[number], POSITION_DTYPES)
    name = f"pos of level {number} ({pattern.format.levels[number]})"
    if pos.shape[0] != parents + 1:
        raise InvalidTensorError(
            f"{name} has {pos.shape[0]} entries", f"{parents + 1}, one more than positions above"
        )
    if int(pos[0]) != 0:
        raise InvalidTensorError(f"{name} starts with {int(pos[0])}", "0 as its first entry")
    falls = pos[1:] < pos[:-1]
    if bool(falls.any()):
        entry = int(falls.nonzero()[0]) + 1
        raise InvalidTensorError(
            f"{name} falls from {int(pos[entry - 1])} to {int(pos[entry])} at entry {entry}",
            "positions that never fall",
        )
    if int(pos[-1]) != count:
        raise InvalidTensorError(
            f"{name} ends with {int(pos[-1])}, there are {count} coordinates", f"{count} at the end"
        )
    return pos


def _check_range(pattern: Pattern, number: int, crd: Tensor) -> None:
    """Checks that coordinates are within the extent of the level."""
    if crd.shape[0] == 0:
        return
    stored = pattern.format.levels[number]
    extent = stored.expression.extent(pattern.shape)
    low, high = torch.aminmax(crd)
    if int(low) >= 0 and int(high) < extent:
        return
    entry = int(((crd < 0) | (crd >= extent)).nonzero()[0])
    raise InvalidTensorError(
        f"entry {entry} of crd of level {number} ({stored}) is {int(crd[entry])}, outside 0 to {extent - 1}",
        "coordinates inside the shape",
    )


def _check_order(pattern: Pattern, number: int, pos: Tensor, arrays: Sequence[Tensor], ordered: bool) -> None:
    """Checks that, below each parent, coordinates ascend (if ordered) and none occurs twice."""
    extents = [
        s.expression.extent(pattern.shape) for s in pattern.format.levels[number : number + len(arrays)]
    ]
    if not ordered:
        parents = slices.parents_of(pos, 1, arrays[0].shape[0])
        columns = [parents, *arrays]
        sorting = convert.order(columns, [pos.shape[0] - 1, *extents])
        sorted_columns = columns if sorting is None else [c[sorting] for c in columns]
        twice = _equal_neighbours(sorted_columns)
        if twice is not None:
            entry = twice if sorting is None else int(sorting[twice])
            raise _repeated(pattern, number, arrays, entry)
        return
    keys = convert.linear_keys(arrays, extents) if len(arrays) > 1 else [arrays[0]]
    bad = keys[-1][1:] <= keys[-1][:-1]
    for key in reversed(keys[:-1]):
        bad = (key[1:] < key[:-1]) | ((key[1:] == key[:-1]) & bad)
    if not bool(bad.any()):
        return
    starts = pos[1:-1].long()
    bad[starts[(starts > 0) & (starts < arrays[0].shape[0])] - 1] = False
    if not bool(bad.any()):
        return
    entry = int(bad.nonzero()[0]) + 1
    if all(int(c[entry]) == int(c[entry - 1]) for c in arrays):
        raise _repeated(pattern, number, arrays, entry)
    before, after = (_tuple(arrays, e) for e in (entry - 1, entry))
    raise InvalidTensorError(
        f"entry {entry} of level {number} ({pattern.format.levels[number]}) is unsorted: {after} after {before}",
        "sort the coordinates below each parent, or use an unordered level",
    )


def _repeated(pattern: Pattern, number: int, arrays: Sequence[Tensor], entry: int) -> InvalidTensorError:
    """The error for a duplicate coordinate."""
    return InvalidTensorError(
        f"entry {entry} of level {number} ({pattern.format.levels[number]}) is a duplicate of {_tuple(arrays, entry)}",
        'every coordinate once, or duplicates="sum"',
    )


def _tuple(arrays: Sequence[Tensor], entry: int) -> str:
    """The coordinates of an entry in readable form."""
    entry_coordinates = tuple(int(c[entry]) for c in arrays)
    return str(entry_coordinates[0]) if len(entry_coordinates) == 1 else str(entry_coordinates)


def _equal_neighbours(columns: Sequence[Tensor]) -> int | None:
    """The first entry of sorted columns equal to the previous one."""
    same = columns[0][1:] == columns[0][:-1]
    for column in columns[1:]:
        same &= column[1:] == column[:-1]
    repeats = same.nonzero()
    return int(repeats[0]) + 1 if repeats.shape[0] else None


def first_duplicate(columns: Sequence[Tensor]) -> int | None:
    """The first entry of sorted columns equal to the previous one, `None` without duplicates."""
    return _equal_neighbours(columns) if columns and columns[0].shape[0] > 1 else None
