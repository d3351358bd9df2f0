"""Texts as bytes for character models: of a data set, of any file, or generated.

In: `text("ag_news", Path("/data"))`. Out: a `Text` of tokens for training [n] and for validation [m], int64 below 256.
"""

import csv
import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from sparsify.errors import DataError
from sparsify.models.data.folders import find

FOLDERS: Final = {"ag_news": "ag_news_csv", "imdb": "imdb_csv"}
# Training share of a file; the last tenth is for validation.
SHARE: Final = 0.9
WORDS: Final = 400
SENTENCES: Final = 6000


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens for training and validation, the name of the source, and the split in words."""

    name: str
    train: Tensor
    val: Tensor
    split: str


def text(name: str = "synthetic", root: Path | None = None, seed: int = 0) -> Text:
    """Text called `name`, or the text of a file with such a path.

    Raises:
        DataError: files are missing, cannot be read, or are too short.
    """
    if name == "synthetic":
        return cut(name, generated(seed).encode())
    if name in FOLDERS:
        folder = None if root is None else find((FOLDERS[name], "."), root, "train.csv.gz")
        if folder is None:
            raise DataError(
                f"{name} is not here: looked for {FOLDERS[name]}/train.csv.gz under {root or 'no data root'}",
                "--data-root names the folder that holds it, --dataset FILE takes any text, --dataset synthetic "
                "needs no files",
            )
        train, val = (tokens("\n".join(rows(folder / f"{part}.csv.gz"))) for part in ("train", "test"))
        return Text(name, train, val, "test.csv.gz")
    file = Path(name).expanduser()
    try:
        return cut(file.name, file.read_bytes())
    except OSError as error:
        raise DataError(
            f"the text {name} cannot be read: {error.strerror}",
            f"a file, or one of synthetic, {', '.join(FOLDERS)}",
        ) from None


def is_there(name: str, root: Path) -> bool:
    """Whether a folder of data sets contains the text `name`."""
    return find((FOLDERS[name], "."), root, "train.csv.gz") is not None


def rows(file: Path) -> list[str]:
    """Texts of a compressed CSV; column 1 is a class, and in IMDB column 3 is a file name.

    Raises:
        DataError: it cannot be read.
    """
    try:
        content = gzip.decompress(file.read_bytes()).decode(errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}", "fetch the file again") from None
    last = 2 if "imdb" in file.parent.name.lower() else None
    return [" ".join(part for part in row[1:last] if part) for row in csv.reader(io.StringIO(content)) if row]


def tokens(written: str) -> Tensor:
    """Bytes of a text, int64."""
    return of_bytes(written.encode())


def of_bytes(content: bytes) -> Tensor:
    """Bytes as tokens."""
    if not content:
        raise DataError("a text has no characters", "give one with some")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def cut(name: str, content: bytes) -> Text:
    """Text split into training and, for the last tenth, validation."""
    found = of_bytes(content)
    at = int(SHARE * len(found))
    return Text(name, found[:at], found[at:], "the last tenth")


def generated(seed: int, sentences: int = SENTENCES) -> str:
    """Generated sentences of random words with few possible successors of each word: a learnable text."""
    draw = torch.Generator().manual_seed(seed)
    letters = "etaoinshrdlu"

    def word() -> str:
        length = int(torch.randint(2, 9, (), generator=draw))
        return "".join(letters[int(n)] for n in torch.randint(len(letters), (length,), generator=draw))

    words = [word() for _ in range(WORDS)]
    followers = torch.randint(WORDS, (WORDS, 4), generator=draw)
    lengths = torch.randint(4, 14, (sentences,), generator=draw).tolist()
    picks = torch.randint(4, (sentences, 14), generator=draw).tolist()
    starts = torch.randint(WORDS, (sentences,), generator=draw).tolist()
    lines = []
    for length, pick, now in zip(lengths, picks, starts, strict=True):
        line = []
        for choice in pick[:length]:
            line.append(words[now])
            now = int(followers[now, choice])
        lines.append(" ".join(line).capitalize() + ".")
    return "\n".join(lines)
