"""Fine-tuning under zeros: a BERT classifier of AG News is pruned during training, then runs in sparse kernels.

In: a `Setting`. Out: the table: unstructured, n:m:g and blocked zeros over sparsities, accuracies, times of inference.
Pretrained weights of BERT are not available, so a small BERT is first trained on the texts without zeros, once for all
rows; its weights are cached. Every row continues from these weights under the masks of `gradual.py`.
"""

import copy
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparsify
from sparsify import options
from sparsify.bench.harness import Case, Contender
from sparsify.bench.linear import prepacked
from sparsify.errors import SparsifyError
from sparsify.models import checkpoint
from sparsify.models.train import Training

from ..reproduce.figure import OURS, Fact, Figure, Outcome, Row, Setting, timed
from ..scorch.texts import FOLDERS, VOCABULARY, Part, texts
from .gradual import Structure, given, recipe, rows_of

DATASET: Final = "ag_news"
FILES: Final = (f"{FOLDERS[DATASET]}/*.csv.gz", VOCABULARY)
LAYERS, HIDDEN, HEADS, INTERMEDIATE = 2, 256, 4, 1024
TOKENS, BATCH, TEST_TEXTS, TEST_BATCH = 64, 32, 2000, 64
LR, FINE_LR = 1e-3, 5e-4
EPOCHS, FINE_EPOCHS = 4, 2
QUICK_TEXTS, QUICK_TEST_TEXTS, QUICK_STEPS, QUICK_FINE_STEPS = 2000, 256, 60, 20
PERCENT: Final = (50, 75, 90, 95)
QUICK_PERCENT: Final = 90
STRUCTURES: Final[tuple[Structure, ...]] = ("unstructured", "n:m:g", "blocks")
STAGES: Final = tuple(f"bert.encoder.layer.{layer}." for layer in range(LAYERS))
TYPES: Final = "Linear"
TUNE_SECONDS: Final = 0.3  # for candidates of a region when quick
DENSE, ONEDNN = "torch dense", "oneDNN dense"


def classifier(classes: int, vocabulary: int) -> Any:
    """A small BERT with a classifier.

    Raises:
        SparsifyError: transformers is not installed.
    """
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError as error:
        raise SparsifyError(
            "BERT is that of transformers, which is not installed", "pip install 'sparsify-fx[text]'"
        ) from error
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INTERMEDIATE,
        max_position_embeddings=TOKENS,
        num_labels=classes,
    )
    return BertForSequenceClassification(config)


@lru_cache(maxsize=1)
def parts(root: Path | None, is_quick: bool) -> tuple[Part, Part, int]:
    """Texts for training and for test, and the number of classes.

    Raises:
        DataError: the files are missing.
    """
    part, test, classes = texts(DATASET, root, TOKENS, QUICK_TEXTS if is_quick else None)
    most = QUICK_TEST_TEXTS if is_quick else TEST_TEXTS
    test = Part(*(column[:most] for column in (test.tokens, test.mask, test.classes)))
    return part, test, classes


def dense(setting: Setting) -> Any:
    """Classifier trained without zeros, from the cache if possible."""
    part, test, classes = parts(setting.root, setting.quick)
    torch.manual_seed(setting.seed)
    model = classifier(classes, max(30522, int(part.tokens.max()) + 1))
    count = QUICK_STEPS if setting.quick else EPOCHS * -(-len(part.classes) // BATCH)
    determinants = {
        "sizes": (LAYERS, HIDDEN, HEADS, INTERMEDIATE, TOKENS, BATCH),
        "steps": (count, LR, setting.seed),
        "texts": [int(column.sum()) for column in (part.tokens, part.mask, part.classes)],
    }
    file = checkpoint.path("bert-classifier", DATASET, determinants)
    if checkpoint.read(file, model) is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        train(model, optimizer, part, count, setting.seed)
        reached = accuracy(model, test)
        checkpoint.write(file, model, Training(EPOCHS, 0.0, reached))
    return model.eval()


def train(model: Any, optimizer: Any, part: Part, count: int, seed: int, after: Any = None) -> None:
    """Trains `count` steps on the cross entropy, with a call of `after` per step; the model ends in evaluation mode."""
    draw = torch.Generator().manual_seed(seed)
    model.train()
    order: list[Tensor] = []
    for _ in range(count):
        order = order or list(torch.randperm(len(part.classes), generator=draw).split(BATCH))
        chosen = order.pop()
        optimizer.zero_grad()
        F.cross_entropy(
            logits(model, part.tokens[chosen], part.mask[chosen]), part.classes[chosen]
        ).backward()
        optimizer.step()
        if after is not None:
            after()
    model.eval()


def logits(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Logits [texts, classes]."""
    found: Tensor = model(input_ids=tokens, attention_mask=mask).logits
    return found


def accuracy(model: Any, part: Part) -> float:
    """Share of correctly classified texts, in batches of one size."""
    right = count = 0
    with torch.no_grad():
        for tokens, mask, classes in zip(
            *(column.split(TEST_BATCH) for column in (part.tokens, part.mask, part.classes)), strict=True
        ):
            if len(classes) == TEST_BATCH:
                right += int((logits(model, tokens, mask).argmax(1) == classes).sum())
                count += len(classes)
    return right / max(1, count)


def measure(structure: Structure, percent: int, setting: Setting) -> Outcome:
    """Accuracy with and without fine-tuning, and times of inference."""
    part, test, _ = parts(setting.root, setting.quick)
    model = dense(setting)
    facts: dict[str, Fact] = {"accuracy, no zeros": accuracy(model, test)}
    at_once = copy.deepcopy(model)
    prune(at_once, part, recipe(structure, percent, 0, STAGES, TYPES), 0, setting)
    count = QUICK_FINE_STEPS if setting.quick else FINE_EPOCHS * -(-len(part.classes) // BATCH)
    masks = prune(model, part, recipe(structure, percent, count, STAGES, TYPES), count, setting)
    model.requires_grad_(False)
    inputs = test.tokens[:TEST_BATCH], test.mask[:TEST_BATCH]
    seconds = options.current().tune_seconds
    named = {"input_ids": inputs[0], "attention_mask": inputs[1]}
    with options.override(tune_seconds=min(seconds, TUNE_SECONDS) if setting.quick else seconds):
        sparse = sparsify.apply(model, given(STAGES, TYPES), named)
        logits(sparse, *inputs)
    facts = {
        "accuracy": accuracy(sparse, test),
        "accuracy of torch": accuracy(model, test),
        "accuracy, not fine-tuned": accuracy(at_once, test),
        **facts,
        "zeros, %": 100 * (1 - sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)),
        "regions": len(sparse.report.regions),
    }
    quick = "quick: " if setting.quick else ""
    note = f"{quick}{count} steps of {BATCH} under zeros; {len(part.classes)} texts of {TOKENS} tokens"
    return Outcome(timed(_case(model, sparse, inputs, percent), setting), {}, facts, note)


def prune(model: Any, part: Part, rules: dict[str, Any], count: int, setting: Setting) -> list[Tensor]:
    """Trains a model under the masks of a recipe; returns the final masks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=FINE_LR)
    pruner = sparsify.Pruner(model, optimizer, rules, seed=setting.seed)
    train(model, optimizer, part, count, setting.seed + 1, pruner.step)
    return list(pruner.masks.values())


def _case(model: nn.Module, sparse: Any, inputs: tuple[Tensor, Tensor], percent: int) -> Case:
    """Inference of a batch."""
    wide: Any = copy.deepcopy(model).double()
    with torch.no_grad():
        expected = logits(wide, *inputs)
    case = Case(f"{percent} %", f"{len(inputs[0])} texts", DATASET, [], [], lambda: expected, tolerance=1e-3)
    models = {OURS: sparse, DENSE: model}
    if torch.backends.mkldnn.is_available():
        models[ONEDNN] = prepacked(model, inputs[0].numel())
    case.contenders += [
        Contender(who, partial(_without_gradients, made, inputs), baseline=who != OURS)
        for who, made in models.items()
    ]
    return case


def _without_gradients(model: Any, inputs: tuple[Tensor, Tensor]) -> Tensor:
    """Logits of a batch."""
    with torch.no_grad():
        return logits(model, *inputs)


def rows(setting: Setting) -> Sequence[Row]:
    """Each structure at each sparsity; one sparsity when quick."""
    percents, seconds = ((QUICK_PERCENT,), 20.0) if setting.quick else (PERCENT, 150.0)
    return rows_of(STRUCTURES, percents, measure, DATASET, FILES, seconds)


FIGURE = Figure(
    "texts",
    "fine-tuning under zeros: BERT on AG News",
    rows,
    DENSE,
    "names fine-tuning for sparsity as a use (section 5) and gives no numbers.",
    facts=(
        "accuracy",
        "accuracy of torch",
        "accuracy, not fine-tuned",
        "accuracy, no zeros",
        "zeros, %",
        "regions",
    ),
    why={
        DENSE: "embeddings, attention and norms, which zeros do not save, are much of a layer of so few features",
        ONEDNN: "its packed dense products cost little at so few features; attention and norms are the same for both",
    },
)
