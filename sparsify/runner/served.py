"""A run of a served model: load time, and times of calls like the saved ones.

In: the folder of `sparsify.save(sparse, folder, kernels=True)`. Out: a `ServedResult`; printed, one table.
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch.utils import _pytree as pytree

from sparsify.errors import SparsifyError
from sparsify.passes import saved_folder
from sparsify.passes.manifest import GRAPH
from sparsify.passes.served.load import load_served
from sparsify.runner import measure
from sparsify.runner.measure import milliseconds
from sparsify.runner.result import SCHEMA, mebibytes
from sparsify.runtime.machine import machine


@dataclass(slots=True)
class ServedKind:
    """Calls of one kind and size: description of inputs, first call, and runs."""

    inputs: str
    first_ms: float
    median_ms: float
    runs_ms: list[float]
    is_finite: bool


@dataclass(slots=True, kw_only=True)
class ServedResult:
    """A finished run of a served model.

    Attributes:
        folder, model, recipe: the folder, the model's class, and the recipe's name.
        levels: CPU levels of the kernels in the folder.
        regions: number of kernels of a call.
        file_bytes: bytes of weights, graphs and kernels.
        load_ms: load time of the model.
        kinds: kinds of calls.
        machine: facts on the machine.
    """

    folder: str
    model: str
    recipe: str
    levels: list[str]
    regions: int
    file_bytes: dict[str, int]
    load_ms: float
    kinds: list[ServedKind]
    machine: dict[str, str | int] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """0 where all results are numbers, 1 otherwise."""
        return 0 if all(kind.is_finite for kind in self.kinds) else 1

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, with `"schema": 1`."""
        return {"schema": SCHEMA, **asdict(self)}

    def __str__(self) -> str:
        weights, others = (
            self.file_bytes["weights"],
            sum(self.file_bytes.values()) - self.file_bytes["weights"],
        )
        levels = ", ".join(self.levels)
        rows = [
            ["weights", mebibytes(weights), f"{mebibytes(others)} are graphs and kernels ({levels})"],
            [
                "load",
                milliseconds(self.load_ms),
                f"{self.regions} kernels a call, nothing is captured or compiled",
            ],
        ]
        for kind in self.kinds:
            wrong = "" if kind.is_finite else "; results are not finite"
            rows.append(
                [
                    f"call {kind.inputs}",
                    milliseconds(kind.median_ms),
                    f"the first {milliseconds(kind.first_ms)}{wrong}",
                ]
            )
        title = f"{self.model} with {self.recipe}, served from {self.folder}"
        return f"{title}\n\n{tabulate(rows, tablefmt='plain')}"


def run_served(folder: Path, *, seconds: float = 4.0) -> ServedResult:
    """Times of a served model for calls like the saved ones, on random inputs.

    Args:
        folder: folder with graphs and kernels.
        seconds: time budget of all calls together.

    Raises:
        DataError: the folder has no graphs, or was changed.
        SparsifyError: the saved calls have caches, objects or sparse inputs, which are not drawn at random.
    """
    served, load_ms = measure.once(lambda: load_served(folder))
    calls = served.example_calls()
    if not calls:
        raise SparsifyError(
            f"calls of the model in {folder} bring sparse inputs, caches or objects, which are not drawn",
            "sparsify.load(folder) and call it",
        )
    kinds = []
    with torch.no_grad():
        for args, kwargs in calls:
            call = partial(served, *args, **kwargs)
            result, first_ms = measure.once(call)
            leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            is_finite = all(bool(leaf.isfinite().all()) for leaf in leaves if leaf.is_floating_point())
            (timing,) = measure.interleave(call, seconds=seconds / len(calls), is_warm=True)
            text = described(args, kwargs)
            kinds.append(ServedKind(text, first_ms, timing.median_ms, timing.runs_ms, is_finite))
    manifest = saved_folder.read_manifest(folder)
    files = {name: file.bytes for name, file in manifest.files.items()}
    graph = files.pop(GRAPH)
    return ServedResult(
        folder=str(folder),
        model=manifest.model,
        recipe=served.report.recipe,
        levels=list(manifest.levels),
        regions=max(len(variant.regions) for variant in served.variants),
        file_bytes={
            "weights": manifest.weights.bytes if manifest.weights else 0,
            "graph": graph,
            "kernels": sum(files.values()),
        },
        load_ms=load_ms,
        kinds=kinds,
        machine=machine(),
    )


def described(args: list[Any], kwargs: dict[str, Any]) -> str:
    """The arguments of a call in words."""
    leaves = [*enumerate(args), *kwargs.items()]
    found = [
        "x".join(map(str, leaf.shape)) if isinstance(leaf, torch.Tensor) else str(leaf)
        for _, value in leaves
        for leaf in pytree.tree_leaves(value)
    ]
    return ", ".join(found)
