"""Counter-based random numbers: known answers, and statistical tests."""

import numpy as np
import pytest
import torch
from scipy import stats

import sparsify
from sparsify.compiler.einsum.counter_random import KEPT_BITS, kept_bits, threefry, uniform
from sparsify.errors import DtypeError, EinsumError

ONES = 2**32 - 1


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        ((ONES, ONES), (ONES, ONES), (0xFD36D048, 0x2D17272C)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_known_answers(counter, key, words):
    """Known answers from the tests of Random123, the library of the generator's authors."""
    assert threefry(counter, key) == words
    seed = np.int64(np.uint64(key[1] << 32 | key[0]))
    assert uniform(seed, *counter) == np.float32((words[0] >> 8) / 2**24)


def test_tensors_have_the_same_numbers():
    seed, places = torch.randint(-(2**63), 2**63 - 1, (3, 1, 1)), torch.arange(5)
    found = kept_bits(seed, places[:, None], places) * 2.0**-KEPT_BITS
    wanted = uniform(seed.numpy(), np.arange(5)[:, None], np.arange(5))
    assert np.array_equal(found.numpy(), wanted)


def test_numbers_are_uniform_and_independent():
    """Bounds that true random numbers violate once in 10,000 tries; the seeds are fixed."""
    seeds, places = np.arange(8)[:, None, None], np.arange(256)
    numbers = uniform(seeds, places[:, None], places).astype(np.float64)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-4
    centred = numbers - 0.5
    for neighbour in (
        np.roll(centred, 1, 0),
        np.roll(centred, 1, 1),
        np.roll(centred, 1, 2),
        centred.transpose(0, 2, 1),
    ):
        correlation = (centred * neighbour).mean() * 12
        assert abs(correlation) < 4 * np.sqrt(2 / numbers.size)
    for part in (numbers.mean((1, 2)), numbers.mean((0, 1)), numbers.mean((0, 2))):
        spread = np.sqrt(1 / 12 / (numbers.size / part.size))
        assert np.abs(part - 0.5).max() < 5 * spread


def test_what_is_refused():
    A = torch.ones(3)
    for text in ("y[i] = A[i] * uniform(A[i], i, i)", "y[i] = A[i] * uniform(0.5, i, i)"):
        with pytest.raises(DtypeError, match="uniform of float32"):
            sparsify.evaluate(text, A=A)
    with pytest.raises(DtypeError, match="uniform of truth values"):
        sparsify.evaluate("y[i] = A[i] * uniform(s, s, s)", A=A, s=torch.tensor(True))
    with pytest.raises(EinsumError, match="uniform takes 3 arguments"):
        sparsify.evaluate("y[i] = A[i] * uniform(1, i)", A=A)
