"""Streaming sparsifiers: each entry and its coordinates decide, in one pass and without memory.

In: `ScalarThreshold(0.1)`. Out: the condition `logical_not(abs(value) < threshold)` with `threshold` 0.1, fused
into the kernel computing a tensor.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, table 1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final

import torch

from sparsify.compiler.einsum.rewrite.restrict import SPREAD
from sparsify.compiler.einsum.text.parse import CONSTANTS
from sparsify.compiler.plan.prepare.sparsified import Condition
from sparsify.errors import SparsifierError
from sparsify.sparsification.rules.sparsifier import Streaming

LARGEST_SEED: Final = 2**63 - 1
# Names in a condition, except functions.
NAME: Final = r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*\()"


def require_fraction(name: str, fraction: Any) -> float:
    """A share of 0 to 1.

    Raises:
        SparsifierError: anything else.
    """
    is_number = isinstance(fraction, Real) and not isinstance(fraction, bool)
    if not is_number or not 0 <= float(fraction) <= 1:
        raise SparsifierError(
            f"{name}({fraction!r})", "the share of zeros, from 0 to 1: 0.9 drops nine in ten"
        )
    return float(fraction)


@dataclass(frozen=True, slots=True)
class KeepAll(Streaming):
    """Keeps all entries: of dense tensors the nonzero ones, of sparse ones the stored ones.

    A sum of two sparse tensors with `KeepAll` has the entries of both.

    Source: STen, table 1, keep-all: 1 pass, O(1) memory, streaming.

    >>> KeepAll()(torch.tensor([[0.0, 2.0]]), "csr").values()
    tensor([2.])
    """

    def condition(self) -> Condition:
        """No condition."""
        return Condition("")


def require_seed(name: str, seed: Any) -> int:
    """An integer of 64 bits.

    Raises:
        SparsifierError: anything else.
    """
    is_whole = isinstance(seed, int) and not isinstance(seed, bool)
    if not is_whole or not -LARGEST_SEED <= seed <= LARGEST_SEED:
        raise SparsifierError(f"{name}(seed={seed!r})", "an integer of 64 bits")
    return int(seed)


@dataclass(frozen=True, slots=True)
class RandomFraction(Streaming):
    """Drops each entry with a probability, drawn by its coordinates.

    The draw is a hash of the seed and the coordinates, hence equal in any format, for any number of threads, and, with
    `origin`, in any shard of a tensor. Entries are not scaled.

    Args:
        fraction: the probability of dropping an entry, 0 to 1.
        seed: draws with another seed are independent.
        origin: coordinates of the first entry of a shard in the whole tensor, one a mode.

    Raises:
        SparsifierError: an invalid probability, a seed outside 64-bit integers.

    Source: STen, table 1, random fraction (dropout): 1 pass, O(1) memory, streaming. The hash is defined in
        `sparsify.compiler.einsum.counter_random`.

    >>> whole = RandomFraction(0.5, seed=3)(torch.ones(4, 6), "coo").to_dense()
    >>> shard = RandomFraction(0.5, seed=3, origin=(2, 0))(torch.ones(2, 6), "csr").to_dense()
    >>> torch.equal(whole[2:], shard)
    True
    """

    fraction: float
    seed: int = 0
    origin: tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", require_fraction("RandomFraction", self.fraction))
        require_seed("RandomFraction", self.seed)
        is_coordinate = isinstance(self.origin, Sequence) and all(isinstance(at, int) for at in self.origin)
        if not is_coordinate:
            raise SparsifierError(
                f"RandomFraction(origin={self.origin!r})", "one coordinate a mode, (512, 0)"
            )
        object.__setattr__(self, "origin", tuple(self.origin))

    def condition(self) -> Condition:
        """`uniform(seed, row, column) >= fraction`, the coordinates counted from the origin."""
        # Random numbers are float32: the probability is the nearest one.
        fraction = float(torch.tensor(self.fraction, dtype=torch.float32))
        row, column = 0, self.origin[-1] if self.origin else 0
        for at in self.origin[:-1]:
            row = (row * SPREAD + at) % 2**32  # draws depend on the last 32 bits
        operands = (("fraction", fraction), ("seed", torch.tensor(self.seed)))
        if not self.origin:
            return Condition("uniform(seed, row, column) >= fraction", operands)
        first = (("first_row", torch.tensor(row)), ("first_column", torch.tensor(column)))
        return Condition(
            "uniform(seed, row + first_row, column + first_column) >= fraction", (*operands, *first)
        )


@dataclass(frozen=True, slots=True)
class ScalarThreshold(Streaming):
    """Drops entries of a magnitude below a threshold; keeps NaN.

    Args:
        threshold: smallest kept magnitude; 0 drops zeros alone.
        signed: compare the entries themselves, `value < threshold`, as ReLU does.

    Raises:
        SparsifierError: an invalid threshold.

    Source: STen, table 1, scalar threshold (ReLU): 1 pass, O(1) memory, streaming.

    >>> ScalarThreshold(0.5)(torch.tensor([[0.1, -2.0, 0.5]]), "csr").values()
    tensor([-2.0000,  0.5000])
    """

    threshold: float
    signed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, Real) or self.threshold != self.threshold:
            raise SparsifierError(
                f"ScalarThreshold({self.threshold!r})", "a number in the unit of the entries"
            )

    def condition(self) -> Condition:
        """`logical_not(abs(value) < threshold)`."""
        size = "value" if self.signed else "abs(value)"
        return Condition(f"logical_not({size} < threshold)", (("threshold", float(self.threshold)),))


class Where(Streaming):
    """Keeps the entries satisfying a condition in index notation.

    Args:
        text: condition over `value`, over `row` and `column`, and over names of operands.
        operands: numbers and tensors without modes, by name.

    Raises:
        SparsifierError: a condition other than text, a name without an operand, an operand with modes.
        ParseError: when used, a condition outside index notation.

    Source: STen, section 2: a streaming sparsifier is applied to each output value before the write.

    >>> Where("value > least", least=1.5)(torch.tensor([[1.0, 2.0]]), "csr").values()
    tensor([2.])
    """

    def __init__(self, text: str, **operands: Any) -> None:
        if not isinstance(text, str) or not text.strip():
            raise SparsifierError(f"Where({text!r})", "a condition as text, Where('abs(value) > 0.5')")
        for name, value in operands.items():
            if not isinstance(value, Real) and not (isinstance(value, torch.Tensor) and value.dim() == 0):
                raise SparsifierError(f"Where(..., {name}={value!r})", "a number, or a tensor without modes")
        names = {"value", "row", "column", *CONSTANTS, *operands}
        unknown = [name for name in re.findall(NAME, text) if name not in names]
        if unknown:
            raise SparsifierError(
                f"Where({text!r}) with the name {unknown[0]}",
                f"a number for it, Where(..., {unknown[0]}=0.5)",
            )
        self._condition = Condition(text, tuple(operands.items()))

    def condition(self) -> Condition:
        """The given condition."""
        return self._condition

    def __repr__(self) -> str:
        operands = "".join(f", {name}={value!r}" for name, value in self._condition.operands)
        return f"Where({self._condition.text!r}{operands})"
