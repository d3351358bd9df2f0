"""Figure 7: text classification with BigBird on IMDB, AG News and Yahoo! Answers, inference.

In: a `Setting`. Out: the figure: sparsify, transformers' block-sparse layer and full attention, with accuracies.

Sizes and training as in appendix E.4 (table 3). The pattern is transformers': windows of three blocks, first and last
block global. Weights are trained with full attention on shorter texts and shared by all contenders, since training
transformers' block-sparse layer takes hours on a CPU; the note of each row says so.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

import sparsify
from sparsify.bench.harness import Case, Contender
from sparsify.errors import SparsifyError
from sparsify.runner.attention import DENSE

from ..reproduce.figure import OURS, Figure, Outcome, Row, Setting, timed
from .texts import FOLDERS, VOCABULARY, Part, texts

BLOCK, RANDOM = 16, 2  # table 3
LR, BATCH, EPOCHS = 0.001, 64, 5
SEQ: Final = {"imdb": 512, "ag_news": 256, "yahoo_answers": 512}
LEARNED_SEQ: Final = 128
TEST_TEXTS, QUICK_TEXTS, QUICK_BATCH = 512, 128, 16
BLOCK_SPARSE, FULL = "transformers block_sparse", "transformers full attention"
RECIPE: Final = {
    "schema": 1,
    "name": "bigbird-own-pattern",
    "sparsify": [
        {"id": "attention", "targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "given"}},
        DENSE,
    ],
}


def classifier(classes: int, vocabulary: int, attention: str) -> Any:
    """BigBird with the sizes of table 3.

    Raises:
        SparsifyError: transformers is not installed.
    """
    try:
        from transformers import BigBirdConfig, BigBirdForSequenceClassification
    except ImportError as error:
        raise SparsifyError(
            "BigBird is that of transformers, which is not installed", "pip install 'sparsify-fx[text]'"
        ) from error
    config = BigBirdConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_act="gelu",
        attention_probs_dropout_prob=0.1,
        hidden_dropout_prob=0.1,
        max_position_embeddings=max(SEQ.values()),
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        num_labels=classes,
        attention_type=attention,
    )
    return BigBirdForSequenceClassification(config)


def train(model: Any, part: Part, epochs: int, seed: int) -> None:
    """Trains with AdamW on the cross entropy; the model ends in evaluation mode."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(part.classes), generator=draw).split(BATCH):
            optimizer.zero_grad()
            tokens, mask = part.tokens[chosen, :LEARNED_SEQ], part.mask[chosen, :LEARNED_SEQ]
            F.cross_entropy(
                model(input_ids=tokens, attention_mask=mask).logits, part.classes[chosen]
            ).backward()
            optimizer.step()
    model.eval()


def accuracy(model: Any, part: Part, batch: int) -> float:
    """Share of correctly classified texts, over whole batches."""
    right = 0
    for tokens, mask, classes in zip(
        part.tokens.split(batch), part.mask.split(batch), part.classes.split(batch), strict=True
    ):
        if len(tokens) == batch:
            right += int((_logits(model, tokens, mask).argmax(1) == classes).sum())
    return right / max(1, len(part.classes) // batch * batch)


def _logits(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    found: Tensor = model(input_ids=tokens, attention_mask=mask).logits
    return found


def measure(name: str, setting: Setting) -> Outcome:
    """Times and accuracies on one data set."""
    batch = QUICK_BATCH if setting.quick else BATCH
    most = QUICK_TEXTS if setting.quick else None
    part, test, classes = texts(name, setting.root, SEQ[name], most)
    test = Part(test.tokens[:TEST_TEXTS], test.mask[:TEST_TEXTS], test.classes[:TEST_TEXTS])
    vocabulary = max(30522, int(part.tokens.max()) + 1)
    full = classifier(classes, vocabulary, "original_full")
    epochs = 1 if setting.quick else EPOCHS
    train(full, part, epochs, setting.seed)
    model = classifier(classes, vocabulary, "block_sparse").eval()
    model.load_state_dict(full.state_dict())
    inputs = {"input_ids": test.tokens[:batch], "attention_mask": test.mask[:batch]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings of transformers
        sparse = sparsify.apply(model, RECIPE, (inputs["input_ids"], inputs["attention_mask"]))
        expected = _logits(model, **_named(inputs)).double()
        case = Case(
            name, f"{batch} texts of {SEQ[name]} tokens", name, [], [], lambda: expected, tolerance=1e-3
        )
        case.contenders += [
            Contender(OURS, partial(_logits, sparse, **_named(inputs)), baseline=False),
            Contender(BLOCK_SPARSE, partial(_logits, model, **_named(inputs))),
            Contender(FULL, partial(_logits, full, **_named(inputs)), is_checked=False),
        ]
        times = timed(case, setting, seconds=20.0, runs=10)
        reached = {who: accuracy(m, test, batch) for who, m in ((OURS, sparse), (FULL, full))}
    facts = {"accuracy": reached[OURS], "accuracy of full attention": reached[FULL], "tokens": SEQ[name]}
    note = f"{len(part.classes)} texts, {epochs} epochs, learned with full attention on {LEARNED_SEQ} tokens"
    return Outcome(times, {}, facts, f"{'quick: ' if setting.quick else ''}{note}; batch {batch}")


def _named(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs by the parameter names of `_logits`."""
    return {"tokens": inputs["input_ids"], "mask": inputs["attention_mask"]}


def rows(setting: Setting) -> Sequence[Row]:
    """Rows of the three data sets."""
    seconds = 60.0 if setting.quick else 300.0
    return [
        Row(name, name, partial(measure, name), (f"{folder}/*.csv.gz", VOCABULARY), seconds)
        for name, folder in FOLDERS.items()
    ]


FIGURE = Figure(
    "figure7",
    "BigBird text classification",
    rows,
    FULL,
    "1.24x (IMDB), 1.14x (AG News) and 1.05x (Yahoo! Answers) of the dense PyTorch implementation.",
    numbers={"imdb": "1.24x", "ag_news": "1.14x", "yahoo_answers": "1.05x"},
    facts=("accuracy", "accuracy of full attention", "tokens"),
    why={FULL: "of such short texts attention is a small part, and its pattern keeps most of the scores"},
)
