"""Trained weights in the cache.

In: the determinants of a training. Out: a safetensors file, found again by a second run; no pickle.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from sparsify.models import cache
from sparsify.models.train import Training

LAYOUT = 1


def path(model: str, dataset: str, determinants: Mapping[str, Any]) -> Path:
    """File for weights of `model` on `dataset`; other `determinants` give another file."""
    text = json.dumps([LAYOUT, model, dataset, determinants], sort_keys=True, default=str)
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return cache.folder("checkpoints") / f"{model}-{dataset}-{key}.safetensors"


def write(file: Path, model: nn.Module, training: Training) -> None:
    """Writes the weights of `model` and the summary of its training atomically."""
    tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    cache.keep(file, save(tensors, metadata={"training": json.dumps(asdict(training))}))


def read(file: Path, model: nn.Module) -> Training | None:
    """Loads the weights in `file` into `model`; None if the file is missing or does not fit."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            names = stored.keys()
            tensors: dict[str, torch.Tensor] = {name: stored.get_tensor(name) for name in names}
            training = Training(**json.loads((stored.metadata() or {})["training"]))
        model.load_state_dict(tensors)
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError):
        return None
    model.eval()
    return training
