"""Checkpoints of a sharded training, loadable with any number of processes.

In: `save(part, "last/", optimizer, rows={"memory": memory})` in every process. Out: a folder with `state.pt`, holding
parameters, buffers, optimizer and random numbers of dropout, and for part r `rows-r.safetensors`, with the global
numbers of its rows; `load(part, "last/", optimizer)` gives each process its current rows.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sparsify.errors import DataError, ProcessError
from sparsify.scale import processes
from sparsify.scale.dropout import DRAWS

if TYPE_CHECKING:
    from sparsify.scale.shard import ShardedModule

LAYOUT: Final = 1
META, STATE = "checkpoint.json", "state.pt"
NUMBERS: Final = "numbers_of_rows"


def save(
    part: "ShardedModule",
    folder: str | PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    rows: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a checkpoint; called by every process. An older one stays until the new one is complete.

    Args:
        part: result of `sparsify.shard`.
        folder: on a disk visible to all processes.
        optimizer: optimizer with equal state in all processes.
        rows: tensors with a row for each row of this part.

    Raises:
        DataError: a tensor with another number of rows, or a reserved name; the folder has other things.
        ProcessError: a process cannot write.
    """
    place, own = Path(folder), part.part.rows
    new = place.with_name(f"{place.name}.new")

    def write_rows() -> None:
        for name, tensor in (rows or {}).items():
            if name == NUMBERS:
                raise DataError(
                    f"rows called {NUMBERS}", "another name: those of the rows themselves have it"
                )
            if tensor.dim() == 0 or len(tensor) != len(own):
                raise DataError(
                    f"{name} is {list(tensor.shape)}, and process {part.part.rank} has {len(own)} rows",
                    "give a row for each row of part.data.rows",
                )
        new.mkdir(parents=True, exist_ok=True)
        contiguous = {name: tensor.detach().contiguous() for name, tensor in (rows or {}).items()}
        save_file({**contiguous, NUMBERS: own.contiguous()}, new / _rows_file(part.part.rank))

    def write_state() -> None:
        if part.part.rank:
            return
        state = {
            "model": part.source.state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "draws": DRAWS[part._number].generator.get_state(),
        }
        torch.save(state, new / STATE)
        meta = {
            "layout": LAYOUT, "parts": part.part.parts, "nodes": part.part.nodes, "edges": part.part.edges,
            "rows": sorted(rows or {}),
        }  # fmt: skip
        (new / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        _replace(place, new)

    _together("a checkpoint", lambda: _begin(place, new, part.part.rank))
    _together("a checkpoint", write_rows)
    _together("a checkpoint", write_state)


def load(
    part: "ShardedModule", folder: str | PathLike[str], optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Tensor]:
    """Reads a checkpoint of any number of processes; the rows of this part by name.

    Args:
        part: result of `sparsify.shard`, of the same graph.
        folder: folder written by `save`.
        optimizer: receives the saved state.

    Raises:
        DataError: the checkpoint is missing, damaged, or of another graph or model, in any process.
    """
    found: dict[str, Tensor] = {}

    def read() -> None:
        place = Path(folder)
        if not place.exists() and _old(place).exists():
            place = _old(place)  # an interrupted save had not yet moved the new checkpoint
        meta = _read_meta(place)
        for name, known in (("nodes", part.part.nodes), ("edges", part.part.edges)):
            if meta[name] != known:
                raise DataError(
                    f"{place} is of a graph with {meta[name]} {name}, and the parts are of one with {known}",
                    "give the checkpoint of this graph",
                )
        try:
            state = torch.load(place / STATE, weights_only=True)
            part.source.load_state_dict(state["model"])
            if optimizer is not None:
                if state["optimizer"] is None:
                    raise DataError(f"{place} has no state of an optimizer", "save(part, folder, optimizer)")
                optimizer.load_state_dict(state["optimizer"])
            DRAWS[part._number].generator.set_state(state["draws"])
            found.update(_rows_of(place, meta, part.part.rows))
        except (
            OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError, UnpicklingError,
        ) as error:  # fmt: skip
            raise DataError(
                f"{place} cannot be loaded: {error}", "give a whole checkpoint of this model"
            ) from error

    _together("a checkpoint", read)
    return found


def _begin(place: Path, new: Path, rank: int) -> None:
    """Removes the remains of an unfinished save; a folder other than a checkpoint is not replaced."""
    if place.exists() and not (place / META).is_file():
        raise DataError(
            f"{place} is there and is no checkpoint", "name a new folder, or one with a checkpoint"
        )
    if rank == 0:
        shutil.rmtree(new, ignore_errors=True)


def _replace(place: Path, new: Path) -> None:
    """Replaces an older checkpoint by a complete one; the older one is removed last."""
    old = _old(place)
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _old(place: Path) -> Path:
    """The folder of the checkpoint being replaced by a save."""
    return place.with_name(f"{place.name}.old")


def _rows_file(rank: int) -> str:
    """The file with the rows of a part."""
    return f"rows-{rank}.safetensors"


def _read_meta(place: Path) -> dict[str, Any]:
    """Contents of the `checkpoint.json` of a folder."""
    try:
        meta: dict[str, Any] = json.loads((place / META).read_text(encoding="utf-8"))
        is_known = meta["layout"] == LAYOUT and meta.keys() >= {"parts", "nodes", "edges", "rows"}
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{place} has no readable {META}", "give the folder that checkpoint.save wrote to its end"
        ) from None
    if not is_known:
        raise DataError(f"{place / META} is of another version", "save the checkpoint again")
    return meta


def _rows_of(place: Path, meta: Mapping[str, Any], wanted: Tensor) -> dict[str, Tensor]:
    """The rows with given numbers, ascending, from the files of all parts."""
    made: dict[str, Tensor] = {}
    taken = 0
    for rank in range(meta["parts"]):
        with safe_open(place / _rows_file(rank), "pt") as file:
            numbers = file.get_tensor(NUMBERS)
            at = torch.searchsorted(wanted, numbers).clamp(max=max(len(wanted) - 1, 0))
            is_own = wanted[at] == numbers if len(wanted) else torch.zeros(len(numbers), dtype=torch.bool)
            taken += int(is_own.sum())
            for name in meta["rows"]:
                tensor = file.get_tensor(name)
                rows = made.setdefault(name, tensor.new_empty((len(wanted), *tensor.shape[1:])))
                rows[at[is_own]] = tensor[is_own]
    if taken != len(wanted):
        raise ValueError(f"it has {taken} of the {len(wanted)} rows of this part")
    return made


def _together(what: str, step: Callable[[], None]) -> None:
    """Runs a step in every process, and raises in all of them if one fails."""
    problem = ""
    failed: Exception | None = None
    try:
        step()
    except Exception as error:  # the other processes wait for this one
        problem, failed = str(error) or type(error).__name__, error
    for rank, text in enumerate(processes.agree(what, problem)):
        if text:
            kind = DataError if isinstance(failed, DataError) or failed is None else ProcessError
            raise kind(f"process {rank}: {text}") from failed
