"""`rearrange`: modes moved, repeated, split and merged, written as a pattern.

In: `rearrange(x, "bd->bnd", n=4)`, x [8, 16]. Out: x repeated along a new mode, [8, 4, 16].
"""

import re
from collections.abc import Mapping
from math import prod

from torch import Tensor

from sparsify.errors import DtypeError, EinsumError, ShapeError

REMEDY = '"bd->bnd" with n=, or "b (h d) -> b h d" with h='


def rearrange(x: Tensor, pattern: str, **sizes: int) -> Tensor:
    """A dense or sparse tensor with modes permuted, repeated, split or merged.

    Args:
        x: [...], dense or a `SparseTensor`.
        pattern: modes before and after the arrow. Names are letters, `bd->bnd`, or words between spaces,
            `batch (heads d) -> batch heads d`; modes in parentheses form one mode of `x` or of the result, innermost
            mode last. `...` stands for any number of modes.
        sizes: extents of new modes, along which `x` is repeated, and of all modes but one in parentheses before the
            arrow.

    Raises:
        EinsumError: an unreadable pattern, or a mode missing in the result (sum it with einsum).
        ShapeError: a missing or unfit extent.
        DtypeError: `x` is no tensor.

    >>> import torch
    >>> rearrange(torch.ones(8, 16), "bd->bnd", n=4).shape
    torch.Size([8, 4, 16])

    Source: Scorch slides, 2023; patterns as in Rogozhnikov, Einops, 2022.
    """
    if not isinstance(x, Tensor):
        raise DtypeError(f"rearrange of {x!r} of type {type(x).__name__}", "a tensor")
    before, after = _sides(pattern, x.dim())
    extents = _extents(x, pattern, before, sizes)
    given, wanted = [name for group in before for name in group], [name for group in after for name in group]
    _check_names(pattern, given, wanted, sizes)
    added = [name for name in wanted if name not in given]
    split = [extents[name] for name in given]
    found = x if split == list(x.shape) else x.reshape(split)
    order = [given.index(name) for name in wanted if name in given]
    if order != list(range(len(order))):
        found = found.permute(order)
    for place, name in enumerate(wanted):
        if name in added:
            found = found.unsqueeze(place)
    if added:
        found = found.expand([extents[name] for name in wanted])
    merged = [prod([extents[name] for name in group]) for group in after]
    return found if merged == list(found.shape) else found.reshape(merged)


def _sides(pattern: str, rank: int) -> tuple[list[list[str]], list[list[str]]]:
    """The groups of modes before and after the arrow; an ellipsis stands for modes `..0`, `..1`."""
    parts = pattern.split("->") if isinstance(pattern, str) else []
    if len(parts) != 2:
        raise EinsumError(f"the pattern {pattern!r} has no single arrow", REMEDY)
    is_words = re.search(r"[\w)]\s+[\w(]", pattern) is not None
    before, after = _groups(parts[0], pattern, is_words), _groups(parts[1], pattern, is_words)
    number = rank - sum(group != ["..."] for group in before)
    hidden = [f"..{n}" for n in range(number)] if ["..."] in before else []
    return _named(before, hidden), _named(after, hidden)


def _named(groups: list[list[str]], hidden: list[str]) -> list[list[str]]:
    """Groups with an ellipsis expanded to modes: one group each, or inside the surrounding parentheses."""
    named = []
    for group in groups:
        if group == ["..."]:
            named += [[name] for name in hidden]
        else:
            named.append([name for part in group for name in (hidden if part == "(...)" else [part])])
    return named


def _groups(text: str, pattern: str, is_words: bool) -> list[list[str]]:
    """One side of a pattern: a list of names for each mode."""
    name = r"[A-Za-z_]\w*" if is_words else r"[A-Za-z]"
    groups: list[list[str]] = []
    inside = False
    for token in re.findall(rf"\.\.\.|{name}|[()]|\S", text):
        if token in "()" and inside != (token == "("):
            inside = token == "("
            groups += [[]] if inside else []
        elif token != "..." and not re.fullmatch(name, token):
            raise EinsumError(f"{token!r} in the pattern {pattern!r}", REMEDY)
        elif inside:
            groups[-1].append("(...)" if token == "..." else token)
        else:
            groups.append([token])
    if inside:
        raise EinsumError(f"a parenthesis of the pattern {pattern!r} is never closed", REMEDY)
    return groups


def _extents(x: Tensor, pattern: str, before: list[list[str]], sizes: Mapping[str, int]) -> dict[str, int]:
    """The extent of each name: of `x`, or as given."""
    if len(before) != x.dim():
        raise ShapeError(
            f"rearrange of {list(x.shape)} by {pattern!r}, which has {len(before)} modes; as many modes"
        )
    wrong = [
        name
        for name, size in sizes.items()
        if isinstance(size, bool) or not isinstance(size, int) or size < 0
    ]
    if wrong:
        raise ShapeError(f"{wrong[0]}={sizes[wrong[0]]!r} in rearrange; an extent of 0 or more")
    extents = dict(sizes)
    for group, whole in zip(before, x.shape, strict=True):
        unknown = [name for name in group if name not in extents]
        known = prod([extents[name] for name in group if name in extents])
        if len(unknown) > 1:
            raise ShapeError(f"({' '.join(group)}) of extent {whole} in {pattern!r}; say {unknown[0]}=")
        if unknown:
            extents[unknown[0]] = whole // known if known else 0
        if prod([extents[name] for name in group]) != whole:
            raise ShapeError(
                f"({' '.join(group)}) is {' * '.join(str(extents[name]) for name in group) or 1} in {pattern!r}, "
                f"the mode has extent {whole}; extents with that product"
            )
    return extents


def _check_names(pattern: str, given: list[str], wanted: list[str], sizes: Mapping[str, int]) -> None:
    """Every mode once on each side, none lost, an extent for each new one, no extent without a mode."""
    for names in (given, wanted):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise EinsumError(f"{twice[0]} occurs twice on one side of {pattern!r}", "each mode once a side")
    if lost := [name for name in given if name not in wanted]:
        raise EinsumError(f"{pattern!r} drops {lost[0]}", f"einsum sums over modes: einsum({pattern!r}, x)")
    if missing := [name for name in wanted if name not in given and name not in sizes]:
        raise ShapeError(f"{pattern!r} adds {missing[0]} without an extent; say {missing[0]}=")
    if unused := [name for name in sizes if name not in given and name not in wanted]:
        raise EinsumError(
            f"{unused[0]}= is no mode of {pattern!r}", f"modes {' '.join(dict.fromkeys(wanted))}"
        )
