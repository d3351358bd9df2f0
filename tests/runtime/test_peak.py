"""The most bytes that live at a time: in torch's memory, in the pool's, results that stay, views."""

import subprocess
import sys

import torch

from sparsify.runtime import buffers
from sparsify.runtime.buffers import Pool
from sparsify.runtime.peak import Peak, resident_bytes


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


def test_resident_memory_grows_with_what_is_held() -> None:
    """Also where the process that started this one was larger: the figure is this process's own."""
    before = resident_bytes()
    held = torch.ones(16 << 20)
    assert resident_bytes() >= max(before, held.nbytes)
    code = "from sparsify.runtime.peak import resident_bytes; print(resident_bytes())"
    made = bytearray(1 << 30)  # noqa: F841  the child starts from a process of this size
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1 << 30
