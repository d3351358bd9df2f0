"""The most bytes that live at a time: in torch's memory, in the pool's, results that stay, views."""

import torch

from sparsify.runtime import buffers
from sparsify.runtime.buffers import Pool
from sparsify.runtime.peak import Peak


def test_memory_of_torch():
    given = torch.ones(64)
    with Peak() as peak:
        first = given + 1
        second = first * 2
        del first
        third = second - 1
        del second
        fourth = third.view(8, 8).t()
        del third
    assert peak.bytes == 2 * given.nbytes
    assert fourth.sum() == 64 * 3
    with peak:
        torch.exp(given, out=fourth.t().view(64))
    assert peak.bytes == 2 * given.nbytes


def test_memory_of_the_pool():
    pool = Pool()
    size = 2 * buffers.SMALLEST_BYTES
    kept = pool.empty((size,), torch.uint8)
    with Peak(pool) as peak:
        first = pool.empty((size,), torch.uint8)
        second = torch.empty(size, dtype=torch.uint8)
        del first
        third = pool.empty((size,), torch.uint8)
        third.zero_()
    assert peak.bytes == 2 * size
    assert pool.held_bytes == 2 * size
    pool.empty((4 * size,), torch.uint8)
    assert peak.bytes == 2 * size
    assert len({kept.data_ptr(), second.data_ptr(), third.data_ptr()}) == 3
    assert pool.lookers == []
