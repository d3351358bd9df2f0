"""The result of a run: one table, plain data, files.

In: measurements of `run`. Out: `print(result)`, `result.to_dict()`, `result.write("out/")`. `Result` is the common base
of all runs, `RunResult` the result of a model on a graph.
"""

import csv
import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from sparsify.page.contents import Details, Fact
from sparsify.page.html import write
from sparsify.passes.module.check.require_gain import NOISE
from sparsify.report import Report
from sparsify.report_page import page_of
from sparsify.report_text import UNLIMITED, fold, paragraphs, terminal_width, wrapped
from sparsify.runner.alternatives import BY_HAND, Alternative
from sparsify.runner.measure import Timing, agreement, milliseconds
from sparsify.runner.peers.baselines import LIBRARIES, Baseline
from sparsify.runner.training import Steps

SCHEMA = 1


@dataclass(slots=True)
class Contender:
    """The dense or the sparse model: times, additional bytes of one pass, test accuracy or None."""

    accuracy: float | None
    timing: Timing
    peak_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The contender as plain data."""
        return {
            "test_accuracy": self.accuracy,
            "median_ms": self.timing.median_ms,
            "first_call_ms": self.timing.first_ms,
            "runs_ms": self.timing.runs_ms,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(slots=True, kw_only=True)
class Result:
    """A finished run.

    Attributes:
        model: the name of the model.
        arguments: arguments of the model's factory.
        recipe: the name of the recipe.
        data: facts on the input data; at least the `name`.
        seed: seed of all random numbers.
        dense: the original model, or the model with the same pruned weights.
        sparse: the model under the recipe.
        largest_error: the largest absolute difference of outputs.
        tolerance: rtol and atol of the recipe.
        agrees: whether all outputs are within the tolerance.
        apply_ms: the time of `apply`: capture, passes, kernels, conversions.
        conversions_ms: the time of operand conversions in `apply`, and in the first call.
        report: report of `apply`.
        machine: facts on the machine.
        details: details for a requested page.
        baselines: the dense model by the fastest libraries, or by the requested ones.
    """

    model: str
    arguments: dict[str, Any]
    recipe: str
    data: dict[str, Any]
    seed: int
    dense: Contender
    sparse: Contender
    largest_error: float
    tolerance: dict[str, float]
    agrees: bool
    apply_ms: float
    conversions_ms: tuple[float, float]
    report: Report
    machine: dict[str, str | int] = field(default_factory=dict)
    details: Details = field(default_factory=Details)
    baselines: list[Baseline] = field(default_factory=list)

    @property
    def verified(self) -> bool:
        """Whether a part of the model became sparse and outputs equal the dense model's within tolerance."""
        return self.agrees and bool(self.report.regions)

    @property
    def exit_status(self) -> int:
        """0 when verified, 1 otherwise."""
        return 0 if self.verified else 1

    @property
    def ratio(self) -> float:
        """Speedup of a pass of the sparse model."""
        return self.dense.timing.median_ms / self.sparse.timing.median_ms

    @property
    def kernels(self) -> dict[str, int]:
        """Numbers of distinct kernels built in this run and found in the cache."""
        regions = [region for region in self.report.regions if region.kernel and region.cache != "none"]
        built = {region.kernel for region in regions if region.cache == "miss"}
        return {"built": len(built), "found": len({region.kernel for region in regions} - built)}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, with `"schema": 1`."""
        return {
            "schema": SCHEMA,
            "verified": self.verified,
            "model": self.model,
            "arguments": self.arguments,
            "recipe": self.recipe,
            "data": self.data,
            "seed": self.seed,
            "dense": self.dense.to_dict(),
            "sparse": self.sparse.to_dict(),
            "ratio": self.ratio,
            "baselines": [baseline.to_dict() for baseline in self.baselines],
            "faster_baseline": None if (best := self.winner) is None else best.name,
            "largest_error": self.largest_error,
            "tolerance": self.tolerance,
            "agrees": self.agrees,
            "apply_ms": self.apply_ms,
            "conversions_ms": {"apply": self.conversions_ms[0], "first_call": self.conversions_ms[1]},
            "kernels": self.kernels,
            "machine": self.machine,
            "report": self.report.to_dict(),
        }

    def about(self) -> list[list[str]]:
        """The first rows of the table: input data and origin of the weights."""
        return []

    def of_alternatives(self) -> list[list[str]]:
        """Rows for other contenders than the dense and the sparse model."""
        return []

    def rows(self) -> list[list[str]]:
        """The rows of the table: quantity, dense, sparse, remark."""
        dense, sparse = self.dense, self.sparse
        kernels = self.kernels
        in_apply, in_first = map(milliseconds, self.conversions_ms)
        limits = f"allowed: {self.tolerance['atol']:g} + {self.tolerance['rtol']:g} of the value"
        return [
            *self.about(),
            ["largest error of outputs", "", f"{self.largest_error:.2e}", limits],
            [
                "median of a pass",
                *pair(dense.timing.median_ms, sparse.timing.median_ms),
                agreement(dense.timing, sparse.timing),
            ],
            *(baseline.row(sparse.timing) for baseline in self.baselines),
            *self.of_alternatives(),
            ["first call", *pair(dense.timing.first_ms, sparse.timing.first_ms), ""],
            ["apply", "", milliseconds(self.apply_ms), "capture, passes, kernels, conversions"],
            ["conversions", "", in_apply, f"of operands, within apply; {in_first} in the first call"],
            [
                "memory of a pass",
                mebibytes(dense.peak_bytes),
                mebibytes(sparse.peak_bytes),
                "above the resident size",
            ],
            [
                "kernels",
                "",
                str(sum(kernels.values())),
                f"{kernels['built']} built, {kernels['found']} found in the cache",
            ],
            ["coverage", "", "", self.report.coverage],
            ["verified", "", "yes" if self.verified else "NO", self.complaint()],
        ]

    @property
    def winner(self) -> Baseline | None:
        """The fastest baseline with equal results, if faster than the sparse model beyond noise."""
        timed = [one for one in self.baselines if one.timing.runs_ms and one.is_equal]
        best = min(timed, key=lambda one: one.timing.median_ms, default=None)
        is_faster = best and NOISE * best.timing.median_ms < self.sparse.timing.median_ms
        return best if is_faster else None

    def notes(self) -> list[str]:
        """The lines below the table."""
        lines = [f"warning: {text}" for text in self.report.warnings]
        if (best := self.winner) is not None:
            times = milliseconds(best.timing.median_ms), milliseconds(self.sparse.timing.median_ms)
            title = LIBRARIES[best.name].title
            lines.append(f"the dense model by {title} is faster: {times[0]}, sparse {times[1]}")
        if self.report.whole_call is not None and self.report.whole_call.undone:
            lines += self.report.whole_call.lines(lambda names: ", ".join(fold(names)))
        return lines

    def complaint(self) -> str:
        """The reason for a run that is not verified, else ""."""
        if not self.report.regions:
            return "no part of the model became sparse"
        return "" if self.agrees else "outputs differ from the dense model's"

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value}" for key, value in self.arguments.items() if value != "")
        headers = [f"{self.model}({arguments})", "dense", "sparse", f"recipe {self.recipe}"]
        width = terminal_width(UNLIMITED)
        table = tabulate(self.rows(), headers=headers, tablefmt="simple", disable_numparse=True)
        if max(map(len, table.splitlines())) > width:
            title = wrapped(f"{headers[0]}, {headers[-1]}", width)
            table = title + "\n" + paragraphs(("", "dense", "sparse", "remark"), self.rows(), width)
        m = self.machine
        place = f"{m['cpu']} ({m['vector']}), {m['threads']} threads, torch {m['torch']}"
        return "\n".join([table, *(wrapped(line, width) for line in (place, *self.notes()))])

    def timings(self) -> list[tuple[str, Timing]]:
        """The times of all contenders, by name."""
        baselines = [(one.name, one.timing) for one in self.baselines if one.timing.runs_ms]
        return [("dense", self.dense.timing), ("sparse", self.sparse.timing), *baselines]

    def write(self, folder: str | Path, command: str = "") -> Path:
        """Writes result.json, times.csv, report.txt and report.html (see `to_html`) into `folder`; returns the path."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / "result.json").write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        with (place / "times.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["model", "data", "contender", "turn", "milliseconds"])
            for name, timing in self.timings():
                for turn, value in enumerate(timing.runs_ms):
                    writer.writerow([self.model, self.data["name"], name, turn, f"{value:.6f}"])
        (place / "report.txt").write_text(f"{self}\n\n{self.report.text(UNLIMITED)}\n", encoding="utf-8")
        self.to_html(place / "report.html", command)
        return place

    def to_html(self, path: str | Path, command: str = "") -> Path:
        """Writes the report as a page, with the times and the difference of this run; returns the path.

        Args:
            path: path of the file.
            command: command to repeat the run; by default `self.command()`.

        Raises:
            SparsifyError: the file cannot be written.
        """
        dense, sparse = self.dense, self.sparse
        medians = " dense, ".join(pair(dense.timing.median_ms, sparse.timing.median_ms))
        turns = agreement(dense.timing, sparse.timing).partition(", ")[2]
        limits = f"allowed {self.tolerance['atol']:g} + {self.tolerance['rtol']:g} of the value"
        faster = Fact("Faster by", f"{self.ratio:.2f}x", f"{medians} now: medians of {turns}")
        differs = Fact(
            "Differs by", f"{self.largest_error:.2g}", f"largest difference of an output; {limits}"
        )
        given = replace(self.details, faster=faster, differs=differs, command=command or self.command())
        return write(page_of(self.report, given), path)

    def command(self) -> str:
        """A command to repeat the run, with the recipe in a file."""
        arguments = [f"{key}={value}" for key, value in self.arguments.items() if value != ""]
        data = ["--dataset", str(self.data["name"]), "--seed", str(self.seed)]
        return shlex.join(["sparsify", "run", self.model, *arguments, "--recipe", "recipe.yaml", *data])


@dataclass(slots=True, kw_only=True)
class RunResult(Result):
    """A finished run of a model on a graph.

    Attributes:
        training: epochs, seconds, note, and whether cached weights were reused.
        steps: training steps of both models.
        others: the model by torch alone, and the sparse model with the first rules alone.
    """

    training: dict[str, Any]
    steps: Steps | None = None
    others: list[Alternative] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, with the training."""
        steps = None if self.steps is None else self.steps.to_dict()
        others = [other.to_dict() for other in self.others]
        return {**Result.to_dict(self), "training": self.training, "steps": steps, "alternatives": others}

    def timings(self) -> list[tuple[str, Timing]]:
        """The times of all contenders, by name."""
        more = [(rules_text(other), other.timing) for other in self.others]
        return [*Result.timings(self), *more]

    def of_alternatives(self) -> list[list[str]]:
        """Rows for torch alone, and for each prefix of the rules; wrong results are marked."""
        rows = []
        for other in self.others:
            time = milliseconds(other.timing.median_ms)
            wrong = "" if other.agrees else f", WRONG by {other.largest_error:.2e}"
            if other.name == BY_HAND:
                told = agreement(other.timing, self.sparse.timing)
                rows.append(["torch by hand", time, "", f"{told}; cached CSR matrices{wrong}"])
            else:
                told = agreement(self.dense.timing, other.timing)
                rows.append([rules_text(other), "", time, f"{told}{wrong}"])
        return rows

    @property
    def verified(self) -> bool:
        """Whether outputs and training losses equal the dense model's within tolerance."""
        is_trained = self.steps is None or self.steps.agrees(**self.tolerance)
        return self.agrees and bool(self.report.regions) and is_trained

    def complaint(self) -> str:
        """The reason for a run that is not verified, else ""."""
        if self.steps is not None and not self.steps.agrees(**self.tolerance):
            return "losses of training differ from the dense model's"
        return Result.complaint(self)

    def rows(self) -> list[list[str]]:
        """The rows of the table, with the rows of training after the first call."""
        rows = Result.rows(self)
        behind = next(place for place, row in enumerate(rows) if row[0] == "first call") + 1
        return [*rows[:behind], *self.of_training(), *rows[behind:]]

    def of_training(self) -> list[list[str]]:
        """The rows of training."""
        steps = self.steps
        if steps is None:
            return []
        times = pair(steps.dense.median_ms, steps.sparse.median_ms)
        rows = [["training step", *times, f"{agreement(steps.dense, steps.sparse)}; {steps.text}"]]
        losses = [f"{loss:.6f}" for loss in steps.losses]
        rows.append(["training loss", *losses, "before any step, without dropout"])
        if steps.accuracies is not None:
            rows.append(
                [
                    "accuracy of sampled training",
                    *[f"{found:.4f}" for found in steps.accuracies],
                    "on test nodes",
                ]
            )
        if steps.sample_ms is not None:
            rows.append(["sampling a batch", milliseconds(steps.sample_ms), "", "the same samples for both"])
        return rows

    def about(self) -> list[list[str]]:
        """The graph, its features, the training, the accuracy."""
        dense, sparse = ("" if c.accuracy is None else f"{c.accuracy:.4f}" for c in (self.dense, self.sparse))
        return [
            ["graph", self.data["name"], "", self.sizes()],
            ["features", "", "", f"{self.data['features']}, density {self.data['feature_density']:.3g}"],
            ["weights", "", "", self.origin()],
            ["test accuracy", dense, sparse, ""],
        ]

    def sizes(self) -> str:
        """The sizes of the graph, in words."""
        d = self.data
        nodes = f"{d['nodes']} nodes, {d['edges']} directed edges"
        return f"{nodes}, {d['feature_count']} features, {d['classes']} classes"

    def origin(self) -> str:
        """Origin of the weights, in words."""
        t = self.training
        how = (
            f"kept from an earlier run of {t['epochs']} epochs"
            if t["reused"]
            else f"{t['epochs']} epochs in {t['seconds']:.1f} s"
        )
        how += " of the sparse model" if t.get("trains_sparse") else ""
        return f"{how} ({t['note']})" if t["note"] else how


def rules_text(other: Alternative) -> str:
    """The row of an alternative in the table."""
    return other.name if other.name == BY_HAND else f"rules up to {other.name}"


def conversion_ms(report: Report) -> float:
    """Total time of operand conversions over all calls so far."""
    return sum(entry.total_us for entry in report.conversions) / 1e3


def pair(dense: float, sparse: float) -> tuple[str, str]:
    """Two times for one row."""
    return milliseconds(dense), milliseconds(sparse)


def mebibytes(value: int | None) -> str:
    """A size in MiB, `?` if unknown."""
    return "?" if value is None else f"{value / 2**20:.1f} MiB"
