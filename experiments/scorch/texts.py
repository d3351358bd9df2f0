"""Classified texts as tokens of BERT's vocabulary.

In: `texts("imdb", root, 512)`. Out: tokens [n, 512], masks [n, 512] and classes [n], for training and for test.
"""

import csv
import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.errors import DataError, SparsifyError
from sparsify.models.data.folders import find

FOLDERS: Final = {"imdb": "imdb_csv", "ag_news": "ag_news_csv", "yahoo_answers": "yahoo_answers_csv"}
VOCABULARY: Final = "vocab/bert-base-uncased-vocab.txt"


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [n, seq], mask [n, seq] with 0 at padding, and classes [n] from 0."""

    tokens: Tensor
    mask: Tensor
    classes: Tensor


def texts(name: str, root: Path | None, seq: int, most: int | None = None) -> tuple[Part, Part, int]:
    """Training and test part of a data set, at most `most` texts each, and the number of classes.

    Raises:
        DataError: files are missing or cannot be read.
        SparsifyError: transformers is not installed.
    """
    place = None if root is None else find((FOLDERS[name],), root, "train.csv.gz")
    if place is None or root is None or not (root / VOCABULARY).is_file():
        raise DataError(
            f"{name} is not here: looked for {FOLDERS[name]}/train.csv.gz and {VOCABULARY} "
            f"under {root or 'no data root'}",
            "--data-root names the folder that holds them; the vocabulary is that of bert-base-uncased",
        )
    tokenizer = _tokenizer(root / VOCABULARY)
    train, test = (_part(place / f"{part}.csv.gz", tokenizer, seq, most) for part in ("train", "test"))
    return train, test, int(train.classes.max()) + 1


def _tokenizer(vocabulary: Path) -> Any:
    """BERT's tokenizer, from its vocabulary file alone."""
    try:
        from transformers import BertTokenizer
    except ImportError as error:
        raise SparsifyError(
            "texts are cut into tokens by transformers, which is not installed",
            "pip install 'sparsify-fx[text]'",
        ) from error
    return BertTokenizer(str(vocabulary))


def _part(file: Path, tokenizer: Any, seq: int, most: int | None) -> Part:
    """Texts of a CSV file with the class first, followed by the columns of the text (one column in IMDB)."""
    try:
        content = gzip.decompress(file.read_bytes()).decode(errors="replace")
        read = [row for row in csv.reader(io.StringIO(content)) if row][:most]
        classes = torch.tensor([int(row[0]) - 1 for row in read])
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise DataError(f"{file} cannot be read: {error}", "fetch the file again") from None
    last = 2 if file.parent.name == FOLDERS["imdb"] else None
    written = [" ".join(part for part in row[1:last] if part) for row in read]
    found = tokenizer(written, padding="max_length", truncation=True, max_length=seq, return_tensors="pt")
    return Part(found["input_ids"], found["attention_mask"], classes)
