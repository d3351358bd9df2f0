"""Results of operators that rules sparsify: equal to the dense model with masks, gradients too, in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options, recipe, sparsifiers
from sparsify.errors import RecipeError
from sparsify.passes.choose import price, skip_zeros
from sparsify.sparsification.from_recipe import parts_of, sparsifier_of
from sparsify.sparsification.sparsified import Parts

Rules = list[dict[str, Any]]


class Network(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(13, width), nn.Linear(width, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Masked(nn.Module):
    """The same, its activation thinned out by torch's operators."""

    def __init__(self, dense: Network, sparsifier: Any) -> None:
        super().__init__()
        self.dense, self.sparsifier = dense, sparsifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.dense.first(x))
        return self.dense.second(torch.where(self.sparsifier.mask(hidden.detach()), hidden, 0))


def recipe_of(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"schema": 1, "name": "intermediates", "sparsify": list(rules)}


def network(training: bool = False) -> Network:
    torch.manual_seed(0)
    return Network().double().train(training)


def same(found: nn.Module, want: nn.Module, x: torch.Tensor, has_gradients: bool = True) -> None:
    """Results are equal, and so are the gradients of the input and of dense parameters."""
    given = [x.clone().requires_grad_() for _ in range(2)]
    results = [model(one) for model, one in zip((found, want), given, strict=True)]
    torch.testing.assert_close(*results, equal_nan=True)
    if has_gradients:
        gradients = [
            torch.autograd.grad(r.sin().sum(), one)[0] for r, one in zip(results, given, strict=True)
        ]
        torch.testing.assert_close(*gradients, equal_nan=True)


SPARSIFIERS = [
    "ScalarThreshold(0.3)",
    {"threshold": {"threshold": 0.2, "signed": True}},
    {"where": {"text": "value > least * column", "least": 0.02}},
    {"random_fraction": {"fraction": 0.5, "seed": -7}},
    {"nm": "2:4"},
    {"top_k": 3},
    {"fraction": 0.8},
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("inline", SPARSIFIERS, ids=str)
@pytest.mark.parametrize("shape", [(1, 13), (9, 13), (2, 3, 13), (0, 13)], ids=str)
def test_results_and_gradients_are_those_of_masks(
    inline: Any, training: bool, shape: tuple[int, ...]
) -> None:
    dense, x = network(training), torch.randn(shape, dtype=torch.float64)
    given = recipe_of({"targets": "node:relu", "inline": inline})
    found = sparsify.apply(dense, given, (x,))
    same(found, Masked(dense, sparsifier_of(recipe.load(given).rules[0].inline)), x)
    assert found.report.rules[0].matched == ["node:relu"]
    assert found.report.dense


@pytest.mark.sampled(4)
@pytest.mark.parametrize("inline", SPARSIFIERS, ids=str)
def test_inside_a_region(inline: Any) -> None:
    """Around the sparsified tensor are products with sparse weights."""
    dense, x = network(), torch.randn(2, 5, 13, dtype=torch.float64)
    with torch.no_grad():
        for layer in (dense.first, dense.second):
            layer.weight *= torch.rand_like(layer.weight) > 0.8
    weights = {"targets": "param:*.weight", "format": "csr"}
    given = recipe_of(weights, {"targets": "node:relu", "inline": inline})
    found = sparsify.apply(dense, given, (x,))
    want = Masked(dense, sparsifier_of(recipe.load(given).rules[1].inline))
    same(found, want, x)
    assert found.report.regions


@pytest.mark.sampled(8)
@pytest.mark.parametrize("inline", SPARSIFIERS, ids=str)
@pytest.mark.parametrize("shape", [(9, 13), (2, 3, 13)], ids=str)
def test_products_skip_zeros(inline: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel is faster; other shapes and gradients later, what is not a number included."""
    monkeypatch.setattr(skip_zeros, "timed", lambda *given: (1.0, 2.0))
    monkeypatch.setattr(price, "gain_us", lambda *given: 1.0)
    dense, x = network(), torch.randn(shape, dtype=torch.float64)
    given = recipe_of({"targets": "node:relu", "inline": inline})
    with options.override(tune_seconds=0.01):
        found = sparsify.apply(dense, given, (x,))
    want = Masked(dense, sparsifier_of(recipe.load(given).rules[0].inline))
    (region,) = found.report.regions
    assert any("skips zeros, timed 1 us" in note for note in region.notes)
    assert not found.report.dense
    for rows in (1, 9, 30) if len(shape) == 2 else (2, 5):
        other = torch.randn((rows, *shape[1:]), dtype=torch.float64)
        same(found, want, other)
        other[0, ..., 2] = torch.nan
        with torch.no_grad():
            torch.testing.assert_close(found(other), want(other), equal_nan=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("inline", [*SPARSIFIERS, "keep_all"], ids=str)
@pytest.mark.parametrize("shape", [(9, 13), (2, 3, 13)], ids=str)
def test_products_skip_zeros_in_training(
    inline: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backwards, too: the gradient of the weight reads the stored entries, that of the result is sampled there."""
    monkeypatch.setattr(skip_zeros, "timed", lambda *given: (1.0, 2.0))
    monkeypatch.setattr(price, "gain_us", lambda *given: 1.0)
    dense, x = network(True), torch.randn(shape, dtype=torch.float64)
    given = recipe_of({"targets": "node:relu", "inline": inline})
    with options.override(tune_seconds=0.01):
        found = sparsify.apply(dense, given, (x,))
    want = Masked(dense, sparsifier_of(recipe.load(given).rules[0].inline))
    (region,) = found.report.regions
    assert any("skips zeros, timed 1 us" in note for note in region.notes)
    for rows in (shape[0], 5):
        other = torch.randn((rows, *shape[1:]), dtype=torch.float64)
        same(found, want, other)
        pairs = [torch.autograd.grad(m(other).sin().sum(), list(dense.parameters())) for m in (found, want)]
        torch.testing.assert_close(*pairs)
    assert not found.report.warnings


@pytest.mark.parametrize(
    "inline, skips", [({"threshold": 0.1}, True), ({"threshold": 0.0}, False), ({"fraction": 0.5}, False)]
)
def test_zeros_that_get_gradients_stay_dense_in_training(
    inline: Any, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GELU is 0 at 0 and has a gradient there: zeros that are kept stay, a threshold above 0 keeps none."""
    monkeypatch.setattr(skip_zeros, "timed", lambda *given: (1.0, 2.0))
    monkeypatch.setattr(price, "gain_us", lambda *given: 1.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 20), nn.GELU(), nn.Linear(20, 7)).double().train()
    x = torch.randn(9, 13, dtype=torch.float64)
    with options.override(tune_seconds=0.01):
        found = sparsify.apply(model, recipe_of({"targets": "op:gelu", "inline": inline}), (x,))
    assert bool(found.report.regions) == skips == (not found.report.dense)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True])
def test_steps_are_timed(training: bool) -> None:
    """In training with the gradients; the report has both times, whichever way is taken."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).train(training)
    x = torch.randn(32, 16)
    with options.override(tune_seconds=0.01):
        found = sparsify.apply(model, recipe_of({"targets": "op:relu", "inline": {"threshold": 0.5}}), (x,))
    notes = [note for entry in found.report.regions for note in entry.notes]
    texts = [*notes, *(entry.reason for entry in found.report.dense)]
    assert any("us" in text and "torch's operators" in text for text in texts)


def test_slower_kernels_stay_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skip_zeros, "timed", lambda *given: (98.0, 100.0))
    monkeypatch.setattr(price, "gain_us", lambda *given: 1.0)
    dense, x = network(), torch.randn(9, 13, dtype=torch.float64)
    with options.override(tune_seconds=0.01):
        found = sparsify.apply(dense, recipe_of({"targets": "node:relu", "inline": {"threshold": 0.3}}), (x,))
    assert not found.report.regions
    assert any("no faster: 98 us, torch's operators 100" in entry.reason for entry in found.report.dense)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_times_are_measured(share: float) -> None:
    """The density of the example decides, and the report has both times."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256)).eval()
    x = torch.randn(256, 64)
    with torch.no_grad():
        hidden = model[1](model[0](x))
    threshold = float(hidden.flatten().kthvalue(int(hidden.numel() * (1 - share))).values)
    with options.override(tune_seconds=0.1):
        found = sparsify.apply(
            model, recipe_of({"targets": "op:relu", "inline": {"threshold": threshold}}), (x,)
        )
    notes = [note for entry in found.report.regions for note in entry.notes]
    texts = [*notes, *(entry.reason for entry in found.report.dense)]
    assert any("us" in text and "torch's operators" in text for text in texts)
    with torch.no_grad():
        want = model[2](torch.where(hidden < threshold, 0, hidden))
        torch.testing.assert_close(found(x), want, atol=1e-4, rtol=1e-4)


def test_what_is_not_a_number_stays() -> None:
    dense, x = network(), torch.randn(4, 13, dtype=torch.float64)
    given = recipe_of({"targets": "node:relu", "inline": {"threshold": 0.3}})
    found = sparsify.apply(dense, given, (x,))
    x[1, 2] = torch.nan
    assert found(x)[1].isnan().all()
    same(found, Masked(dense, sparsifiers.ScalarThreshold(0.3)), x)


def test_the_builder_equals_the_file() -> None:
    text = """
schema: 1
name: intermediates
sparsify:
  - targets: ["node:first.relu"]
    inline: {threshold: 0.1}
    temporary: csr
    external: {nm: "2:4"}
    format: coo
    grad: {format: same}
  - targets: op:gelu
    inline: RandomFraction(0.9, seed=3)
    external: {block_fraction: [0.5, [2, 2]]}
    grad: {inline: {where: {text: "abs(value) > t", t: 0.5}}, format: csr}
"""
    built = recipe_of(
        {
            "targets": ["node:first.relu"],
            "inline": sparsifiers.ScalarThreshold(0.1),
            "temporary": "csr",
            "external": sparsifiers.PerBlockFraction(2, 4),
            "format": "coo",
            "grad": {"format": "same"},
        },
        {
            "targets": "op:gelu",
            "inline": sparsifiers.RandomFraction(0.9, seed=3),
            "external": sparsifiers.BlockFraction(0.5, (2, 2)),
            "grad": {"inline": sparsifiers.Where("abs(value) > t", t=0.5), "format": "csr"},
        },
    )
    read, made = recipe.loads(text), recipe.load(built)
    assert read.model_dump() == made.model_dump()
    assert recipe.load(made.model_dump(by_alias=True, exclude_unset=True)).model_dump() == made.model_dump()
    parts = parts_of(read.rules[0])
    assert parts == Parts(sparsifiers.ScalarThreshold(0.1), "csr", sparsifiers.PerBlockFraction(2, 4), "coo")


class Even(sparsifiers.Sparsifier):
    """A user's sparsifier: every second column."""

    def mask(self, tensor: torch.Tensor) -> torch.Tensor:
        return (torch.arange(tensor.shape[-1]) % 2 == 0).expand(tensor.shape)


def test_an_object_of_a_user() -> None:
    dense, x = network(), torch.randn(4, 13, dtype=torch.float64)
    found = sparsify.apply(dense, recipe_of({"targets": "op:relu", "external": Even()}), (x,))
    same(found, Masked(dense, Even()), x)


@pytest.mark.parametrize(
    ("grad", "expected"),
    [
        ({"format": "same"}, lambda g, kept: torch.where(kept, g, 0)),
        ({"inline": "keep_all", "format": "dense"}, lambda g, kept: g),
        ({"inline": {"threshold": 0.2}, "format": "csr"}, lambda g, kept: torch.where(g.abs() < 0.2, 0, g)),
        ({"inline": {"threshold": 0.2}}, lambda g, kept: torch.where(kept & (g.abs() >= 0.2), g, 0)),
    ],
    ids=["same", "own", "threshold of its own", "threshold on the pattern"],
)
def test_gradients(grad: Any, expected: Any) -> None:
    """`same` keeps the pattern of the tensor; any other format leaves the gradient a pattern of its own."""
    dense, x = network(True), torch.randn(6, 13, dtype=torch.float64)
    given = recipe_of({"targets": "node:first.linear", "inline": {"threshold": 0.3}, "grad": grad})
    found = sparsify.apply(dense, given, (x,))
    own, other = (x.clone().requires_grad_() for _ in range(2))
    hidden = dense.first(other)
    kept = hidden.detach().abs() >= 0.3
    thin = torch.where(kept, hidden, 0).detach().requires_grad_()
    want = dense.second(torch.relu(thin))
    want.square().sum().backward()
    hidden.backward(expected(thin.grad, kept))
    result = found(own)
    result.square().sum().backward()
    torch.testing.assert_close(result, want)
    torch.testing.assert_close(own.grad, other.grad)


def test_a_gradient_keeps_the_pattern_of_what_no_sparsifier_made() -> None:
    dense, x = network(True), torch.randn(6, 13, dtype=torch.float64)
    found = sparsify.apply(dense, recipe_of({"targets": "op:relu", "grad": {"format": "same"}}), (x,))
    same(found, dense, x)


class Nested(nn.Module):
    """Activations of the same name in different modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("target", ["node:blocks.1.1.gelu_1", "node:blocks.1.gelu", "node:blocks.1.1.gelu"])
def test_nodes_have_the_names_that_torch_fx_gives_them_in_a_module(target: str) -> None:
    """As when the module of the name is traced alone: the first `gelu` of a module is `gelu`."""
    torch.manual_seed(0)
    dense, x = Nested().double().eval(), torch.randn(4, 8, dtype=torch.float64)
    found = sparsify.apply(dense, recipe_of({"targets": target, "inline": {"threshold": 0.2}}), (x,))
    hidden = dense.blocks[1](dense.blocks[0](x))
    want = dense.blocks[2](torch.where(hidden.abs() < 0.2, 0, hidden))
    torch.testing.assert_close(found(x), want)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"targets": "node:blocks.1.gleu", "inline": "keep_all"}], "or 'node:blocks.1.1.gelu_1'"),
        (
            [
                {"targets": "node:*gelu", "inline": "keep_all"},
                {"targets": "op:gelu", "external": {"top_k": 2}},
            ],
            "is selected by rule 1 already",
        ),
        ([{"targets": "param:*.weight", "inline": "keep_all"}], "`inline` is for results of operators"),
        ([{"targets": "op:gelu", "inline": {"nm": "2:3"}}], "8"),
        ([{"targets": "op:gelu", "inline": {"threshold": "much"}}], "a number in the unit of the entries"),
        ([{"targets": "op:gelu", "inline": {"treshold": 1}}], "did you mean 'threshold'"),
        ([{"targets": "op:gelu", "inline": "print(1)"}], "'print' is not known"),
        ([{"targets": "op:gelu", "inline": "Movement(0.9)"}], "is for weights"),
        ([{"targets": "op:gelu", "inline": "keep_all", "format": "crs"}], "crs"),
        (
            [{"targets": "op:gelu", "inline": "keep_all", "prune": {"method": "magnitude", "sparsity": 0.5}}],
            "`inline`",
        ),
        ([{"targets": "op:gelu", "grad": {"inlin": "keep_all"}}], "unknown key 'inlin'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes(rules: Rules, words: str) -> None:
    x = torch.randn(4, 8)
    with pytest.raises(RecipeError, match=r".*") as caught:
        sparsify.apply(Nested().eval(), recipe_of(*rules), (x,))
    assert words in str(caught.value)


def test_torch_compile() -> None:
    dense, x = network(), torch.randn(5, 13, dtype=torch.float64)
    given = recipe_of({"targets": "op:relu", "inline": {"threshold": 0.3}})
    found = torch.compile(copy.deepcopy(dense), backend="sparsify", options={"recipe": given})
    same(found, Masked(dense, sparsifiers.ScalarThreshold(0.3)), x)


def test_other_shapes_and_modes_later() -> None:
    dense = network()
    given = recipe_of(
        {"targets": "op:relu", "inline": {"random_fraction": 0.5}, "external": {"threshold": 0.1}}
    )
    found = sparsify.apply(dense, given, (torch.randn(5, 13, dtype=torch.float64),))

    class Both:
        def mask(self, tensor: torch.Tensor) -> torch.Tensor:
            return sparsifiers.RandomFraction(0.5).mask(tensor) & (tensor.abs() >= 0.1)

    for rows in (1, 8, 31):
        same(found, Masked(dense, Both()), torch.randn(rows, 13, dtype=torch.float64))
    found.train()
    same(found, Masked(dense, Both()), torch.randn(6, 13, dtype=torch.float64))
