"""Random inputs for models without a graph: shapes and zeros suffice for times and errors.

In: the registered `bert`, a model, batch 8, seq 128. Out: tokens [8, 128] and `8 x 128 tokens`.
"""

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.errors import SparsifyError
from sparsify.models import data
from sparsify.models.registry import Entry

BATCH: Final = {"features": 256, "pixels": 64, "bags": 512, "tokens": 8, "images": 4}
SEQ: Final = 128
# Default number of tokens of a batch; longer texts reduce the batch size, down to 1.
TOKENS: Final = 1024
# Share of nonzero pixels, as in MNIST.
DENSITY: Final = 0.19
# Rows of a table in a bag.
LOOKUPS: Final = 20


def sample(
    entry: Entry,
    model: nn.Module,
    batch: int | None,
    seq: int | None,
    seed: int,
    dataset: str = "random",
    data_root: Path | None = None,
) -> tuple[tuple[Tensor, ...], str]:
    """Arguments of one pass and their description; `None` for default sizes, texts of 8 x 128 or 1 x 4096 tokens.

    Raises:
        SparsifyError: the model has fewer positions than `seq`, or other features than the data set.
        DataError: the data set is missing.
    """
    rows = BATCH[entry.inputs] if batch is None else batch
    generator = torch.Generator().manual_seed(seed)
    match entry.inputs:
        case "bags":
            return bags(model, rows, generator)
        case "features" | "pixels":
            columns = next(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
            if dataset == "mnist":
                return pixels_of(data.mnist(data_root), rows, columns)
            x = torch.randn(rows, columns, generator=generator)
            if entry.inputs == "pixels":
                x = x.abs().clamp(max=1) * (torch.rand(rows, columns, generator=generator) < DENSITY)
            return (x,), f"{rows} rows of {columns} features"
        case "images":
            config: Any = model.config
            shape = (rows, config.num_channels, config.image_size, config.image_size)
            return (torch.randn(shape, generator=generator),), f"{rows} images of {shape[2]} x {shape[3]}"
    return tokens(entry, model, batch, seq, generator)


def tokens(
    entry: Entry, model: nn.Module, batch: int | None, seq: int | None, generator: torch.Generator
) -> tuple[tuple[Tensor, ...], str]:
    """Random texts; the default batch has 1024 tokens."""
    config: Any = model.config
    count = min(SEQ, config.max_position_embeddings) if seq is None else seq
    if count > config.max_position_embeddings:
        raise SparsifyError(
            f"--seq {count}: {entry.name} has {config.max_position_embeddings} positions",
            f"positions={count} makes one with more",
        )
    usual = max(1, min(BATCH["tokens"], TOKENS // count))
    rows = usual if batch is None else batch
    more = f" (--batch {BATCH['tokens']} for more)" if batch is None and rows < BATCH["tokens"] else ""
    drawn = torch.randint(0, config.vocab_size, (rows, count), generator=generator)
    return (drawn,), f"{rows} x {count} tokens{more}"


def bags(model: nn.Module, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], str]:
    """Dense numbers, and random rows of each table."""
    tables = [module for module in model.modules() if isinstance(module, nn.EmbeddingBag)]
    columns = next(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
    named = [torch.randint(0, table.num_embeddings, (rows, LOOKUPS), generator=generator) for table in tables]
    text = f"{rows} examples, {LOOKUPS} rows of each of {len(tables)} tables"
    return (torch.randn(rows, columns, generator=generator), torch.stack(named)), text


def pixels_of(images: Tensor, rows: int, columns: int) -> tuple[tuple[Tensor, ...], str]:
    """First `rows` images."""
    if images.shape[1] != columns:
        raise SparsifyError(
            f"mnist has {images.shape[1]} pixels, the model {columns} features",
            f"features={images.shape[1]}",
        )
    if rows > len(images):
        raise SparsifyError(f"--batch {rows}: mnist has {len(images)} test images", "a smaller batch")
    return (images[:rows],), f"{rows} images of {images.shape[1]} pixels"
