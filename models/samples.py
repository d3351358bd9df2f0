"""Random inputs of models that do not run on a graph: only their shapes matter for times and differences.

In: the registered `bert`, a model, batch 8, seq 128. Out: tokens [8, 128] and `8 x 128 tokens`.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.errors import SparsifyError
from sparsify.models.registry import Entry

BATCH: Final = {"features": 256, "tokens": 8, "images": 4}
SEQ: Final = 128


def sample(
    entry: Entry, model: nn.Module, batch: int | None, seq: int | None, seed: int
) -> tuple[Tensor, str]:
    """The argument of one pass, and what it is in words; `None` for usual sizes.

    Raises:
        SparsifyError: the model has fewer positions than `seq`.
    """
    rows = BATCH[entry.inputs] if batch is None else batch
    generator = torch.Generator().manual_seed(seed)
    if entry.inputs == "features":
        columns = next(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
        return torch.randn(rows, columns, generator=generator), f"{rows} rows of {columns} features"
    config: Any = model.config
    if entry.inputs == "images":
        shape = (rows, config.num_channels, config.image_size, config.image_size)
        return torch.randn(shape, generator=generator), f"{rows} images of {shape[2]} x {shape[3]}"
    tokens = min(SEQ, config.max_position_embeddings) if seq is None else seq
    if tokens > config.max_position_embeddings:
        raise SparsifyError(
            f"--seq {tokens}: {entry.name} has {config.max_position_embeddings} positions",
            f"positions={tokens} makes one with more",
        )
    drawn = torch.randint(0, config.vocab_size, (rows, tokens), generator=generator)
    return drawn, f"{rows} x {tokens} tokens"
