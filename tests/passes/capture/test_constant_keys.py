"""Arguments that are no tensors: calls share a graph where the contents of these are the same, and only there."""

import enum
import threading
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import sparsify
from sparsify.errors import CaptureError
from sparsify.passes.capture.constant_keys import contents

X = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))
RECIPE = {
    "schema": 1,
    "name": "half",
    "sparsify": [
        {
            "targets": ["param:*.weight"],
            "role": "weight",
            "prune": {"method": "magnitude", "sparsity": 0.5},
        }
    ],
}


class Scale:
    """A number in an object whose text does not show it."""

    def __init__(self, number: float, lock: object = None) -> None:
        self.number, self.lock = number, lock


@dataclass
class Pair:
    """Two numbers in an object whose text shows them."""

    first: float
    second: float


class Way(enum.Enum):
    UP = 1
    DOWN = 2


def scaled(number):
    return lambda x: x * number


class Model(nn.Module):
    """A product, then whatever `then` does with an argument."""

    def __init__(self, then):
        super().__init__()
        self.lin, self.then = nn.Linear(8, 8), then

    def forward(self, x, argument):
        return self.then(self.lin(x), argument)


def sparse(then, argument, **options):
    torch.manual_seed(0)
    return sparsify.apply(Model(then).eval(), RECIPE, (X, argument), **options)


def require_dense_results(model, argument):
    with torch.no_grad():
        torch.testing.assert_close(model(X, argument), model.original(X, argument))


def test_long_arrays_are_told_apart():
    one, other = np.ones(2000, np.float32), np.ones(2000, np.float32)
    other[1000] = 7
    model = sparse(lambda x, mask: x * torch.from_numpy(mask)[1000], one)
    require_dense_results(model, other)
    one[1000] = 5
    require_dense_results(model, one)
    require_dense_results(model, other.copy())
    assert len(model.variants) == 3


def test_objects_may_change_between_calls():
    scale = Scale(1.0)
    model = sparse(lambda x, scale: x * scale.number, scale)
    scale.number = 5.0
    require_dense_results(model, scale)
    require_dense_results(model, Scale(5.0))
    assert len(model.variants) == 2


def test_functions_are_told_apart_by_what_they_hold():
    model = sparse(lambda x, then: then(x), scaled(2.0))
    require_dense_results(model, scaled(3.0))
    require_dense_results(model, scaled(2.0))
    assert len(model.variants) == 2


def test_the_dense_model_runs_for_what_cannot_be_read():
    scale = Scale(1.0, threading.Lock())
    with pytest.warns(RuntimeWarning, match="argument is of class Scale, which pickle cannot read") as found:
        model = sparse(lambda x, scale: x * scale.number, scale)
    assert len(found) == 1 and not model.variants
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in (1.0, 5.0, 6.0):
            scale.number = number
            require_dense_results(model, scale)
            require_dense_results(model, Scale(number + 1, threading.Lock()))
    with pytest.raises(CaptureError, match="not told apart; give tensors, numbers or objects"):
        sparse(lambda x, scale: x * scale.number, scale, strict=True)


SAME = {
    "number": lambda: 3.5,
    "nothing": lambda: None,
    "text": lambda: "".join(["a", "b"]),
    "complex": lambda: 1 + 2j,
    "slice": lambda: slice(1, 5),
    "dtype": lambda: torch.int8,
    "device": lambda: torch.device("cpu"),
    "shape": lambda: torch.Size([2, 300]),
    "value of an enum": lambda: Way.UP,
    "class": lambda: Scale,
    "array": lambda: np.arange(3000.0),
    "number of numpy": lambda: np.float32(0.1),
    "objects": lambda: np.array([Scale(1.0), None]),
    "data": lambda: Pair(1.0, 2.0),
    "object": lambda: Scale(torch.arange(4)),
    "function": lambda: scaled(2.0),
    "partial": lambda: partial(functional.gelu, approximate="tanh"),
    "set": lambda: {1, 2, 3},
}
OTHER = {
    "-0.0": -0.0,
    "0.0": 0.0,
    "0": 0,
    "False": False,
    "nan": float("nan"),
    "bytes": b"ab",
    "other slice": slice(1, 6),
    "other value": Way.DOWN,
    "other array": np.arange(3000.0) + (np.arange(3000) == 1500),
    "rounded": np.arange(3000.0, dtype=np.float32),
    "turned": np.arange(3000.0).reshape(2, 1500),
    "other object": Scale(torch.arange(4) + 1),
    "other function": scaled(3.0),
    "other code": (lambda number: lambda x: x + number)(2.0),
    "other partial": partial(functional.gelu, approximate="none"),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_equal_contents(make):
    assert contents(make()) == contents(make()) and contents(make())[1] is not None


def test_other_contents():
    found = [contents(value) for value in (*OTHER.values(), *(make() for make in SAME.values()))]
    assert len(set(found)) == len(found)


def test_what_cannot_be_read():
    assert contents(threading.Lock())[1] is None
    assert contents(value for value in ())[1] is None
