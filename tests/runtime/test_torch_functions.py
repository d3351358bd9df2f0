"""Addresses of torch's functions are found in whatever mode the first call happens."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode

from sparsify.runtime.torch_functions import torch_functions

MODES = {
    "plain": nullcontext,
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "fake": FakeTensorMode,
    "meta": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_they_are_the_same_in_every_mode(mode):
    expected = torch_functions()
    with mode():
        found = torch_functions.__wrapped__()
    assert found == expected
