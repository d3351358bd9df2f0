"""Mixtures of experts in models: found by their operators, computed where the gate chooses, equal to the model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, one_hot, silu

import sparsify
from sparsify.errors import RecipeError

RULE = {"targets": ["op:experts"], "role": "gate", "source": "computed"}
# Built quickly: asked for right results only.
EXPERTS, WIDTH, HIDDEN = 5, 12, 20


def recipe(**rule: object) -> dict[str, object]:
    """A recipe of one rule."""
    return {"schema": 1, "name": "experts", "sparsify": [{**RULE, **rule}]}


class Gated(nn.Module):
    """Two of the experts for each token, each a gated unit."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN, WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.b = nn.Parameter(torch.randn(EXPERTS, HIDDEN))

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """The weights of the chosen experts, 0 for all others."""
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter(1, chosen, weights)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Inside of all experts."""
        first, second = torch.einsum("td,ehd->teh", x, self.up).chunk(2, -1)
        return silu(first) * second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = torch.einsum("teh,eoh->teo", self.rows(x), self.down)
        return x + torch.einsum("te,teo->to", self.gate(x), results)


class Summed(Gated):
    """The same, weighted by a product and a sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = torch.einsum("beh,eoh->beo", self.rows(x), self.down)
        return (self.gate(x).unsqueeze(-1) * results).sum(dim=1)


class AtOnce(Gated):
    """Weights and last matrices in one einsum, matrices in other orders, biases and dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.einsum("ehd,td->teh", self.up[:, :HIDDEN], x) + self.b
        rows = nn.functional.dropout(gelu(0.5 * rows - 1), 0.1, self.training)
        return torch.einsum("te,teh,eoh->to", self.gate(x), rows, self.down)


class Single(Gated):
    """One expert a token, one matrix each, tokens dispatched to all of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = one_hot(self.router(x).argmax(1), EXPERTS).to(x.dtype)
        dispatched = x.unsqueeze(1).expand(-1, EXPERTS, -1)
        results = torch.einsum("bnd,nhd->bnh", dispatched, self.up)
        return torch.einsum("bnh,bn->bh", results, gates)


class OneEinsum(Gated):
    """One expert a token, one matrix each, all in one einsum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = one_hot(self.router(x).argmax(1), EXPERTS).to(x.dtype)
        return torch.einsum("te,td,efd->tf", gates, x, self.up)


class Biased(Gated):
    """Biases of both matrices; gates and rows side by side in pairs, bounded, as GPT-OSS has them."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN))
        self.last = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.einsum("td,edh->teh", x, self.up.view(EXPERTS, WIDTH, -1)) + self.both
        first, second = pairs[..., ::2].clamp(max=4.0), pairs[..., 1::2].clamp(-4.0, 4.0)
        return (second + 1) * (first * torch.sigmoid(1.702 * first))

    def results(self, x: torch.Tensor) -> torch.Tensor:
        """Of all experts."""
        return self.last + torch.einsum("teh,eoh->teo", self.rows(x), self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.einsum("te,teo->to", self.gate(x), self.results(x))


class Batched(Biased):
    """Tokens in two modes, which no node makes one; the same gate and rows as before."""

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(-1, chosen, weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.stack((x, x.flip(0), -x), 1)
        first, second = torch.einsum("btd,ehd->bteh", x, self.up).chunk(2, -1)
        rows = silu(first) * (second + self.b)
        results = torch.einsum("bteh,eoh->bteo", rows, self.down) + self.last
        return torch.einsum("bte,bteo->bto", self.gate(x), results)


class BatchedSum(Batched):
    """The same by a product and a sum, without biases."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.stack((x, x.flip(0), -x), 1)
        rows = torch.einsum("btd,ehd->bteh", x, self.up).relu()
        results = torch.einsum("bteh,oeh->bteo", rows, self.up.view(WIDTH, EXPERTS, -1))
        return (self.gate(x).unsqueeze(-1) * results).sum(-2)


class BiasedSum(Biased):
    """The same by a product and a sum; one bias for all experts, and the halves of the rows as slices."""

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.einsum("td,ehd->teh", x, self.up) + self.both
        return rows[..., :HIDDEN].sigmoid() * rows[..., HIDDEN:].clamp(min=-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = torch.einsum("teh,eoh->teo", self.rows(x), self.down) + self.last[:1].unsqueeze(0)
        return (self.gate(x).unsqueeze(-1) * results).sum(dim=1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "kind", [Gated, Summed, AtOnce, Single, OneEinsum, Biased, BiasedSum, Batched, BatchedSum]
)
def test_equal_to_the_model(kind):
    torch.manual_seed(0)
    model = kind().eval()
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(), torch.randn(9, WIDTH), strict=True)
        assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
        assert not sparse.report.dense
        for tokens in (9, 23, 1):
            x = torch.randn(tokens, WIDTH)
            torch.testing.assert_close(sparse(x), model(x), rtol=1e-4, atol=1e-4)  # sums of products


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "dtype"), [(Gated, torch.bfloat16), (Biased, torch.float16)])
def test_halves(kind, dtype):
    torch.manual_seed(0)
    model = kind().eval()
    for matrix in (model.up, model.down):
        nn.init.normal_(matrix, std=0.3)
    model = model.to(dtype)
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(), torch.randn(9, WIDTH, dtype=dtype), strict=True)
        assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
        x = torch.randn(23, WIDTH, dtype=dtype)
        # What experts compute inside is not rounded; the weights of the gate are, and results once or twice.
        bound = 4 * torch.finfo(dtype).eps
        expected = x.double() + torch.einsum(
            "te,teo->to",
            model.gate(x).double(),
            wide.results(x.double()) if kind is Biased else gated(wide, x.double()),
        )
        torch.testing.assert_close(sparse(x).double(), expected, rtol=bound, atol=bound)


def gated(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What all experts compute without biases."""
    return torch.einsum("teh,eoh->teo", model.rows(x), model.down)


def test_gradients_of_halves():
    torch.manual_seed(0)
    model = Gated()
    for matrix in (model.up, model.down):
        nn.init.normal_(matrix, std=0.3)
    model = model.bfloat16().train()
    wide = copy.deepcopy(model).double()
    sparse = sparsify.apply(model, recipe(), torch.randn(9, WIDTH).bfloat16(), strict=True)
    assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
    x = torch.randn(23, WIDTH).bfloat16()
    sparse(x).float().square().sum().backward()
    gate = model.gate(x).double()  # what is chosen is chosen in bfloat16
    expected = x.double() + torch.einsum("te,teo->to", gate, gated(wide, x.double()))
    expected.square().sum().backward()
    for name in ("up", "down"):
        found, exact = sparse.get_parameter(name).grad, wide.get_parameter(name).grad
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).abs().max() <= 4 * torch.finfo(
            torch.bfloat16
        ).eps * exact.abs().max(), name


def test_program():
    with torch.no_grad():
        sparse = sparsify.apply(Gated().eval(), recipe(), torch.randn(9, WIDTH))
    (region,) = sparse.report.regions
    assert region.einsum == (
        "T[i,j,f] = G[i,j] * (silu(sum(g, X[i,g] * W[j,0,f,g])) * sum(h, X[i,h] * W[j,1,f,h])); "
        "Y[i,k] = sum(j, f, T[i,j,f] * W1[j,k,f])"
    )


def test_unchosen_experts_are_not_computed():
    model = Gated().eval()
    with torch.no_grad():
        model.router.weight[:, 0] = torch.tensor([9.0, 8.0, -9.0, -9.0, -9.0])
        x = torch.rand(9, WIDTH) * 0.01
        x[:, 0] = 9
        expected = model(x)
        sparse = sparsify.apply(model, recipe(), x)
        model.up[2:], model.down[2:] = torch.nan, torch.nan
        torch.testing.assert_close(sparse(x), expected, rtol=1e-4, atol=1e-4)
        assert model(x).isnan().all()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [Gated, AtOnce, Single, Biased, BiasedSum, Batched])
def test_gradients(kind):
    torch.manual_seed(0)
    model = kind().eval()
    with torch.no_grad():  # the last expert is never chosen
        model.router.weight[-1], model.router.bias = 0, nn.Parameter(torch.tensor([0.0] * 4 + [-99]))
    x = torch.randn(9, WIDTH, requires_grad=True)
    wide, y = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    expected = torch.autograd.grad(wide(y).square().sum(), [y, *wide.parameters()], allow_unused=True)
    sparse = sparsify.apply(model, recipe(), x)
    with torch.no_grad():
        model.up[-1], model.down[-1] = torch.nan, torch.nan
    found = torch.autograd.grad(sparse(x).square().sum(), [x, *model.parameters()], allow_unused=True)
    for name, mine, theirs in zip(["x", *dict(model.named_parameters())], found, expected, strict=True):
        if mine is not None or theirs is not None:
            assert mine.shape[0] != EXPERTS or name.startswith("router") or not mine[-1].any()
            torch.testing.assert_close(
                mine.double(), theirs, rtol=1e-4, atol=1e-3
            )  # sums of products of sums


def test_gradients_of_weights_that_are_zero():
    class Signed(Gated):
        """Weights that may be 0."""

        def gate(self, x: torch.Tensor) -> torch.Tensor:
            weights, chosen = self.router(x).topk(2)
            return torch.zeros(x.shape[0], EXPERTS).scatter(1, chosen, weights)

    model, x = Signed().eval(), torch.randn(4, WIDTH)
    nn.init.zeros_(model.router.weight)
    expected = torch.autograd.grad(model(x).square().sum() + model(x).sum(), model.router.weight)
    sparse = sparsify.apply(model, recipe(), x)
    found = torch.autograd.grad(sparse(x).square().sum() + sparse(x).sum(), model.router.weight)
    assert expected[0].any()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_a_gate_of_unknown_zeros_has_the_gradients_of_the_model():
    class Cut(Gated):
        """Weights below a bound are 0."""

        def gate(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.threshold(self.router(x).softmax(-1), 0.2, 0.0)

    torch.manual_seed(0)
    model, x = Cut().eval(), torch.randn(9, WIDTH)
    expected = torch.autograd.grad(model(x).square().sum(), [model.up, model.router.weight])
    sparse = sparsify.apply(model, recipe(), x)
    found = torch.autograd.grad(sparse(x).square().sum(), [model.up, model.router.weight])
    assert any("gradients are of all experts" in note for note in sparse.report.regions[0].notes)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


class ReadTwice(Gated):
    """What experts compute inside is an output too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.rows(x)
        results = torch.einsum("teh,eoh->teo", rows, self.down)
        return torch.einsum("te,teo->to", self.gate(x), results), rows


class Deep(Gated):
    """Three matrices one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.einsum("teh,eoh->teo", self.rows(x), self.down).relu()
        rows = torch.einsum("td,ehd->teh", x, self.up).relu() * torch.einsum("teo,eho->teh", rows, self.up)
        results = torch.einsum("teh,eho->teo", rows, self.up)
        return torch.einsum("te,teo->to", self.gate(x), results)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_stays_dense():
    torch.manual_seed(0)
    model, x, why = Deep().eval(), torch.randn(9, WIDTH), "is what experts computed, from which they compute"
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(), x)
        assert not sparse.report.regions
        assert any(why in entry.reason for entry in sparse.report.dense)
        assert not any("it is no gate" in entry.reason for entry in sparse.report.dense)
        torch.testing.assert_close(sparse(x), model(x))


def test_rows_that_are_read_elsewhere_are_multiplied_where_the_gate_chooses():
    torch.manual_seed(0)
    model, x = ReadTwice().eval(), torch.randn(9, WIDTH)
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(), x, strict=True)
        (region,) = sparse.report.regions
        assert region.einsum == "Y[i,k] = sum(j, f, G[i,j] * X[i,j,f] * W[j,k,f])"
        for found, expected in zip(sparse(x), model(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_other_rules():
    model, x = Gated().eval(), torch.randn(9, WIDTH)
    with pytest.raises(
        RecipeError, match="`source: computed` is for gates that the model makes sparse itself"
    ):
        sparsify.apply(model, recipe(role="activation"), x)
    with pytest.raises(RecipeError, match="`role: gate` without `prune`"):
        sparsify.apply(model, recipe(prune={"method": "magnitude", "sparsity": 0.5}), x)
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe(targets=["node:*softmax*"]), x)
    assert any("it is no gate" in entry.reason for entry in sparse.report.dense)
