"""The folder of a saved model: files are replaced together, and listed in a manifest.

In: `write(place, tensors, recipe, facts)`. Out: `weights.safetensors`, `recipe.yaml` and `manifest.json` with the sizes
and SHA-256 sums of the others; `read(place)` returns them, checked. Served models have `graph.json` too, and shared
objects in `kernels-TOKEN`, a separate folder per save.

A save writes all files into the folder `.saving-TOKEN`, then renames it to `.saved`: from this step on the folder holds
the new model, since readers look into `.saved` first. Moving the files to their places can be interrupted and finished
later. The next save deletes `.saving-TOKEN` of killed processes. Folders of layout 1 have no sums, folders of layout 3
have graphs.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sparsify.errors import DataError, SparsifyError
from sparsify.passes import manifest as manifests
from sparsify.passes.manifest import (
    GRAPH,
    KERNELS,
    LAYOUT,
    SERVED,
    Manifest,
    ManifestError,
    SavedFile,
    UnknownLayoutError,
)
from sparsify.recipe.limits import MAX_BYTES

T = TypeVar("T")
R = TypeVar("R")

WEIGHTS, RECIPE, MANIFEST = "weights.safetensors", "recipe.yaml", "manifest.json"
FILES: Final = (WEIGHTS, RECIPE, GRAPH, MANIFEST)
COMPLETE: Final = ".saved"
DRAFT: Final = re.compile(r"\.saving-[0-9a-f]{16}")
MANIFEST_BYTES: Final = 64 << 20
# Longest wait of a save for another save into the same folder.
LOCK_SECONDS: Final = 60.0
# A load starts over when the model was replaced meanwhile, up to a number of reads.
READS: Final = 10
FULL: Final = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota of the disk is used up"}


# Function to the tensors of a model from the arrays in its folder.
Unpack = Callable[[Path, Manifest, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Graphs:
    """Parts of a served model, without weights.

    Attributes:
        document: text of `graph.json`.
        kernels: paths of shared objects, by stored name.
    """

    document: str
    kernels: Mapping[str, Path]


def write(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    recipe: str,
    facts: Mapping[str, Any],
    graphs: Graphs | None = None,
) -> None:
    """Replaces the model of a folder; until one last step the folder holds the earlier model.

    Args:
        folder: path of the folder, created if missing.
        tensors: weights by name, contiguous and without shared memory.
        recipe: YAML.
        facts: fields of `Manifest`, except files.
        graphs: graphs of a served model.

    Raises:
        DataError: the folder cannot be written, holds files of other programs, or the disk is full; or the recipe is
            too long to be read again.
    """
    if len(recipe.encode()) > MAX_BYTES:
        raise DataError(
            f"cannot save into {folder}: as a file the recipe has more than {MAX_BYTES >> 10} KiB",
            "name many tensors by patterns",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            require_ours(folder, graphs is not None)
            _finish(folder)
            for draft in folder.glob(".saving-*"):
                if DRAFT.fullmatch(draft.name):
                    shutil.rmtree(draft)
            _replace(folder, tensors, recipe, facts, graphs)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"cannot save into {folder}: {_cause(error)}",
            "an earlier model in this folder is unchanged; make room or name another folder",
        ) from error


def read(
    folder: Path, parse: Callable[[str, str], T], unpack: Unpack | None = None
) -> tuple[Manifest, dict[str, torch.Tensor], T]:
    """The manifest, the tensors and the recipe of a folder, all of one save.

    Args:
        folder: path of the folder.
        parse: function from the text of the recipe and its file name to the recipe.
        unpack: function from the arrays in a folder with graphs to a model's tensors; without it the arrays are
            returned.

    Raises:
        DataError: a file is missing, damaged, or differs from the saved one.
    """

    def contents(manifest: Manifest) -> tuple[Manifest, dict[str, torch.Tensor], T]:
        tensors = _tensors(folder, manifest)
        if manifest.is_served and unpack is not None:
            tensors = unpack(folder, manifest, tensors)
        return manifest, tensors, _recipe(folder, manifest, parse)

    return consistent(folder, contents)


def consistent(folder: Path, contents: Callable[[Manifest], R]) -> R:
    """The result of a function of the manifest over a folder, all of one save; the last attempt makes saves wait.

    Raises:
        SparsifyError: raised by `contents`, if no save has replaced the files meanwhile.
        DataError: saves replace the files during each of several attempts, on a file system without locks.
    """
    for attempt in range(READS):
        is_last = attempt == READS - 1
        with _locked(folder, fcntl.LOCK_SH) if is_last else nullcontext():
            before = _version(folder)
            try:
                result = contents(read_manifest(folder))
            except SparsifyError:
                if is_last or _version(folder) == before:
                    raise  # no save has replaced or moved the files meanwhile
            else:
                # Files are opened by name after their checksums: another save may have replaced them meanwhile.
                if _version(folder) == before:
                    return result
    raise DataError(
        f"other processes save into {folder} again and again", "wait for them, or name another folder"
    )


def checked(folder: Path, manifest: Manifest, name: str) -> Path:
    """The path of a file of a folder's model, with verified content.

    Raises:
        DataError: the file is missing, torn or changed.
    """
    path = _path(folder, name)
    saved = {WEIGHTS: manifest.weights, RECIPE: manifest.recipe}.get(name) or manifest.files.get(name)
    try:
        _require_sum(path, saved)
    except OSError as error:
        raise _unreadable(path, error) from None
    return path


def _version(folder: Path) -> list[tuple[int, int] | None]:
    """A key that differs whenever a save has replaced the model of a folder or moved its files."""
    version: list[tuple[int, int] | None] = []
    for path in (folder / MANIFEST, folder / COMPLETE):
        try:
            status = path.stat()
            version.append((status.st_ino, status.st_mtime_ns))
        except OSError:
            version.append(None)
    return version


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, checked.

    Raises:
        DataError: the manifest is missing, or not written by `save`.
    """
    return _manifest(folder, _path(folder, MANIFEST))


def holds_model(folder: Path) -> bool:
    """Whether a folder has a manifest."""
    return _path(folder, MANIFEST).exists()


def text_of(path: Path, limit: int | None = None) -> str:
    """The text of a file with a path from `checked`.

    Args:
        path: path of a UTF-8 file.
        limit: maximum size in bytes.

    Raises:
        DataError: a save has moved the file meanwhile, or the file is larger, or no text.
    """
    try:
        return _regular(path, limit).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _manifest(folder: Path, path: Path) -> Manifest:
    """The manifest of a folder in a file, checked."""
    try:
        text = _regular(path, MANIFEST_BYTES).read_bytes()
    except OSError as error:
        raise DataError(
            f"{folder} holds no saved sparse model: {_cause(error)}", "name a folder that sparsify.save wrote"
        ) from None
    try:
        return manifests.parsed(text)
    except UnknownLayoutError as error:
        raise DataError(
            f"{path} has {error}, a layout that this version does not know, it reads up to {SERVED}",
            "load it with the version of sparsify that wrote it",
        ) from None
    except ManifestError as error:
        raise DataError(
            f"{folder} holds no saved sparse model: {MANIFEST} is damaged, {error}",
            "save the model again, into another folder or after this file is deleted",
        ) from None


def _path(folder: Path, name: str) -> Path:
    """The place of a file of the folder's model."""
    complete = folder / COMPLETE / name
    return complete if os.path.exists(complete) else folder / name  # noqa: PTH110, names may be too long


def _tensors(folder: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    """The tensors under all of their names."""
    path = _path(folder, WEIGHTS)
    try:
        _require_sum(path, manifest.weights)
        tensors = load_file(path)
    except (
        OSError,
        RuntimeError,
        SafetensorError,
    ) as error:  # torch's mapping raises RuntimeError for no file
        raise _unreadable(path, error) from None
    for name, first in manifest.tied.items():
        if first not in tensors:
            raise DataError(
                f"{folder / MANIFEST} ties {name} to {first}, which {WEIGHTS} does not hold",
                "save the model again",
            )
    return tensors | {name: tensors[first] for name, first in manifest.tied.items()}


def _recipe(folder: Path, manifest: Manifest, parse: Callable[[str, str], T]) -> T:
    """The recipe; a mistake in its text is reported before a changed checksum."""
    path = _path(folder, RECIPE)
    try:
        text = _regular(path, MAX_BYTES).read_text(encoding="utf-8")
        recipe = parse(text, str(path))
        _require_sum(path, manifest.recipe)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    return recipe


def _require_sum(path: Path, saved: SavedFile | None) -> None:
    """Raises where a file differs from the saved one in size or checksum."""
    size = _regular(path).stat().st_size
    if saved is None:
        return
    if size != saved.bytes:
        raise _unreadable(path, f"it has {size} bytes and had {saved.bytes} when it was saved")
    if (checksum := _sum(path)) != saved.sha256:
        raise _unreadable(path, f"it has the SHA-256 sum {checksum} and had {saved.sha256} when it was saved")


def _unreadable(path: Path, cause: Exception | str) -> DataError:
    """The error for a missing, torn or changed file."""
    why = cause if isinstance(cause, str) else _cause(cause)
    return DataError(f"cannot read {path}: {why}", "copy it again or save the model again")


def _replace(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    recipe: str,
    facts: Mapping[str, Any],
    graphs: Graphs | None,
) -> None:
    """Writes all files into a draft, makes the draft the folder's model, and moves its files to their places."""
    draft = folder / f".saving-{secrets.token_hex(8)}"
    try:
        draft.mkdir()
        save_file(dict(tensors), draft / WEIGHTS)
        (draft / RECIPE).write_text(recipe, encoding="utf-8")
        names = [] if graphs is None else _write_graphs(draft, graphs)
        sums: dict[str, Any] = {"weights": _file(draft / WEIGHTS), "recipe": _file(draft / RECIPE)}
        files = {name: _file(draft / name) for name in names}
        layout = LAYOUT if graphs is None else SERVED
        manifest = Manifest(layout=layout, **facts, **sums, files=files)
        (draft / MANIFEST).write_text(manifests.text(manifest) + "\n", encoding="utf-8")
        for path in (*(draft / name for name in (WEIGHTS, RECIPE, *names, MANIFEST)), draft):
            _sync(path)
        draft.rename(folder / COMPLETE)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _sync(folder)
    with suppress(OSError):  # finished by the next save
        _finish(folder)


def _write_graphs(draft: Path, graphs: Graphs) -> list[str]:
    """Writes the graphs and kernels of a model into a draft; returns the names of their files."""
    (draft / GRAPH).write_text(graphs.document, encoding="utf-8")
    folder = f"{KERNELS}{secrets.token_hex(8)}"
    (draft / folder).mkdir()
    for name, source in graphs.kernels.items():
        shutil.copyfile(source, draft / folder / name)
    return [GRAPH, *(f"{folder}/{name}" for name in graphs.kernels)]


def _finish(folder: Path) -> None:
    """Moves the files of a complete save to their places, and deletes the earlier model's graphs and kernels.

    The manifest is moved last: until then the next save can determine the remaining moves and deletions.
    """
    complete = folder / COMPLETE
    if complete.is_dir():
        kernels = [path.name for path in complete.glob(f"{KERNELS}*")]
        for name in (*kernels, WEIGHTS, RECIPE, GRAPH):
            if (complete / name).exists():
                os.replace(complete / name, folder / name)
        if (complete / MANIFEST).exists():
            _delete(folder, _named(folder, folder / MANIFEST) - _named(folder, complete / MANIFEST))
            os.replace(complete / MANIFEST, folder / MANIFEST)
        _sync(folder)
        complete.rmdir()


def _named(folder: Path, path: Path) -> set[str]:
    """The files of graphs and kernels named by a manifest; none without a manifest."""
    try:
        return set(_manifest(folder, path).files)
    except SparsifyError:
        return set()


def _delete(root: Path, names: set[str]) -> None:
    """Deletes files of a model, and their folders if empty."""
    for name in names:
        with suppress(OSError):
            (root / name).unlink(missing_ok=True)
    for folder in {name.partition("/")[0] for name in names if "/" in name}:
        with suppress(OSError):
            (root / folder).rmdir()


def require_ours(folder: Path, has_graphs: bool) -> None:
    """Raises where files to be replaced by a save belong to no saved model.

    Raises:
        DataError: the files belong to other programs, or the manifest is damaged.
    """
    taken = [name for name in FILES if os.path.lexists(folder / name)]
    manifests = [path for path in (folder / MANIFEST, folder / COMPLETE / MANIFEST) if os.path.lexists(path)]
    if MANIFEST in taken:
        read_manifest(folder)
    if manifests and has_graphs and GRAPH in taken:
        if not any(GRAPH in _named(folder, path) for path in manifests):
            raise DataError(
                f"{folder} holds {GRAPH}, which is not of the model that was saved there",
                "name another folder, or move the file away",
            )
    elif taken and not manifests:
        raise DataError(
            f"{folder} holds {taken[0]} and no saved sparse model",
            "name another folder, or move the file away",
        )


@contextmanager
def _locked(folder: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """A lock for one save into a folder at a time, if supported by the file system; ends with the process.

    Args:
        folder: path of the folder.
        kind: `LOCK_EX` to save, `LOCK_SH` to read.
    """
    directory = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(directory, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DataError(
                        f"another process has been saving into {folder} for {LOCK_SECONDS:.0f} s",
                        "wait for it, or name another folder",
                    ) from None
                time.sleep(0.02)
            except OSError:
                break  # no locks; the completing step of a save still fails for one of two
        yield
    finally:
        os.close(directory)


def _regular(path: Path, limit: int | None = None) -> Path:
    """The path of a regular file within a size limit, since pipes and devices may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if limit is not None and status.st_size > limit:
        raise OSError(errno.EFBIG, f"{status.st_size} bytes, more than {limit}", str(path))
    return path


def _file(path: Path) -> SavedFile:
    """The size and the sum of a file."""
    return SavedFile(bytes=path.stat().st_size, sha256=_sum(path))


def _sum(path: Path) -> str:
    """The SHA-256 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Waits until a file or the names in a folder are on the disk, if the file system can tell."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def _cause(error: Exception) -> str:
    """The text of an error of the file system."""
    if isinstance(error, OSError) and error.errno in FULL:
        return FULL[error.errno]
    code = re.search(r"os error (\d+)", str(error))  # errors of safetensors have no `errno`
    return FULL.get(int(code[1]), str(error)) if code else str(error)
