"""Loading of a served model from a folder: mapped weights, and kernels of the best level of the CPU.

In: a folder written by `sparsify.save(sparse, folder, kernels=True)`. Out: a `ServedModule`. Where this CPU or this
version cannot use the kernels, one warning gives the reason, and kernels are built on this machine or torch's operators
compute.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from sparsify.compiler.cpp.toolchain import levels
from sparsify.compiler.cpp.toolchain.fingerprint import code_digest
from sparsify.compiler.kernel.stored_kernels import Stored, opened, usable
from sparsify.errors import CompilerError, DataError, SparsifyError
from sparsify.options import current
from sparsify.passes import saved_folder
from sparsify.passes.manifest import GRAPH, Manifest
from sparsify.passes.saved_folder import RECIPE, WEIGHTS
from sparsify.passes.served.late_recipe import ServedRequest, served_request
from sparsify.passes.served.restore import restored
from sparsify.passes.served.served_module import ServedModule
from sparsify.passes.served.weights import Mapped
from sparsify.recipe.limits import MAX_BYTES
from sparsify.warn import warn

# Widest first: kernels built for this CPU are better than kernels of a level.
PREFERRED: Final = (levels.NATIVE, "avx512", "avx2")
# Errors while reading data of another version, or invalid data.
FOREIGN: Final = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError, MemoryError),
    SyntaxError,
)
# Key of the document of a model in pieces.
PIECES: Final = "pieces"
HERE: Final = "they are built on this machine where it has a C++ compiler, else torch's operators compute"


def load_served(place: Path) -> ServedModule:
    """The model in a folder saved with its kernels.

    Raises:
        DataError: a file is missing or changed, or the graphs are missing or of another version.
    """
    return saved_folder.consistent(place, lambda manifest: _whole(place, manifest))


def _whole(place: Path, manifest: Manifest) -> ServedModule:
    """The model of a manifest."""
    if not manifest.is_served:
        raise DataError(
            f"{place} holds the weights and the recipe of a {manifest.model}, and neither graphs nor kernels",
            "give the model, sparsify.load(folder, model), or save it with kernels=True to load it without its class",
        )
    paths = {name: saved_folder.checked(place, manifest, name) for name in (WEIGHTS, RECIPE, *manifest.files)}
    text = saved_folder.text_of(paths[RECIPE], MAX_BYTES)
    asked = served_request(text, str(paths[RECIPE]), manifest.passed)
    if (saved := manifest.torch.partition("+")[0]) != (now := str(torch.__version__).partition("+")[0]):
        warn(
            f"{place} was saved with torch {saved}, and this is torch {now}: save it again if calls are not known"
        )
    with of_this_version(manifest, paths[GRAPH]):
        document = json.loads(saved_folder.text_of(paths[GRAPH]))
        if PIECES in document:
            raise DataError(
                f"{place} holds a {manifest.model} in pieces: between its graphs runs Python code of its class, which "
                "no file holds",
                "give the model, sparsify.load(folder, model, kernels=True), which times and compiles nothing for the "
                "saved kinds of calls; or change the model so that torch.export captures it, and save it again",
            )
        kernels = {name.rpartition("/")[2]: path for name, path in paths.items() if name.endswith(".so")}
        stored = stored_kernels(place, manifest, document, kernels)
        options = replace(current(), threads=threads_of(document, asked) or current().threads)
        found = restored(document, Mapped(paths[WEIGHTS]), stored, asked, options, place.absolute())
    found.remember(manifest.digest)
    return found


def threads_of(document: Mapping[str, Any], asked: ServedRequest) -> int | None:
    """The threads of kernels that the recipe fixes; None without a rule. The recipe is parsed for old folders only."""
    if "threads" not in document:
        return asked.recipe.compile.threads
    threads: int | None = document["threads"]
    return threads


@contextmanager
def of_this_version(manifest: Manifest, path: Path) -> Iterator[None]:
    """A context that turns errors of reading another version's document into a `DataError`."""
    try:
        yield
    except FOREIGN as error:
        if isinstance(error, SparsifyError):
            raise
        raise DataError(
            f"{path} was written by sparsify {manifest.sparsify} with torch {manifest.torch}, and this is "
            f"another version: {type(error).__name__}: {error}",
            "load it with that version, or apply the recipe and save the model again",
        ) from error


def stored_kernels(
    place: Path, manifest: Manifest, document: Mapping[str, Any], paths: Mapping[str, Path]
) -> Stored:
    """The kernels of a folder for the best level of this CPU; none, with a warning, without a usable level.

    Args:
        place, manifest, document: the folder and its contents.
        paths: checksummed kernel files of the manifest, by file name.
    """
    if manifest.code != code_digest():
        why = f"they were built by another version of sparsify ({manifest.sparsify})"
    else:
        level, why = usable(manifest.levels, manifest.instructions, PREFERRED)
        if level is not None:
            try:
                return opened(paths, document, level)
            except CompilerError as error:
                if gone := [path for path in paths.values() if not path.exists()]:
                    raise DataError(f"{gone[0]} is gone", "save the model again") from error
                why = str(error)
        else:
            why = f"they are for other CPUs: {why}"
    warn(f"the kernels in {place} cannot be used, {HERE}: {why}")
    return Stored()
