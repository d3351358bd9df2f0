"""Mixtures with a capacity, as GShard writes them: computed where tokens are in slots, equal to the model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, one_hot, silu

import sparsify
from sparsify.errors import SparsifyError
from sparsify.passes.lift.experts.capacity import tokens_of_slots

RULE = {"targets": ["op:experts"], "role": "gate", "source": "computed"}
RECIPE = {"schema": 1, "name": "slots", "sparsify": [RULE]}
# Built quickly: asked for right results only.
EXPERTS, WIDTH, HIDDEN, CAPACITY = 4, 12, 20, 3


class GShard(nn.Module):
    """Two experts for each token of a group, dropped where an expert has no slot left; biases."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.wi = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.wo = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))
        self.b = nn.Parameter(torch.randn(EXPERTS, HIDDEN))

    def combine(self, x: torch.Tensor) -> torch.Tensor:
        """Weights of slots, [.., tokens, experts, slots]."""
        scores = self.router(x).softmax(-1)
        combine, taken, left = 0, 0, scores
        for _ in range(2):
            chosen = one_hot(left.argmax(-1), EXPERTS)
            place = ((chosen.cumsum(-2) - chosen + taken) * chosen).sum(-1)
            taken = taken + chosen.sum(-2, keepdim=True)
            kept = chosen * (place < CAPACITY).unsqueeze(-1)
            slot = one_hot(place.clamp(max=CAPACITY - 1), CAPACITY)
            combine = combine + (scores * kept).unsqueeze(-1) * slot.unsqueeze(-2)
            left = left.masked_fill(chosen.bool(), 0)
        return combine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        combine = self.combine(x)
        sent = torch.einsum("gsec,gsm->egcm", (combine > 0).to(x.dtype), x)
        rows = (torch.einsum("egcm,emh->egch", sent, self.wi) + self.b[:, None, None]).relu()
        return torch.einsum("gsec,egcm->gsm", combine, torch.einsum("egch,ehm->egcm", rows, self.wo))


class OneGroup(GShard):
    """Gated units by batched products, tokens without groups, weights of slots by an einsum."""

    def combine(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.router(x).softmax(-1).max(-1)
        chosen = one_hot(chosen, EXPERTS).to(x.dtype)
        place = ((chosen.cumsum(0) - 1) * chosen).sum(-1).long()
        slot = one_hot(place.clamp(max=CAPACITY), CAPACITY + 1)[:, :CAPACITY].to(x.dtype)
        return torch.einsum("se,sc->sec", scores[:, None] * chosen, slot)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        combine = self.combine(x)
        sent = torch.einsum("sec,sm->ecm", combine.bool().type_as(x), x)
        rows = silu(torch.bmm(sent, self.wi)) * torch.bmm(sent, self.wi.flip(0))
        return torch.einsum("sec,ecm->sm", combine, torch.bmm(rows, self.wo))


class Single(GShard):
    """One matrix for each expert, modes in other orders."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        combine = self.combine(x).permute(3, 0, 2, 1)
        sent = torch.einsum("gsm,cges->gecm", x, (combine != 0).to(x.dtype))
        return torch.einsum("gech,cges->gsh", torch.einsum("gecm,emh->gech", sent, self.wi), combine)


MODELS = [
    (GShard, (3, 17, WIDTH)),
    (OneGroup, (23, WIDTH)),
    (Single, (2, 9, WIDTH)),
    (GShard, (1, 17, WIDTH)),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_equal_to_the_model(kind, shape):
    torch.manual_seed(0)
    model = kind().eval()
    wide = copy.deepcopy(model).double()
    sparse = sparsify.apply(model, RECIPE, torch.randn(*(n + 1 for n in shape[:-1]), WIDTH), strict=True)
    assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
    x = torch.randn(shape, requires_grad=True)
    y = x.detach().double().requires_grad_()
    found, expected = sparse(x), wide(y)
    assert (expected == 0).all(-1).any(), "tokens are dropped"
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)  # sums of products
    gradient = torch.randn_like(expected)
    mine = torch.autograd.grad(found, [x, *model.parameters()], gradient.float(), allow_unused=True)
    theirs = torch.autograd.grad(expected, [y, *wide.parameters()], gradient, allow_unused=True)
    for own, other in zip(mine, theirs, strict=True):
        assert (own is None) == (other is None)
        if other is not None:
            largest = float(other.abs().max())
            torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "shape"), [(GShard, (2, 1)), (GShard, (1, 1)), (OneGroup, (1,)), (Single, (3, 1))]
)
def test_one_token(kind, shape):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(*shape, WIDTH)
    with torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, x, strict=True)
        assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
        expected = copy.deepcopy(model).double()(x.double())
        torch.testing.assert_close(sparse(x).double(), expected, rtol=1e-4, atol=1e-4)  # sums of products


@pytest.mark.sampled(3)
def test_program():
    with torch.no_grad():
        sparse = sparsify.apply(GShard().eval(), RECIPE, torch.randn(2, 9, WIDTH))
    (region,) = sparse.report.regions
    assert region.einsum == (
        "T[i,j,f] = G[i,j] * relu(sum(g, X[i,g] * W[j,g,f]) + W1[j,f]); Y[i,k] = sum(j, f, T[i,j,f] * W2[j,f,k])"
    )
    assert not [node for node in sparse.graph.nodes if "einsum" in str(node.target)]


def test_experts_without_tokens_are_not_read():
    torch.manual_seed(0)
    model, x = OneGroup().eval(), torch.rand(9, WIDTH)
    with torch.no_grad():
        model.router.bias[:] = torch.tensor([9.0, 0, -99, -99])
        expected = model(x)
        sparse = sparsify.apply(model, RECIPE, x)
        model.wo[2:] = torch.nan
        torch.testing.assert_close(sparse(x), expected, rtol=1e-4, atol=1e-4)
        assert model(x).isnan().any()


class Sums(GShard):
    """All tokens of an expert in one slot."""

    def combine(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).softmax(-1)
        return (scores * one_hot(scores.argmax(-1), EXPERTS)).unsqueeze(-1)


def test_sums_of_tokens():
    model, rows = Sums().eval(), 9 * torch.eye(WIDTH)[:EXPERTS]
    wrong = r"slot 0 of expert \d is weighted for token \d, but does not hold"
    with torch.no_grad():
        model.router.weight.copy_(torch.eye(EXPERTS, WIDTH))
        sparse = sparsify.apply(model, RECIPE, rows[None])  # each expert has one of the tokens
        torch.testing.assert_close(sparse(rows[None]), model(rows[None]), rtol=1e-4, atol=1e-4)
        for call in (sparse, lambda x: sparsify.apply(model, RECIPE, x)):
            with pytest.raises(SparsifyError, match=wrong):
                call(rows[[0, 1, 1, 2]][None])


def test_tokens_of_slots():
    weights = torch.zeros(3, 2, 2)  # tokens, experts, slots
    weights[0, 1, 0], weights[2, 1, 1] = 0.5, 0.25
    choice = (weights > 0).float()
    chosen = choice.clone()
    chosen[1, 0, 0] = 1  # has a weight of 0, and so no slot
    found = tokens_of_slots(weights, choice, chosen, [0, 1, 2], [0, 1, 2])
    assert found.tolist() == [[False, True], [False, False], [False, True]]
    for token, value in ((1, 1.0), (0, 2.0), (0, 0.0)):
        wrong = choice.clone()
        wrong[token, 1, 0] = value
        with pytest.raises(SparsifyError, match=r"slot 0 of expert 1 is weighted for token 0"):
            tokens_of_slots(weights, wrong, chosen, [0, 1, 2], [0, 1, 2])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [GShard, Single])  # which put such tokens into no slots, and into all
def test_tokens_that_are_not_numbers(kind):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, 9, WIDTH)
    sparse = sparsify.apply(model, RECIPE, x)
    x[0, 4] = torch.nan
    found, expected = sparse(x), model(x)
    found.sum().backward()
    assert found[0, 4].isnan().all()
    assert expected[0].isnan().all()
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)
    assert model.wi.grad.isnan().any()


class Learned(GShard):
    """How much of a token is in a slot has gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        combine = self.combine(x)
        sent = torch.einsum("gsec,gsm->egcm", combine, x)
        rows = gelu(torch.einsum("egcm,emh->egch", sent, self.wi))
        return torch.einsum("gsec,egcm->gsm", combine, torch.einsum("egch,ehm->egcm", rows, self.wo))


class OfSlots(GShard):
    """What experts compute depends on the slot."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.randn(CAPACITY, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        combine = self.combine(x)
        sent = torch.einsum("gsec,gsm->egcm", (combine > 0).to(x.dtype), x)
        rows = torch.einsum("egcm,emh->egch", sent, self.wi) + self.b
        return torch.einsum("gsec,egcm->gsm", combine, torch.einsum("egch,ehm->egcm", rows, self.wo))


class Unknown(GShard):
    """Where slots have weights their values say."""

    def combine(self, x: torch.Tensor) -> torch.Tensor:
        return super().combine(x).sqrt()


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Learned, "may have gradients"),
        (OfSlots, "depends on slots, not only on the tokens in them"),
        (Unknown, "is 0 whatever its weights are"),
    ],
)
def test_stays_dense(kind, why):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, x)
        assert not sparse.report.regions
        assert any(why in entry.reason for entry in sparse.report.dense), sparse.report.dense
        torch.testing.assert_close(sparse(x), model(x))
