"""Unlabelled texts for encoders: tokens of the texts of a data set, of a file, or generated.

In: `sentences("ag_news", root, tokenizer_file, 128)`. Out: `Sentences`: tokens [texts, seq] for training and for
validation, with the number of tokens of each text; the rest of a row is padding.
"""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.errors import DataError, SparsifyError
from sparsify.models.data.folders import find
from sparsify.models.data.text import FOLDERS, rows

ALL: Final = "texts"
"""The name of all data sets of texts that are there."""
SOURCES: Final = {**FOLDERS, "yahoo_answers": "yahoo_answers_csv", "yahoo_2class": "yahoo_answers_2class_csv"}
VALIDATED: Final = 500
SHARE: Final = 0.9
# Maximum characters of a part; reviews and answers of many sentences are cut into parts.
LONGEST: Final = 400
GENERATED: Final = (512, 64)
Tokens = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Sentences:
    """Tokens [texts, seq] and lengths [texts] for training and validation, the source, and the split in words."""

    name: str
    train: Tokens
    val: Tokens
    split: str


def sentences(
    name: str, root: Path | None, tokenizer: Path, seq: int, vocabulary: int, seed: int = 0
) -> Sentences:
    """Texts called `name`: a data set, `texts` for all data sets of texts under `root`, or else a file.

    Validation takes the first texts of a test split (AG News' if present), or the last tenth of a file.

    Raises:
        DataError: files are missing or cannot be read, or there is no tokenizer.
    """
    if name == "synthetic":
        return generated(seq, vocabulary, seed)
    if name not in (ALL, *FOLDERS):
        lines = of_file(Path(name).expanduser())
        at = int(SHARE * len(lines))
        train, val, split = lines[:at], lines[at:][:VALIDATED], "the last tenth"
    else:
        folders = [
            found
            for key, folder in SOURCES.items()
            if name in (ALL, key) and root and (found := find((folder, "."), root, "train.csv.gz"))
        ]
        if not folders:
            wanted = ", ".join(folder for key, folder in SOURCES.items() if name in (ALL, key))
            raise DataError(
                f"{name} is not here: looked for {wanted} with train.csv.gz under {root or 'no data root'}",
                "--data-root names the folder that holds it, --dataset synthetic needs no files",
            )
        val = rows(folders[0] / "test.csv.gz")[:VALIDATED]
        held = set(val)
        train = [
            part
            for folder in folders
            for written in rows(folder / "train.csv.gz")
            if written not in held
            for part in parts(written)
        ]
        split = f"the first {len(val)} texts of {folders[0].name}/test.csv.gz"
    if not train or not val:
        raise DataError(f"{name} has {len(train)} texts to learn from and {len(val)} to validate on", "more")
    encode = encoder(tokenizer, seq)
    return Sentences(name, encode(train), encode(val), split)


def parts(written: str) -> list[str]:
    """Parts of a text of some hundred characters, cut between sentences.

    >>> [len(part) for part in parts("A sentence. " * 60)]
    [395, 323]
    """
    found = [""]
    for sentence in re.split(r"(?<=[.!?])\s+", written.strip()):
        if found[-1] and len(found[-1]) + len(sentence) >= LONGEST:
            found.append("")
        found[-1] = f"{found[-1]} {sentence}".strip()
    return [part for part in found if part]


def of_file(file: Path) -> list[str]:
    """Nonempty lines of a text file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(
            f"the text {file} cannot be read: {error.strerror}",
            f"a file, or one of synthetic, {ALL}, {', '.join(FOLDERS)}",
        ) from None
    return [line.strip() for line in lines if line.strip()]


def encoder(file: Path, seq: int) -> Any:
    """Function from texts to their tokens [texts, seq] and lengths [texts].

    Raises:
        DataError: there is no tokenizer.
        SparsifyError: tokenizers are not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise SparsifyError(
            "texts need the package tokenizers, which is not installed", "pip install 'sparsify-fx[text]'"
        ) from error
    if not file.is_file():
        raise DataError(
            f"there is no tokenizer {file}", "weights=DIR with tokenizer.json, or --dataset synthetic"
        )
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(seq)
    return lambda given: padded([one.ids for one in tokenizer.encode_batch(list(given))], seq)


def padded(found: Sequence[Sequence[int]], seq: int) -> Tokens:
    """Lists of tokens as one padded tensor, and their lengths."""
    tokens = torch.zeros(len(found), seq, dtype=torch.int64)
    for row, ids in zip(tokens, found, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens, torch.tensor([len(ids) for ids in found])


def generated(seq: int, vocabulary: int, seed: int) -> Sentences:
    """Random tokens of random lengths; no files are needed."""
    draw = random.Random(seed)

    def some(count: int) -> Iterable[list[int]]:
        lengths = [draw.randint(min(2, seq), seq) for _ in range(count)]
        return [[draw.randrange(vocabulary) for _ in range(length)] for length in lengths]

    train, val = (padded(list(some(count)), seq) for count in GENERATED)
    return Sentences("synthetic", train, val, "others drawn after them")
