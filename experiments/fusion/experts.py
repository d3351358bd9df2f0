"""Mixtures of experts by a top-k gate, against the implementations of transformers.

In: `experts(8, place)`, `step(8, place)`. Out: a `Case` whose result is checked against float64, of a call or of a
step of training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

import sparsify
from sparsify.bench.harness import Case, Target
from sparsify.bench.place import Place
from sparsify.bench.products import ITEM, against, row, scaled
from sparsify.bench.roofline import Work
from sparsify.runner.peers.installed import Call

TOKENS: Final = 1024
WIDTH: Final = 512
HIDDEN: Final = 1024
CHOSEN: Final = 2
# Implementations by transformers' names: a loop over experts, and torch's grouped product. The third one,
# "batched_mm", copies the matrices of the experts for each token: gigabytes for this benchmark.
IMPLEMENTATIONS: Final = ("eager", "grouped_mm")
TEXT: Final = """
H[t,e,h] = G[t,e] * silu(sum(d, X[t,d] * U[e,0,h,d])) * sum(d, X[t,d] * U[e,1,h,d])
Y[t,o] += H[t,e,h] * V[e,o,h]
"""


def experts(count: int, place: Place, ratio: float | None = None) -> Case:
    """Experts with gated units; the gate chooses two experts for each token."""
    given = _Given.of(count, place)
    case = given.row(f"experts-{count}", 1)
    case.expected = lambda: given.double().looped()
    return _asked(case, given.ours, given.theirs(), ratio)


def step(count: int, place: Place, ratio: float | None = None) -> Case:
    """Forward and backward: gradients of tokens and gate weights, concatenated; matrix gradients are computed too."""
    given = _Given.of(count, place)
    case = given.row(f"experts-step-{count}", 3)
    trained = given.trained()
    wide = given.double().trained()
    case.expected = lambda: wide.gradients(wide.looped)()
    theirs = {name: call and trained.gradients(call) for name, call in trained.theirs().items()}
    return _asked(case, trained.gradients(trained.ours), theirs, ratio)


def _asked(
    case: Case, ours: Call, theirs: Mapping[str, Callable[[], Any] | None], ratio: float | None
) -> Case:
    """Case with its contenders; the target ratio is against the fastest implementation of transformers."""
    case = against(case, ours, theirs)
    present = tuple(name for name, call in theirs.items() if call is not None)
    case.targets = [Target("sparsify", present, ratio, "the fastest of transformers'")] if present else []
    return case


@dataclass(frozen=True)
class _Given:
    """Operands of a mixture of experts.

    Attributes:
        x: token features [tokens, channels].
        up: first matrices [experts, 2 * inside, channels].
        down: second matrices [experts, channels, inside].
        weights: gate weights of the chosen experts, [tokens, CHOSEN].
        chosen: numbers of the chosen experts, [tokens, CHOSEN].
    """

    x: Tensor
    up: Tensor
    down: Tensor
    weights: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, count: int, place: Place) -> "_Given":
        """Random operands of a mixture with `count` experts."""
        tokens, width, hidden = (scaled(size, place) for size in (TOKENS, WIDTH, HIDDEN))
        numbers = torch.Generator().manual_seed(0)
        x = torch.randn(tokens, width, generator=numbers)
        up = torch.randn(count, 2 * hidden, width, generator=numbers) / width**0.5
        down = torch.randn(count, width, hidden, generator=numbers) / hidden**0.5
        weights, chosen = torch.randn(tokens, count, generator=numbers).softmax(-1).topk(CHOSEN)
        return cls(x, up, down, weights, chosen)

    def row(self, name: str, passes: int) -> Case:
        """Case without contenders; each pass counts the work of one forward pass."""
        (tokens, width), (count, _, hidden) = self.x.shape, self.down.shape
        size = ITEM * (self.up.numel() + self.down.numel())
        return row(
            name,
            f"{count} experts, {CHOSEN} a token, {tokens} tokens, {width} channels, {hidden} inside",
            None,
            Work(
                passes * 6.0 * self.chosen.numel() * width * hidden,
                passes * size + ITEM * tokens * width,
                0.0,
                ITEM * tokens * width,
            ),
        )

    def double(self) -> "_Given":
        """Operands in float64."""
        return self._with(Tensor.double)

    def trained(self) -> "_Given":
        """Operands as leaves with gradients."""
        return self._with(lambda tensor: tensor.clone().requires_grad_())

    def _with(self, change: Callable[[Tensor], Tensor]) -> "_Given":
        """Operands with `change` applied to each floating point tensor."""
        x, up, down, weights = map(change, (self.x, self.up, self.down, self.weights))
        return _Given(x, up, down, weights, self.chosen)

    def gradients(self, call: Call) -> Call:
        """Gradients of tokens and gate weights through a call; gradients of the matrices are computed too."""
        leaves = (self.x, self.up, self.down, self.weights)
        numbers = torch.Generator().manual_seed(1)
        gradient = torch.randn(self.x.shape, generator=numbers).to(self.x.dtype)

        def called() -> Tensor:
            found = torch.autograd.grad(call(), leaves, gradient)
            return torch.cat((found[0].flatten(), found[-1].flatten()))

        return called

    def ours(self) -> Tensor:
        """One kernel over the entries of a gate in CSC: the tokens of each expert."""
        (tokens, _), (count, width, hidden) = self.x.shape, self.down.shape
        token = torch.arange(tokens).repeat_interleave(CHOSEN)
        places = torch.stack((token, self.chosen.flatten()))
        gate = sparsify.tensor((places, self.weights.flatten(), (tokens, count)), "csc")
        parts = self.up.view(count, 2, hidden, width)
        found: Tensor = sparsify.evaluate(TEXT, "Y", G=gate, X=self.x, U=parts, V=self.down)
        return found

    def looped(self) -> Tensor:
        """Mixture by a loop over experts, each on its own tokens."""
        result = torch.zeros_like(self.x)
        # `unbind` once: the gradient of an indexed matrix would be as large as the whole stack.
        for expert, (up, down) in enumerate(zip(self.up.unbind(), self.down.unbind(), strict=True)):
            token, place = torch.where(self.chosen == expert)
            gate, rows = linear(self.x[token], up).chunk(2, -1)
            rows = linear(silu(gate) * rows, down)
            result = result.index_add(0, token, rows * self.weights[token, place, None])
        return result

    def theirs(self) -> dict[str, Call | None]:
        """Implementations of transformers by name; `None` without transformers."""
        return {name: self._of(name) for name in IMPLEMENTATIONS}

    def _of(self, name: str) -> Call | None:
        """Experts of transformers' Mixtral with one of its implementations."""
        try:
            module: Any = import_module("transformers.models.mixtral.modeling_mixtral")
        except ImportError:
            return None
        count, width, hidden = self.down.shape
        config = SimpleNamespace(
            num_local_experts=count,
            hidden_size=width,
            intermediate_size=hidden,
            hidden_act="silu",
            _experts_implementation=name,
        )
        with torch.device("meta"):
            found = module.MixtralExperts(config)
        # Parameters are replaced by the operands, so that gradients reach the operands.
        del found.gate_up_proj, found.down_proj
        found.gate_up_proj, found.down_proj = self.up, self.down
        return lambda: found(self.x, self.chosen, self.weights)
