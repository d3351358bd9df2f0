"""What stays dense although a rule makes its operand sparse: a line in the report, one warning, an error if strict."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparsify
from sparsify.errors import RecipeError, UnsupportedOperatorError

X = torch.randn(8, 16)


def sparse(*shape: int) -> torch.Tensor:
    """Random numbers, of which most are 0."""
    return torch.randn(*shape) * (torch.rand(*shape) < 0.2)


class OfWeight(nn.Module):
    """A function of a parameter and an input."""

    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(sparse(*shape))
        self.function = function

    def forward(self, x):
        return self.function(x, self.weight)


class OfInputs(nn.Module):
    """A function of an input that a rule marks, and of another one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a, x):
        return self.function(a, x)


def applied(model: nn.Module, targets: str, *inputs: torch.Tensor, **how: Any) -> tuple[list[Any], list[str]]:
    """The lines about what stays dense, and the warnings; `strict` is checked to raise where there is an operator."""
    rule = {"targets": targets, "format": "csr", **how}
    recipe = {"schema": 1, "name": "attack", "sparsify": [rule]}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = sparsify.apply(model.eval(), recipe, inputs, dynamic=())
    dense = found.report.to_dict()["dense"]
    if any(not entry["chosen"] and entry["op"] not in ("input", "param") for entry in dense):
        with pytest.raises(UnsupportedOperatorError, match="or apply without strict"):
            sparsify.apply(model, recipe, inputs, dynamic=(), strict=True)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sparsify.apply(model, recipe, inputs, dynamic=(), strict=True)
    return dense, [str(one.message) for one in told]


WEIGHTS: dict[str, tuple[Callable[..., Any], tuple[int, ...], torch.Tensor, str, str]] = {
    "conv_transpose1d": (F.conv_transpose1d, (4, 3, 3), torch.randn(2, 4, 9), "conv_transpose1d", "no sparse form"),
    "grouped": (
        lambda x, w: F.conv1d(x, w, groups=2), (4, 2, 3), torch.randn(2, 4, 9), "conv1d", "channels are in groups"
    ),
    "bilinear": (lambda x, w: F.bilinear(x, x, w), (5, 16, 16), X, "bilinear", "no sparse form"),
    "embedding": (F.embedding, (50, 16), torch.randint(0, 50, (7,)), "embedding", "no sparse form"),
    "bag": (F.embedding_bag, (50, 16), torch.randint(0, 50, (7, 2)), "embedding_bag", "no sparse form"),
    "outer": (lambda x, w: torch.outer(x[0], w), (16,), X, "outer", "outer reads param:weight dense"),
    "bias": (lambda x, w: x + w, (16,), X, "add", "add reads param:weight dense"),
    "returned": (lambda x, w: (x + 1, w), (16, 16), X, "output", "param:weight is returned"),
    "turned": (lambda x, w: (x + 1, w.t()), (16, 16), X, "output", "param:weight is returned"),
    "two readers": (lambda x, w: (F.linear(x, w), w.cumsum(0)), (16, 16), X, "cumsum", "no sparse form"),
    "function": (lambda x, w: (F.linear(x, w), x @ (w + 1)), (16, 16), X, "add", "no sparse form"),
    "inverse": (lambda x, w: torch.linalg.pinv(w), (16, 16), X, "linalg_pinv", "no sparse form"),
    "factors": (lambda x, w: torch.linalg.qr(w), (16, 16), X, "linalg_qr", "linalg_qr reads param:weight dense"),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name):
    function, shape, x, operator, words = WEIGHTS[name]
    dense, told = applied(OfWeight(function, *shape), "param:weight", x)
    (line,) = [entry for entry in dense if not entry["chosen"]]
    assert line["op"] == operator and words in line["reason"]
    (warning,) = told
    assert "stays dense" in warning
    assert operator == "output" or operator in warning
    assert line["reason"] in warning


INPUTS: dict[str, tuple[Callable[..., Any], torch.Tensor, torch.Tensor, str, str]] = {
    "topk": (lambda a, x: a.topk(2).values, sparse(16, 16), X, "topk", "topk reads input:a dense"),
    "sort": (lambda a, x: a.sort().values, sparse(16, 16), X, "sort", "sort reads input:a dense"),
    "cumsum": (lambda a, x: a.cumsum(0), sparse(16, 16), X, "cumsum", "no sparse form for a"),
    "where": (
        lambda a, x: torch.where(a, 1.0, x[0]), sparse(16, 16) != 0, X, "where", "where reads input:a dense: kernels"
    ),
    "whole": (lambda a, x: a.cumsum(0), sparse(16, 16).long(), X, "cumsum", "not torch.int64"),
    "batched": (torch.bmm, sparse(3, 16, 16), torch.randn(3, 16, 4), "bmm", "bmm reads input:a dense"),
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name):
    function, a, x, operator, words = INPUTS[name]
    dense, told = applied(OfInputs(function), "input:a", a, x)
    assert operator in [entry["op"] for entry in dense]
    assert any(words in entry["reason"] for entry in dense), dense
    assert len(told) == 1


def test_masks_that_are_inputs():
    def attention(a, x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=a)

    for mask in (sparse(8, 8), sparse(8, 8) != 0):
        q = torch.randn(1, 2, 8, 4)
        dense, told = applied(OfInputs(attention), "input:a", mask, q, role="attention_mask")
        (line,) = dense
        assert line["op"] == "scaled_dot_product_attention"
        if mask.is_floating_point():  # it is added to scores: nothing is left out
            assert "has no sparse form for a" in line["reason"] and len(told) == 1
        else:  # so few scores are faster dense
            assert line["chosen"] and "expected to take" in line["reason"] and not told


@pytest.mark.parametrize(
    ("function", "words"),
    [(lambda a, x: x + 1, "nothing reads it"), (lambda a, x: x * a.shape[0], "nothing reads it")],
    ids=["not at all", "its shape alone"],
)
def test_inputs_whose_entries_nothing_reads(function, words):
    dense, told = applied(OfInputs(function), "input:a", sparse(16, 16), X)
    assert [(entry["node"], entry["op"]) for entry in dense] == [("a", "input")]
    assert dense[0]["reason"] == f"input:a: {words}"
    assert len(told) == 1


def test_shapes_that_may_vary():
    rule = {"targets": "input:a", "format": "csr"}
    model = OfInputs(lambda a, x: x.new_ones(a.shape[0]) * x.sum())
    with pytest.warns(RuntimeWarning, match="input:a: only its shape is read"):
        sparsify.apply(model, {"name": "x", "sparsify": [rule]}, (sparse(16, 16), X))


class Unread(nn.Module):
    """A layer, and one that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.left = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.used(x)


def test_parameters_that_nothing_reads():
    dense, told = applied(Unread(), "param:*.weight", X)
    assert [(entry["node"], entry["reason"]) for entry in dense] == [
        ("left.weight", "param:left.weight: nothing reads it")
    ]
    assert len(told) == 1
    with pytest.raises(RecipeError, match=r"nothing in this call reads param:left\.weight"):
        applied(Unread(), "param:left.weight", X)


class Scoped(nn.Module):
    """An operator in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4)

    def forward(self, x):
        return self.table(x)


def test_the_place_of_an_operator():
    dense, _ = applied(Scoped(), "param:table.weight", torch.randint(0, 20, (3,)))
    assert [(entry["op"], entry["scope"]) for entry in dense] == [("embedding", "table")]


@pytest.mark.sampled(2)
def test_attention_with_packed_weights():
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    q, k, v = (torch.randn(2, 5, 16) for _ in range(3))
    dense, told = applied(model, "param:*weight", q, k, v)
    assert {entry["op"] for entry in dense} == {"linear"}
    assert all(entry["chosen"] and "is smaller dense" in entry["reason"] for entry in dense)
    assert not told


@pytest.mark.sampled(2)
def test_nothing_is_said_where_kernels_read():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    assert applied(layer, "param:*weight", torch.randn(2, 5, 16), types=["Linear", "MultiheadAttention"]) == (
        [], [],
    )  # fmt: skip
    assert applied(OfInputs(lambda a, x: a @ x), "input:a", sparse(16, 16), X.t().contiguous()) == ([], [])


class Buffered(nn.Module):
    """A product with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", sparse(16, 16))

    def forward(self, x):
        return x @ self.table


@pytest.mark.parametrize("training", [False, True])
def test_buffers(training):
    model = Buffered().train(training)
    rule = {"targets": "param:table", "format": "csr"}
    found = sparsify.apply(model, {"name": "x", "sparsify": [rule]}, (X,), trainable=training)
    assert not found.report.dense
    assert found.report.regions
    model.table.mul_(2)
    torch.testing.assert_close(found(X), X @ model.table)


def test_choices_are_no_warnings():
    model = nn.Linear(16, 16).eval()
    rules = [{"targets": "param:weight", "when": {"max_density": 0.5}}]
    found = sparsify.apply(model, {"name": "x", "sparsify": rules}, (X,), strict=True)
    assert [(entry.op, entry.chosen) for entry in found.report.dense] == [("param", True)]
    rules = [{"targets": "param:weight", "format": "dense, dense"}]
    sparsify.apply(model, {"name": "x", "sparsify": rules}, (X,), strict=True)


def test_training_keeps_zeros_without_a_word_about_it():
    model = OfWeight(F.conv_transpose1d, 4, 3, 3).train()
    rule = {"targets": "param:weight", "role": "weight", "format": "csr"}
    with pytest.warns(RuntimeWarning, match="conv_transpose1d") as told:
        found = sparsify.apply(model, {"name": "x", "sparsify": [rule]}, (torch.randn(2, 4, 9),), dynamic=())
    assert [entry.op for entry in found.report.dense] == ["conv_transpose1d"]
    assert len(told) == 1


def test_many_reasons_are_counted():
    def many(x, w):
        return w.cumsum(0), w.sin(), w.cos(), w.exp(), w.sum()

    dense, (warning,) = applied(OfWeight(many, 16, 16), "param:weight", X)
    assert len(dense) == 4
    assert "and 1 more, which `report.dense` lists" in warning
