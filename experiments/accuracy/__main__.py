"""Entry of `python -m experiments.accuracy [--data-root DATA]`: the same training by each method, one row a run.

Each row has the same steps, batches, first weights and learning rates; `static` keeps the masks of the first step. The
table says the data set and its split, the steps, which layers are pruned, and the scope of the share of zeros.
"""

import argparse
import csv
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
from sparsify.runner.train.loop import run, validate
from sparsify.runner.train.prepare import new_model, under_masks
from sparsify.runner.train.settings import Settings, resolve
from sparsify.runner.train.task import task_of

DENSE: Final = "dense"
# Methods as what they ask of a rule; schedules end at three quarters of the steps.
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
    "before",
    "against dense",
)
QUICK: Final = 40


@dataclass(frozen=True)
class Study:
    """A model, its data, and the shares of zeros that are compared.

    Attributes:
        steps, updates: of a run; masks change so many times.
        arguments: of the model.
        batch_size: of a step.
        methods: that are compared, after the dense model.
        checkpoint: a file of trained weights below the folder of data, "" for random ones.
        lr: of Adam, None for the usual one.
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

    def overrides(self, root: Path | None) -> dict[str, str]:
        """The arguments of the model as text, its checkpoint among them."""
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
)


def asked_of(study: Study, method: str, zeros: float, steps: int) -> dict[str, Any]:
    """The recipe of a model with another method in each rule that prunes."""
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
    """The trainings of a study, the dense one first."""
    dataset = study.dataset if root is not None else "synthetic"
    for method in (DENSE, *study.methods):
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
                    validate_every=steps,
                    dense=method == DENSE,
                    device=device,
                ),
            )


def before(settings: Settings) -> float:
    """The accuracy of the pruned model before any step."""
    net = new_model(settings)
    task = task_of(settings, net)
    if not settings.is_dense:
        net = under_masks(net, settings, task).model
    return validate(net, task)[1]


def row(method: str, zeros: float, settings: Settings) -> tuple[Any, ...]:
    """A training as cells of the table."""
    outcome = run(settings)
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
        f"{last.val_accuracy or 0:.2%}",
        f"{before(settings):.2%}" if settings.arguments.get("checkpoint") else "",
        ratio if not outcome.reason else "trains dense",
    )


def main(given: list[str] | None = None) -> int:
    """Prints the table; 3 where the folder of data is missing."""
    parser = argparse.ArgumentParser(prog="python -m experiments.accuracy", description=__doc__)
    parser.add_argument("--data-root", type=Path, help="the folder of real data; generated data without it")
    parser.add_argument("--only", nargs="+", choices=[study.model for study in STUDIES], help="models")
    parser.add_argument("--steps", type=int, help="of each run, in place of those of the study")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps each")
    parser.add_argument(
        "--device", default="cpu", help="where to train; the ratio to dense is that of the CPU"
    )
    parser.add_argument("--out", type=Path, help="a CSV file to write")
    asked = parser.parse_args(given)
    found: list[tuple[Any, ...]] = []
    try:
        for study in STUDIES:
            if asked.only and study.model not in asked.only:
                continue
            steps = QUICK if asked.quick else asked.steps or study.steps
            for method, zeros, settings in runs(study, steps, asked.data_root, asked.device):
                with options.override(quiet=True):
                    found.append(row(method, zeros, settings))
                print(*found[-1], sep=", ", file=sys.stderr, flush=True)
    except SparsifyError as error:
        print(error, file=sys.stderr)
        return 3
    finally:
        if asked.out is not None and found:
            with asked.out.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([COLUMNS, *found])
    print(tabulate(found, COLUMNS, "github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
