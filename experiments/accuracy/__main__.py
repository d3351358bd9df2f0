"""Entry of `python -m experiments.accuracy [--data-root DATA]`: the same training by each method, one row a run.

All rows share steps, batches, initial weights and learning rates; `static` keeps the masks of the first step. The
table names the data set and its split. `--out rows.json` adds to each row the data needed for reproduction: digest of
the data, number and length of samples, validation split, pruned weights, scope of the sparsity, and the validations
during training.
"""

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from tabulate import tabulate

from sparsify import options
from sparsify import recipe as recipes
from sparsify.errors import SparsifyError
from sparsify.models import registry
from sparsify.pruning.chart import bounds, chart
from sparsify.runner.train.checkpoint import newest
from sparsify.runner.train.loop import run, validate
from sparsify.runner.train.outcome import Outcome
from sparsify.runner.train.prepare import new_model, under_masks
from sparsify.runner.train.settings import Settings, resolve
from sparsify.runner.train.task import data_of, task_of

DENSE: Final = "dense"
# Fields of a rule by method; schedules end at three quarters of the steps.
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "static": {"prune": {"method": "random", "scope": "erk"}},
    "set": {"prune": {"method": "set", "scope": "erk"}, "schedule": {"kind": "cosine"}},
    "rigl": {"prune": {"method": "rigl", "scope": "erk"}, "schedule": {"kind": "cosine"}},
    "gmp": {"prune": {"method": "gmp"}, "schedule": {"kind": "cubic", "from": 0.0}},
    "one-shot": {"prune": {"method": "magnitude", "scope": "global"}},
}
FROM_SCRATCH: Final = ("static", "set", "rigl", "gmp")
COLUMNS: Final = (
    "model",
    "data",
    "method",
    "asked",
    "zeros",
    "validation loss",
    "accuracy",
    "cosine",
    "before",
    "against dense",
)
QUICK: Final = 40
VALIDATIONS: Final = 10


@dataclass(frozen=True)
class Study:
    """A model, its data, and the sparsities to compare.

    Attributes:
        steps, updates: training steps of a run, and the number of mask updates among them.
        arguments: keyword arguments of the model.
        batch_size: samples of a step.
        methods: methods to compare, after the dense model.
        checkpoint: file of trained weights below the data folder, "" for random weights.
        lr: learning rate of Adam, None for the default.
        has_weights: whether the model comes trained without a checkpoint; no dense model is trained then.
    """

    model: str
    dataset: str
    zeros: tuple[float, ...]
    steps: int
    updates: int = 20
    arguments: tuple[tuple[str, Any], ...] = ()
    batch_size: int = 64
    methods: tuple[str, ...] = FROM_SCRATCH
    checkpoint: str = ""
    lr: float | None = None
    has_weights: bool = False

    def overrides(self, root: Path | None) -> dict[str, str]:
        """Arguments of the model as text, with the path of its checkpoint."""
        found = {key: str(value) for key, value in self.arguments}
        if self.checkpoint and root is not None:
            found["checkpoint"] = str(root / self.checkpoint)
        return found


STUDIES: Final = (
    Study("lenet300", "mnist", (0.9, 0.95, 0.99), 1500),
    Study("lenet5", "mnist", (0.9, 0.95, 0.99), 600),
    Study("gpt", "ag_news", (0.9,), 300, arguments=(("layers", 2),), batch_size=8),
    Study("gpt-40m", "ag_news", (0.9,), 1000, batch_size=16),
    Study(
        "resnet20",
        "cifar10",
        (0.5, 0.8, 0.9, 0.95),
        140,
        methods=("one-shot", "gmp"),
        checkpoint="pretrained/resnet_cifar10/resnet20-12fca82f.th",
    ),
    # The dense model is the teacher; the comparison is of sentence vectors.
    Study(
        "minilm",
        "texts",
        (0.8,),
        6000,
        batch_size=64,
        methods=("one-shot", "gmp"),
        lr=5e-4,
        has_weights=True,
    ),
)


def asked_of(study: Study, method: str, zeros: float, steps: int) -> dict[str, Any]:
    """Recipe of the model with the method and the sparsity in each rule that prunes."""
    found = recipes.load(registry.find(study.model).recipe).model_dump(by_alias=True, exclude_none=True)
    how = METHODS[method]
    end = max(1, steps * 3 // 4)
    for rule in found["sparsify"]:
        if "prune" not in rule:
            continue
        rule["prune"] = {**how["prune"], "sparsity": zeros}
        if "schedule" in how:
            rule["schedule"] = {
                **how["schedule"],
                "start": 0,
                "end": end,
                "every": max(1, end // study.updates),
            }
    return {"schema": 1, "name": f"{method}-{zeros:g}", "sparsify": found["sparsify"], "seed": 0}


def runs(study: Study, steps: int, root: Path | None, device: str) -> Iterator[tuple[str, float, Settings]]:
    """Settings of all trainings of a study, the dense training first."""
    dataset = study.dataset if root is not None else "synthetic"
    for method in study.methods if study.has_weights else (DENSE, *study.methods):
        for zeros in study.zeros if method != DENSE else (0.0,):
            yield (
                method,
                zeros,
                resolve(
                    study.model,
                    recipe=None if method == DENSE else asked_of(study, method, zeros, steps),
                    overrides=study.overrides(root),
                    dataset=dataset,
                    data_root=root,
                    steps=steps,
                    lr=study.lr,
                    batch_size=study.batch_size,
                    validate_every=max(1, steps // VALIDATIONS),
                    dense=method == DENSE,
                    device=device,
                ),
            )


def before(settings: Settings) -> float:
    """Accuracy of the pruned model before the first step."""
    net = new_model(settings)
    task = task_of(settings, net)
    if not settings.is_dense:
        net = under_masks(net, settings, task).model
    return validate(net, task)[1]


def trained(settings: Settings, folder: Path | None) -> Outcome:
    """Runs a training; resumes from the newest checkpoint of the folder, if any."""
    is_there = folder is not None and newest(folder) is not None
    return run(settings, out=folder, resume=is_there)


def cells(method: str, zeros: float, settings: Settings, outcome: Outcome) -> tuple[Any, ...]:
    """Outcome of a training as cells of the table."""
    last, times = outcome.validated, outcome.times
    entries = [(one.share, one.shape) for one in outcome.zeros]
    sizes = [prod(shape) for _, shape in entries]
    held = sum(share * size for (share, _), size in zip(entries, sizes, strict=True)) / max(1, sum(sizes))
    assert last is not None, "the last step is validated"
    ratio = "" if times is None or times.ratio is None else f"{times.ratio:.2f}x"
    return (
        settings.model,
        outcome.data,
        method,
        f"{zeros:.0%}" if zeros else "",
        f"{held:.1%}" if entries else "",
        f"{last.val_loss:.4f}",
        "" if last.val_accuracy is None else f"{last.val_accuracy:.2%}",
        "" if last.val_cosine is None else f"{last.val_cosine:.4f}",
        f"{before(settings):.2%}" if has_weights(settings) else "",
        ratio if not outcome.reason else "trains dense",
    )


def record(method: str, zeros: float, settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """Settings and validations of a row as plain data."""
    rules = settings.loaded.rules if method != DENSE else ()
    scopes = sorted({rule.prune.scope for rule in rules if rule.prune is not None})
    name, _, split = outcome.data.partition("; validated on ")
    return {
        "model": settings.model,
        "method": method,
        "zeros": zeros,
        "data": name,
        "data sha256": digest(settings),
        "samples": settings.steps * settings.batch_size,
        "length": settings.seq or None,
        "evaluation split": split,
        "layers": [one.name for one in outcome.zeros],
        "scope": scopes,
        "settings": settings.to_dict(),
        "validations": [
            {
                "step": one.step,
                "zeros": one.actual,
                "loss": one.val_loss,
                "accuracy": one.val_accuracy,
                "cosine": one.val_cosine,
            }
            for one in outcome.rows
            if one.val_loss is not None
        ],
    }


def digest(settings: Settings) -> str:
    """SHA-256 of the first batch and of the validation batches: covers data, tokenization and order."""
    task = data_of(settings, new_model(settings))
    found = hashlib.sha256()
    for batch in (task.batch(1), *task.validation()):
        for tensor in leaves(batch):
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def leaves(batch: Any) -> Iterator[Any]:
    """The tensors of a batch."""
    if not isinstance(batch, tuple):
        yield batch
        return
    for part in batch:
        yield from leaves(part)


def has_weights(settings: Settings) -> bool:
    """Whether a model starts from trained weights."""
    return bool(settings.arguments.get("checkpoint") or settings.arguments.get("weights"))


def main(given: list[str] | None = None) -> int:
    """Prints the table; the exit status is 3 if the data folder is missing."""
    parser = argparse.ArgumentParser(prog="python -m experiments.accuracy", description=__doc__)
    parser.add_argument("--data-root", type=Path, help="the folder of real data; generated data without it")
    parser.add_argument("--only", nargs="+", choices=[study.model for study in STUDIES], help="models")
    parser.add_argument("--steps", type=int, help="of each run, in place of those of the study")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps each")
    parser.add_argument(
        "--device", default="cpu", help="where to train; the ratio to dense is that of the CPU"
    )
    parser.add_argument("--methods", nargs="+", choices=[DENSE, *METHODS], help="of the rows")
    parser.add_argument(
        "--runs",
        type=Path,
        help="a folder for log, curves and checkpoints of each row; rows go on from there",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="a file to write: CSV, JSON with data, split and layers, or SVG, a drawing NAME-MODEL.svg for each model",
    )
    asked = parser.parse_args(given)
    found: list[tuple[Any, ...]] = []
    records: list[dict[str, Any]] = []
    try:
        for study in STUDIES:
            if asked.only and study.model not in asked.only:
                continue
            steps = QUICK if asked.quick else asked.steps or study.steps
            for method, zeros, settings in runs(study, steps, asked.data_root, asked.device):
                if asked.methods and method not in asked.methods:
                    continue
                with options.override(quiet=True):
                    name = f"{study.model}-{method}-{zeros:g}"
                    folder = asked.runs / name if asked.runs else None
                    outcome = trained(settings, folder)
                    found.append(cells(method, zeros, settings, outcome))
                    records.append(record(method, zeros, settings, outcome))
                print(*found[-1], sep=", ", file=sys.stderr, flush=True)
    except SparsifyError as error:
        print(error, file=sys.stderr)
        return 3
    finally:
        if asked.out is not None and found:
            write(asked.out, found, records)
    print(tabulate(found, COLUMNS, "github", disable_numparse=True))
    return 0


def write(file: Path, rows: list[tuple[Any, ...]], records: list[dict[str, Any]]) -> None:
    """Writes rows as CSV, as JSON with settings, or as one SVG drawing per model."""
    if file.suffix == ".svg":
        for model in dict.fromkeys(record["model"] for record in records):
            own = [record for record in records if record["model"] == model]
            file.with_name(f"{file.stem}-{model}.svg").write_text(drawn(own), encoding="utf-8")
        return
    if file.suffix == ".json":
        listed = [
            {**record, "row": dict(zip(COLUMNS, row, strict=True))}
            for record, row in zip(records, rows, strict=True)
        ]
        file.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        return
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([COLUMNS, *rows])


def drawn(records: list[dict[str, Any]]) -> str:
    """Chart of final accuracy, cosine or loss by sparsity, one curve a method; the dense model is a horizontal line."""
    lasts = [(record, record["validations"][-1]) for record in records]
    measure = next(name for name in ("accuracy", "cosine", "loss") if lasts[0][1][name] is not None)
    most = 100 * max(record["zeros"] for record in records)
    curves: dict[str, list[tuple[float, float]]] = {}
    for record, last in lasts:
        places = (0.0, most) if record["method"] == DENSE else (100 * record["zeros"],)
        curves.setdefault(record["method"], []).extend((place, last[measure]) for place in places)
    bottom, top = bounds([last[measure] for _, last in lasts])
    title = f"{measure} of {records[0]['model']}, {records[0]['evaluation split']}"
    points = {method: sorted(found) for method, found in curves.items()}
    return chart(points, "percent of zeros", title, bottom=bottom, top=top)


if __name__ == "__main__":
    sys.exit(main())
