"""The number of threads."""

import os

import pytest
import torch

from sparsify.options import Options
from sparsify.runtime import threads


def test_as_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert threads.count(Options()) == 3
    finally:
        torch.set_num_threads(before)


def test_as_the_options_say() -> None:
    assert threads.count(Options(threads=5)) == 5


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_one() -> None:
    child = os.fork()
    if child == 0:
        os._exit(threads.count(Options(threads=5)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
