"""Counter-based random numbers: a pure function of a seed and coordinates, stateless and independent of loop order.

In: `uniform(seed, 0, [0, 1, 2])`. Out: three numbers from 0 to 1, 1 excluded; the same in each process and, bit by bit,
in generated kernels, for all vector widths, threads and formats.

The generator is Threefry-2x32 with 13 rounds: the seed is the key, row and column are the counter, each by its last 32
bits; the number is 24 bits of the first word. It needs 32-bit additions, rotations and exclusive ors only, available
in all vector instruction sets.

Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011, sections 3.2 and 4; constants
and known answers from its library Random123, where 13 is the least number of rounds without a known flaw.
"""

from typing import Any, Final

import numpy as np

ROUNDS: Final = 13
ROTATIONS: Final = (13, 15, 26, 6, 17, 29, 16, 24)
# Constant of the third key word, xored with the other two.
PARITY: Final = 0x1BD11BDA
# Rounds between two additions of the key.
GROUP: Final = 4
WORD_BITS: Final = 32
WORD: Final = 2**WORD_BITS - 1
# Bits of a word that a float32 significand holds.
KEPT_BITS: Final = 24


def uniform(seed: Any, row: Any, column: Any) -> Any:
    """Numbers of [0, 1), multiples of 2**-24, as float32.

    Args:
        seed: integers of 64 bits, which broadcast with the others.
        row, column: integers, of which the last 32 bits count.

    >>> uniform(0, 0, [0, 1]).tolist()
    [0.6137140989303589, 0.25123435258865356]
    """
    bits = kept_bits(*(np.asarray(part).astype(np.int64) for part in (seed, row, column)))
    return bits.astype(np.float32) * np.float32(2.0**-KEPT_BITS)


def kept_bits(seed: Any, row: Any, column: Any) -> Any:
    """The integers `2**24 * uniform(seed, row, column)`, for int64 arrays of numpy or tensors of torch."""
    key = (seed & WORD, seed >> WORD_BITS & WORD)
    return threefry((row & WORD, column & WORD), key)[0] >> (WORD_BITS - KEPT_BITS)


def threefry(counter: tuple[Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any]:
    """The two words of Threefry-2x32-13 for a counter and a key of two words each, as integers of 64 bits.

    >>> [hex(word) for word in threefry((0, 0), (0, 0))]
    ['0x9d1c5ec6', '0x8bd50731']
    """
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    first, second = counter[0] + keys[0] & WORD, counter[1] + keys[1] & WORD
    for number in range(ROUNDS):
        turn = ROTATIONS[number % len(ROTATIONS)]
        first = first + second & WORD
        second = (second << turn & WORD | second >> (WORD_BITS - turn)) ^ first
        group, left = divmod(number + 1, GROUP)
        if left == 0:
            first = first + keys[group % 3] & WORD
            second = second + keys[(group + 1) % 3] + group & WORD
    return first, second
