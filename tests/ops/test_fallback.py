import warnings

import pytest
import torch

import sparsify
from sparsify.errors import UnsupportedOperatorError
from sparsify.ops.register.fallback import forgotten
from tests.ops.operands import assert_as_dense, full, sparse


def test_one_warning_that_says_what_and_what_to_do():
    stored = sparse(7, 9)
    with forgotten():
        with pytest.warns(RuntimeWarning, match=r"torch.cumsum: .*to_dense\(\).*sparsify.strict\(\)"):
            assert_as_dense(lambda a: torch.cumsum(a, 0), stored)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_as_dense(lambda a: torch.cumsum(a, 1), stored)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: torch.cat([a, full(2, 9)]),
        lambda a: torch.cumsum(a, 1),
        lambda a: a[torch.zeros(2, 2, dtype=torch.int64)],
        lambda a: torch.where(a > 0, a, full(7, 9)),
        lambda a: a.half() @ full(9, 5).half(),
        lambda a: torch.mm(a, full(9, 5), out=torch.empty(7, 5, dtype=torch.float64)),
    ],
)
def test_dense_results(function):
    stored = sparse(7, 9)
    with forgotten(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, expected = function(stored), function(stored.to_dense())
    assert type(got) is torch.Tensor
    torch.testing.assert_close(got, expected)


def test_gradients_pass_through():
    weight = torch.nn.Parameter(sparse(7, 9))
    with forgotten(), pytest.warns(RuntimeWarning):
        torch.cumsum(weight, 0).sum().backward()
    counted = torch.arange(7, 0, -1, dtype=torch.float64)[weight.coordinates()[0]]
    assert torch.equal(weight.grad.values(), counted)


def test_strict_raises():
    stored = sparse(7, 9)
    with sparsify.strict():
        with pytest.raises(UnsupportedOperatorError, match=r"torch\.cumsum"):
            torch.cumsum(stored, 0)
        with pytest.raises(UnsupportedOperatorError, match="complex"):
            stored.to(torch.complex128).amax()
        assert_as_dense(lambda a, b: a @ b, stored, full(9, 5))


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.add_(full(7, 9)),
        lambda a: a.copy_(full(7, 9)),
        lambda a: a.__setitem__(0, 1.0),
        lambda a: torch.cumsum(full(7, 9), 0, out=a),
    ],
)
def test_writes_never_become_dense(write):
    with pytest.raises(UnsupportedOperatorError):
        write(sparse(7, 9))
