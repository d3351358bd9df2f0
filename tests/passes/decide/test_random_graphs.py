"""Random graphs over the operator table, sparse leaves in random formats, against the dense model in float64.

`make test` runs the first seeds; `SPARSIFY_RANDOM_GRAPHS=20000 pytest -m exhaustive` more of them.
"""

import os
import random
import warnings

import pytest
import torch
from torch import nn

import sparsify

SEEDS = range(300)
MORE = range(300, int(os.environ.get("SPARSIFY_RANDOM_GRAPHS", "600")))
FORMATS = ("csr", "csc", "coo", "dcsr", "auto")
UNARY = (
    torch.relu, torch.tanh, torch.sigmoid, torch.abs, torch.neg, torch.square, torch.sin, torch.sign,
    torch.nn.functional.silu, torch.nn.functional.gelu, torch.atan, lambda x: x * 0.5, lambda x: x + 1,
    lambda x: x.clamp(-1, 1), lambda x: x != 0, lambda x: torch.nn.functional.leaky_relu(x, 0.1),
)  # fmt: skip
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum)
REDUCTIONS = ("sum", "mean", "amax", "amin")


class Chain(nn.Module):
    """Operators drawn at random; each step applies one of them to tensors that earlier steps made."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, a, x, v):
        known = [a, x, v, x[:, 0]]
        for step, places in self.steps:
            known.append(step(*(known[place] for place in places)))
        return known[-1], known[-2]


def drawn(seed, n, k):
    """Steps whose shapes fit, for a [n, n], x [n, k] and v [n]."""
    draw = random.Random(seed)
    shapes, steps = [(n, n), (n, k), (n,), (n,)], []
    while len(steps) < draw.randint(3, 7):
        kind = draw.choice("ubbrrmmtvws")
        place = draw.choice([0, 0, len(shapes) - 1, draw.randrange(len(shapes))])
        shape = shapes[place]
        step, places, result = None, (place,), None
        if kind == "u":
            step, result = draw.choice(UNARY), shape
        elif kind == "b":
            other = draw.choice([p for p, s in enumerate(shapes) if s == shape or s == shape[-1:] or s == ()])
            step, places, result = draw.choice(BINARY), (place, other), shape
        elif kind == "r" and shape:
            name, mode, keep = draw.choice(REDUCTIONS), draw.randrange(len(shape)), draw.random() < 0.3
            step = reduction(name, mode, keep)
            result = tuple(1 if m == mode else s for m, s in enumerate(shape) if keep or m != mode)
        elif kind == "m" and len(shape) == 2:
            fitting = [p for p, s in enumerate(shapes) if s and s[0] == shape[1] and len(s) <= 2]
            if fitting:
                other = draw.choice(fitting)
                step, places, result = product, (place, other), (shape[0], *shapes[other][1:])
        elif kind == "t" and len(shape) == 2:
            step, result = torch.t, shape[::-1]
        elif kind == "v" and len(shape) == 2 and shape[0] > 2:
            step, result = part, (shape[0] - 2, shape[1])
        elif kind == "w":
            others = [p for p, s in enumerate(shapes) if s == shape]
            places = (place, draw.choice(others), draw.choice(others))
            step, result = chosen, shape
        elif kind == "s" and shape and shape[-1] > 1:
            step, result = softmax, shape
        if step is not None and len(result) <= 2:
            steps.append((step, places))
            shapes.append(result)
    return steps


def reduction(name, mode, keep):
    """`sum` and others over one mode, of numbers."""
    return lambda x: getattr(number(x), name)(mode, keepdim=keep)


def number(x):
    return x.to(torch.get_default_dtype()) if x.dtype is torch.bool else x


def product(x, y):
    return number(x) @ number(y)


def part(x):
    return x[1:-1]


def chosen(c, x, y):
    return torch.where(c != 0, number(x), number(y))


def softmax(x):
    return torch.softmax(number(x), -1)


def agrees(seed):
    """Whether a random model computes the same sparse, gradients included; the number of its regions."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    n, k = draw.choice([5, 8, 33]), draw.choice([3, 8])
    chain = Chain(drawn(seed, n, k))
    a = torch.randn(n, n) * (torch.rand(n, n) < draw.choice([0.0, 0.1, 0.4, 1.0]))
    x, v = torch.randn(n, k), torch.randn(n)
    form = draw.choice(FORMATS)
    rule = {"targets": ["input:a"], "source": "given", "format": form, "role": "adjacency", "optional": True}
    torch.set_default_dtype(torch.float64)
    try:
        a, x, v = (t.double() for t in (a, x, v))
        try:
            expected = chain(a, x, v)
        except RuntimeError:
            return None  # such as a difference of truth values, which torch refuses
        given = [a, x.requires_grad_(), v.requires_grad_()]
        is_trained = draw.random() < 0.4
        model = chain.train(is_trained)
        recipe = {"schema": 1, "name": "random", "sparsify": [rule], "verify": {"rtol": 1e-6}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sparse = sparsify.apply(model, recipe, tuple(given))
            found = sparse(*given)
        for have, want in zip(found, expected, strict=True):
            torch.testing.assert_close(have, want, rtol=1e-6, atol=1e-6, equal_nan=True, msg=f"seed {seed}")
        expected = model(*given)
        if is_trained and expected[0].requires_grad and not expected[0].isnan().any():
            wanted = torch.autograd.grad(expected[0].sum(), given[1:], allow_unused=True)
            gradients = torch.autograd.grad(found[0].sum(), given[1:], allow_unused=True)
            for have, want in zip(gradients, wanted, strict=True):
                have, want = (torch.zeros(1) if g is None else g for g in (have, want))
                torch.testing.assert_close(*torch.broadcast_tensors(have, want), rtol=1e-5, atol=1e-5)
        return len(sparse.report.regions)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed):
    agrees(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", MORE)
def test_more_random_graphs(seed):
    agrees(seed)


def test_graphs_have_regions():
    assert any(agrees(seed) for seed in range(6))
