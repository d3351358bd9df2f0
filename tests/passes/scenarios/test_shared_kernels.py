"""How many kernels the parts of models become: statements share one where that is expected to be faster."""

import pytest
import torch
from torch.nn import functional as F

from sparsify import options
from tests.passes.decide.test_front_end import K, adjacency, applied, model


def attention(a, x):
    return torch.softmax(torch.where(a != 0, x @ x.T, -torch.inf), -1) @ x


def by_degree(a, x):
    return a @ x / a.sum(1, keepdim=True)


# Models of a sparse matrix and a dense one, and per region of how many kernels it is.
MODELS = {
    "residual, layer norm": (lambda self, a, x: F.layer_norm(a @ x + x, (K,)), [1]),
    "residual loss": (lambda self, a, x: ((a @ x - x) ** 2).mean(), [1]),
    "attention": (lambda self, a, x: attention(a, x), [1]),
    "attention twice": (lambda self, a, x: attention(a, attention(a, x)), [1, 1]),
    "by degree": (lambda self, a, x: by_degree(a, x), [1]),
    "by degree twice": (lambda self, a, x: by_degree(a, torch.tanh(by_degree(a, x))), [1, 1]),
    "symmetric": (lambda self, a, x: ((d := a.sum(1).rsqrt())[:, None] * a * d[None]) @ x, [2]),
    "two hops": (lambda self, a, x: a @ (a @ x), [1, 1]),
    "several results": (lambda self, a, x: (a @ x, a.sum(1), a @ (2 * x)), [1]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_models(name):
    forward, wanted = MODELS[name]
    with options.override(compiler_flags=("-O0",)):
        sparse, texts = applied(model(forward), (adjacency(), torch.randn(60, K)))
    assert [len(region.kernel.split("+")) for region in sparse.report.regions] == wanted, texts


def test_each_softmax_is_a_kernel_of_its_own():
    """The second one gathers rows of the first one's result, which the first one's kernel has to finish."""
    forward, _ = MODELS["attention twice"]
    with options.override(compiler_flags=("-O0",)):
        sparse, texts = applied(model(forward), (adjacency(), torch.randn(60, K)))
    assert sum(text.count(";") + 1 for text in texts) >= 10
    assert sum(len(region.kernel.split("+")) for region in sparse.report.regions) == 2
