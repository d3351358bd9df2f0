"""Entry of `python -m experiments.calibration --data-root DATA --weights DIR`: each row runs in its own process."""

import argparse
import csv
import gzip
import hashlib
import json
import resource
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from tabulate import tabulate

METHODS = ("magnitude", "wanda", "sparsegpt")
PATTERNS: dict[str, dict[str, Any]] = {
    "50 %": {"sparsity": 0.5},
    "2:4": {"pattern": "2:4"},
    "80 %": {"sparsity": 0.8},
}
COLUMNS = (
    "method",
    "pattern",
    "zeros",
    "layer error",
    "cosine",
    "seconds",
    "cpu seconds",
    "peak MB",
    "of it before MB",
)
RECORDED = "recorded"
"""The key of what a row was measured with."""


def texts(file: Path, count: int) -> list[str]:
    """Last column of the first `count` rows of a compressed CSV file."""
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        return [row[-1] for row, _ in zip(csv.reader(rows), range(count), strict=False)]


def batches(tokenizer: Any, given: list[str], length: int) -> list[Any]:
    """Token ids [texts, tokens], grouped by length, so that no batch has padding."""
    import torch

    ids = sorted((tokenizer.encode(text).ids[:length] for text in given), key=len)
    return [torch.tensor(list(same)) for _, same in groupby(ids, key=len)]


def vectors(model: Any, given: list[Any]) -> Any:
    """Mean hidden state of each text, normalized to length 1."""
    import torch

    with torch.inference_mode():
        found = [model(input_ids=tokens, return_dict=False)[0].mean(1) for tokens in given]
    return torch.nn.functional.normalize(torch.cat(found), dim=-1)


def peak_megabytes() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    import copy

    from tokenizers import Tokenizer

    from sparsify.models.bert import bert
    from sparsify.pruning.calibrate import prune_by_calibration
    from sparsify.recipe import Prune

    method, pattern = asked.row
    folder, root = Path(asked.weights), Path(asked.data_root) / "ag_news_csv"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    dense = bert(checkpoint=str(folder)).eval()
    model = copy.deepcopy(dense)
    data = batches(tokenizer, texts(root / "train.csv.gz", asked.samples), asked.length)
    held_out = batches(tokenizer, texts(root / "test.csv.gz", asked.evaluated), asked.length)
    how = Prune(method=method, **PATTERNS[pattern])
    jobs = {n: how for n, p in model.named_parameters() if n.startswith("encoder.") and p.dim() == 2}
    before, begun, busy = peak_megabytes(), time.perf_counter(), time.process_time()
    calls = [lambda m, x=tokens: m(input_ids=x, return_dict=False) for tokens in data]
    outcome = prune_by_calibration(model, jobs, calls)
    seconds, peak, busy = time.perf_counter() - begun, peak_megabytes(), time.process_time() - busy
    cosine = (vectors(dense, held_out) * vectors(model, held_out)).sum(-1).mean()
    zeros = mean(1 - float(done.mask.float().mean()) for done in outcome.pruned.values())
    error = mean(done.error for done in outcome.pruned.values() if done.error is not None)
    assert not outcome.passed
    numbers = (zeros, error, float(cosine), seconds, busy, peak, before)
    return {
        **dict(zip(COLUMNS, (method, pattern, *numbers), strict=True)),
        RECORDED: {
            "calibration set": "ag_news_csv/train.csv.gz",
            "calibration sha256": digest(data),
            "samples": asked.samples,
            "length": asked.length,
            "evaluation split": f"the first {asked.evaluated} texts of ag_news_csv/test.csv.gz",
            "layers": list(outcome.pruned),
            "scope": how.scope,
        },
    }


def digest(given: list[Any]) -> str:
    """SHA-256 of token ids."""
    found = hashlib.sha256()
    for tokens in given:
        found.update(tokens.numpy().tobytes())
    return found.hexdigest()


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows as CSV, or as JSON with settings."""
    if file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    """Prints the table; the exit status is 1 if the errors of the methods are not ordered as in the papers."""
    parser = argparse.ArgumentParser(prog="python -m experiments.calibration")
    parser.add_argument("--data-root", required=True, help="folder that has ag_news_csv")
    parser.add_argument(
        "--weights", required=True, help="folder of MiniLM with config.json and tokenizer.json"
    )
    parser.add_argument("--samples", type=int, default=128, help="texts of the training split")
    parser.add_argument("--length", type=int, default=128, help="tokens of a text")
    parser.add_argument("--evaluated", type=int, default=500, help="texts of the test split")
    parser.add_argument("--out", type=Path, help="a file to write: CSV, or JSON with data, split and layers")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(run(asked)))
        return 0
    rows = []
    for pattern in PATTERNS:
        for method in METHODS:
            command = [
                sys.executable,
                "-m",
                "experiments.calibration",
                *sys.argv[1:],
                "--row",
                method,
                pattern,
            ]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(
                *(f"{cell:.3g}" if isinstance(cell, float) else cell for cell in map(rows[-1].get, COLUMNS)),
                file=sys.stderr,
            )
    print(tabulate([[row[c] for c in COLUMNS] for row in rows], COLUMNS, floatfmt=".3f", tablefmt="github"))
    if asked.out is not None:
        write(asked.out, rows)
    by = {(row["method"], row["pattern"]): row["layer error"] for row in rows}
    is_ordered = all(
        by["sparsegpt", pattern] <= by["wanda", pattern] <= by["magnitude", pattern]
        for pattern in ("50 %", "2:4")
    )
    return 0 if is_ordered else 1


if __name__ == "__main__":
    sys.exit(main())
