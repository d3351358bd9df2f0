"""Training steps of pruned layers with fixed patterns, against dense steps of torch and against SparseLab.

In: `linear(90, place)`. Out: a `Case` whose gradients were compared with those of the masked dense layer in float64.
oneDNN's product with packed weights has no gradient in torch: torch's dense step, which calls oneDNN, stands for both.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

import sparsify
from experiments.training import sparselab
from sparsify.bench.harness import Case, Contender, Target, WrongResultError, difference
from sparsify.bench.linear import COLUMNS, OUTPUTS, Weight
from sparsify.bench.place import Place
from sparsify.bench.products import scaled
from sparsify.storage.tensor import SparseTensor

ROWS: Final = 1024
TEXTS: Final = (8, 128)
TOLERANCE: Final = 3e-5
# Gradients below this share of the largest gradient count as rounding errors of 0.
NOUGHT: Final = 1e-4
# Minimum ratio of a step in the never-slower grid.
LEAST: Final = 0.97
# Dense layer of torch with its weight gradient multiplied by the mask, so that zeros stay.
UNDER_MASK: Final = "torch, masked"
RULE: Final = {"targets": "param:*weight", "types": ["Linear"], "role": "weight"}
RECIPE: Final = {"schema": 1, "name": "fixed", "sparsify": [{**RULE, "source": "given"}]}
RATE: Final = 1e-5


def linear(zeros: int, place: Place, *, asked: float | None = None, has_optimizer: bool = False) -> Case:
    """Forward and backward of 1024 x 768 -> 3072, with AdamW if `has_optimizer`."""
    columns, outputs, rows = (scaled(size, place) for size in (COLUMNS, OUTPUTS, ROWS))
    layer = masked(nn.Linear(columns, outputs), zeros)
    kind = "adamw" if has_optimizer else "step"
    return _case(f"{kind}-{zeros}", layer, torch.randn(rows, columns), asked, has_optimizer)


def square(zeros: int, rows: int, features: int, place: Place) -> Case:
    """Forward and backward of a square layer with few zeros, where dense products may be faster."""
    width = max(8, scaled(features, place))
    layer = masked(nn.Linear(width, width), zeros)
    name = f"grid-{zeros}-{rows}-{features}"
    case = _case(name, layer, torch.randn(max(1, scaled(rows, place)), width), LEAST)
    if zeros:
        twin = copy.deepcopy(layer)
        mask = twin.get_parameter("weight").detach() != 0
        twin.get_parameter("weight").register_hook(lambda gradient: gradient * mask)
        given = Step(twin, torch.randn(max(1, scaled(rows, place)), width))
        case.contenders.append(Contender(UNDER_MASK, given, is_checked=False))
        case.targets.append(Target("sparsify", (UNDER_MASK,), None, UNDER_MASK))
    return case


def encoder(zeros: int, place: Place, *, asked: float | None = None) -> Case:
    """A step of one layer of BERT-base, and of the dense layer under autocast to bfloat16."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    texts, tokens = (max(1, scaled(size, place)) for size in TEXTS)
    heads = max(1, scaled(12, place))
    sizes = {"hidden_size": 64 * heads, "num_attention_heads": heads, "intermediate_size": 256 * heads}
    config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "sdpa"
    layer = masked(BertLayer(config), zeros)
    case = _case(f"bert-layer-{zeros}", layer, torch.randn(texts, tokens, 64 * heads), asked)
    narrow = Step(copy.deepcopy(layer), torch.randn(texts, tokens, 64 * heads), autocast=True)
    case.contenders.append(Contender("torch bfloat16", narrow, is_checked=False))
    case.targets.append(Target("sparsify", ("torch bfloat16",), None, "torch bfloat16"))
    return case


def gradient(zeros: int, place: Place, *, asked: float | None = None) -> Case:
    """Gradient of a weight on its pattern alone, against the dense product."""
    columns, outputs, rows = (scaled(size, place) for size in (COLUMNS, OUTPUTS, ROWS))
    W = sparsify.tensor(masked(nn.Linear(columns, outputs), zeros).get_parameter("weight").detach(), "csr")
    G, X = torch.randn(rows, outputs), torch.randn(rows, columns)
    text = "D[o,i] = where(stored(W[o,i]), sum(t, G[t,o] * X[t,i]), 0)"

    def expected() -> Tensor:
        return (G.double().T @ X.double())[tuple(W.coordinates())]

    case = Case(
        f"gradient-{zeros}", f"{columns} -> {outputs}, {rows} rows, {W.nnz} entries", "generated", [], []
    )
    ours = lambda: sparsify.evaluate(text, W=W, G=G, X=X)  # noqa: E731
    found = case.prepare("first call", ours)
    _require(case.name, "sparsify", {"dW": (found.values(), expected())})
    case.contenders = [Contender("sparsify", ours, baseline=False), Contender("torch", lambda: G.T @ X)]
    case.targets = [Target("sparsify", ("torch",), asked, "torch")]
    return case


def masked(model: nn.Module, zeros: int) -> nn.Module:
    """The model in training mode, with `zeros` percent of zeros in the weights of its linear layers."""
    for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
        with torch.no_grad():
            layer.weight *= Weight(zeros).mask(*layer.weight.shape)
    return model.train()


class Step:
    """Forward and backward of a model, with the optimizer's step if given."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        autocast: bool = False,
    ) -> None:
        self.model, self.optimizer, self.autocast = model, optimizer, autocast
        self.x = x.detach().clone().requires_grad_()
        self.seed: Tensor | None = None

    def __call__(self) -> None:
        for leaf in (self.x, *self.model.parameters()):
            leaf.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            y = self.model(self.x)
        if isinstance(y, tuple):
            y = y[0]
        if self.seed is None or self.seed.dtype != y.dtype:
            self.seed = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
        y.backward(self.seed)
        if self.optimizer is not None:
            self.optimizer.step()

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of a step by parameter name, and the gradient of the input."""
        self()
        found = {name: value.grad for name, value in self.model.named_parameters()}
        return {
            name: dense(value) for name, value in {**found, "input": self.x.grad}.items() if value is not None
        }


def dense(value: Tensor) -> Tensor:
    """Dense form of a tensor."""
    return value.to_dense() if isinstance(value, SparseTensor) else value


def _case(name: str, layer: nn.Module, x: Tensor, asked: float | None, has_optimizer: bool = False) -> Case:
    """Case of a layer with zeros in place."""
    stored = sum(int(module.weight.count_nonzero()) for module in linears(layer))
    case = Case(name, f"{' x '.join(map(str, x.shape))}, {stored} entries", "generated", [], [])
    # In place: pruned weights become sparse parameters, not shared with a dense model.
    ours = case.prepare(
        "apply", lambda: sparsify.apply(copy.deepcopy(layer), RECIPE, x, verify=False, inplace=True)
    )
    rival = sparselab.layer(layer) if isinstance(layer, nn.Linear) else None
    if isinstance(layer, nn.Linear) and rival is None:
        case.missing.append(sparselab.NAME)
    known = {"sparsify": ours, "torch": copy.deepcopy(layer)} | (
        {} if rival is None else {sparselab.NAME: rival}
    )
    exact = Step(copy.deepcopy(layer).double(), x.double()).gradients()
    kept = {f"{path}.weight".lstrip("."): module.weight != 0 for path, module in paths(layer)}
    for who, model in known.items():
        step = Step(model, x)
        _compare(name, who, step.gradients(), exact, kept)
        if has_optimizer:
            step = Step(model, x, torch.optim.AdamW(model.parameters(), RATE))
            step()
        case.contenders.append(Contender(who, step, baseline=who != "sparsify", is_checked=False))
    for who in list(known)[1:]:
        case.targets.append(Target("sparsify", (who,), asked if who == "torch" else None, who))
    if reasons := {entry.reason for entry in ours.report.dense}:
        case.work += f"; dense: {sorted(reasons)[0]}"
    return case


def linears(model: nn.Module) -> Iterable[nn.Linear]:
    """Linear layers of a model."""
    return (module for _, module in paths(model))


def paths(model: nn.Module) -> Iterable[tuple[str, nn.Linear]]:
    """Linear layers of a model by name."""
    return ((path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear))


def _compare(
    name: str, who: str, found: Mapping[str, Tensor], exact: Mapping[str, Tensor], kept: Mapping[str, Tensor]
) -> None:
    """Compares gradients with exact gradients; gradients of pruned weights on their patterns only."""
    pairs = {key: (found[key], exact[key]) for key in exact if key in found}
    on = {
        key: tuple(part * kept[key] if key in kept else part for part in pair) for key, pair in pairs.items()
    }
    _require(name, who, on)


def _require(name: str, who: str, pairs: Mapping[str, tuple[Tensor, ...]]) -> None:
    """Raises if a tensor differs from the expected tensor."""
    largest = max(float(expected.abs().max()) for _, expected in pairs.values())
    for key, (found, expected) in pairs.items():
        # Gradients that vanish except for rounding (bias of keys) are scaled by the largest gradient.
        scale = min(1.0, float(expected.abs().max()) / (largest * NOUGHT))
        if not (error := difference(found, expected) * scale) <= TOLERANCE:
            raise WrongResultError(f"{name}: {key} of {who} differs from float64 by {error:.3g}")
