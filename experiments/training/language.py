"""Training steps of a GPT with pruned feed-forward layers.

In: `step(90, place)`. Out: a `Case` of whole steps, from tokens to the optimizer; losses of the first steps are
compared with those of the dense model under the same masks.
"""

import copy
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import sparsify
from experiments.training import sparselab
from experiments.training.steps import RATE
from sparsify.bench.harness import Case, Contender, Target, WrongResultError
from sparsify.bench.linear import Weight
from sparsify.bench.place import Place
from sparsify.bench.products import scaled
from sparsify.models.data import text
from sparsify.models.gpt import GPT, gpt_40m
from sparsify.training import set_mask

NAMES: Final = "param:*.ffn.*.weight"
TEXTS, TOKENS = 8, 128
# Number of steps with compared losses, and their learning rate, large enough for falling losses.
COMPARED, FAST = 4, 1e-3
# Relative tolerance of losses under equal masks: the order of sums differs.
TOLERANCE: Final = 2e-4


def step(zeros: int, place: Place, *, asked: tuple[float, float]) -> Case:
    """A step of GPT with 40 million parameters, with AdamW, against torch dense and SparseLab."""
    net = model(place)
    for layer in pruned(net):
        with torch.no_grad():
            layer.weight *= Weight(zeros).mask(*layer.weight.shape)
    batches = Batches(place)
    case = Case(f"gpt-{zeros}", f"{net.__class__.__name__}, {TEXTS} x {TOKENS} tokens", batches.name, [], [])
    rule = {"targets": NAMES, "source": "given"}
    recipe = {"name": "fixed", "sparsify": [rule]}
    ours = case.prepare(
        "apply",
        lambda: sparsify.apply(copy.deepcopy(net), recipe, batches[0][0], verify=False, inplace=True),
    )
    known = {"sparsify": ours, "torch": net}
    if (rival := with_sparselab(net)) is None:
        case.missing.append(sparselab.NAME)
    else:
        known[sparselab.NAME] = rival
    require_equal_losses(
        case.name, {who: made for who, made in known.items() if who != "torch"}, net, batches
    )
    for who, made in known.items():
        timed = Step(made, batches[0])
        case.contenders.append(Contender(who, timed, baseline=who != "sparsify", is_checked=False))
    for who, ratio in zip(list(known)[1:], asked, strict=False):
        case.targets.append(Target("sparsify", (who,), ratio, who))
    if reasons := {entry.reason for entry in ours.report.dense}:
        case.work += f"; dense: {sorted(reasons)[0]}"
    return case


def model(place: Place) -> GPT:
    """GPT with 40 million parameters; layers and width shrink with the scale."""
    torch.manual_seed(0)
    hidden = 64 * max(1, scaled(10, place))
    return gpt_40m(max(1, scaled(8, place)), hidden, hidden // 64).train()


def pruned(net: nn.Module) -> Iterator[nn.Linear]:
    """Feed-forward layers."""
    return (layer for path, layer in net.named_modules() if isinstance(layer, nn.Linear) and ".ffn." in path)


def with_sparselab(net: nn.Module) -> nn.Module | None:
    """Model with SparseLab's layers, `None` if the package is missing."""
    made = copy.deepcopy(net)
    for path, layer in list(made.named_modules()):
        if isinstance(layer, nn.Linear) and ".ffn." in path:
            if (found := sparselab.layer(layer)) is None:
                return None
            made.set_submodule(path, found)
    return made


class Batches:
    """Pieces of AG News, or of a generated text, and the following characters as labels.

    Attributes:
        name: name of the text.
    """

    def __init__(self, place: Place) -> None:
        is_real = place.root is not None and place.scale == 1 and (place.root / "ag_news_csv").is_dir()
        self.name = "ag_news" if is_real else "synthetic"
        found = text(self.name, place.root if is_real else None)
        self.tokens = found.train
        self.size, self.length = (max(1, scaled(size, place)) for size in (TEXTS, TOKENS))

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(at)
        starts = torch.randint(len(self.tokens) - self.length, (self.size,), generator=draw)
        pieces = self.tokens[starts[:, None] + torch.arange(self.length + 1)]
        return pieces[:, :-1], pieces[:, 1:]


class Step:
    """A step on one batch; a call returns the loss."""

    def __init__(self, made: nn.Module, batch: tuple[Tensor, Tensor], rate: float = RATE) -> None:
        self.made, self.batch = made, batch
        self.optimizer = optim.AdamW(made.parameters(), rate)

    def __call__(self) -> float:
        tokens, labels = self.batch
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.made(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def losses(made: nn.Module, batches: Batches) -> list[float]:
    """Losses of the first steps; the state of the model is restored afterwards."""
    state = copy.deepcopy(made.state_dict())
    stepped = Step(made, batches[0], FAST)
    found = []
    for at in range(COMPARED):
        stepped.batch = batches[at]
        found.append(stepped())
    made.load_state_dict(state)
    return found


def require_equal_losses(name: str, known: dict[str, nn.Module], net: nn.Module, batches: Batches) -> None:
    """Raises if the losses of a model differ from those of the dense model under the same masks."""
    masked = copy.deepcopy(net)
    for layer in pruned(masked):
        set_mask(layer.weight, layer.weight.detach() != 0)
    expected = losses(masked, batches)
    for who, made in known.items():
        found = losses(made, batches)
        error = max(abs(one - other) / other for one, other in zip(found, expected, strict=True))
        if not error <= TOLERANCE:
            raise WrongResultError(f"{name}: losses of {who} are {found}, not {expected}")
