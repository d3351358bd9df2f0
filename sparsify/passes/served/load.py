"""A served model in a folder: weights are mapped, kernels are loaded for the best level that the CPU runs.

In: the folder that `sparsify.save(sparse, folder, kernels=True)` wrote. Out: a `ServedModule`. Where this CPU or this
version cannot use the kernels, one warning says so, and they are built here or torch's operators compute.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from sparsify import recipe as recipes
from sparsify.compiler.cpp.toolchain import levels
from sparsify.compiler.cpp.toolchain.fingerprint import code_digest
from sparsify.compiler.kernel.stored_kernels import Stored, opened, usable
from sparsify.errors import CompilerError, DataError, SparsifyError
from sparsify.options import current
from sparsify.passes import saved_folder
from sparsify.passes.capture.draft import Asked, Pruning
from sparsify.passes.saved_folder import GRAPH, RECIPE, WEIGHTS, Manifest
from sparsify.passes.served.restore import restored
from sparsify.passes.served.served_module import ServedModule
from sparsify.passes.served.weights import Mapped
from sparsify.recipe.source import MAX_BYTES
from sparsify.warn import warn

# The widest level first: kernels of this CPU are better than those of a level.
PREFERRED: Final = (levels.NATIVE, "avx512", "avx2")
HERE: Final = "they are built on this machine where it has a C++ compiler, else torch's operators compute"


def load_served(place: Path) -> ServedModule:
    """The model in a folder that was saved with its kernels.

    Raises:
        DataError: a file is missing or was changed, there are no graphs, or they are those of another version.
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
    text = paths[RECIPE].read_text(encoding="utf-8") if paths[RECIPE].stat().st_size <= MAX_BYTES else ""
    recipe = recipes.loads(text, str(paths[RECIPE]))
    pruning = Pruning(passed=manifest.passed or {}, is_known=manifest.passed is not None)
    asked = Asked(recipe, None, False, False, False, pruning=pruning, is_calibrated=True)
    options = replace(current(), threads=recipe.compile.threads or current().threads)
    if (saved := manifest.torch.partition("+")[0]) != (now := str(torch.__version__).partition("+")[0]):
        warn(
            f"{place} was saved with torch {saved}, and this is torch {now}: save it again if calls are not known"
        )
    try:
        document = json.loads(paths[GRAPH].read_text(encoding="utf-8"))
        kernels = {name: path for name, path in paths.items() if name.endswith(".so")}
        stored = stored_kernels(place, manifest, document, kernels)
        return restored(document, Mapped(paths[WEIGHTS]), stored, asked, options, place.absolute())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        if isinstance(error, SparsifyError):
            raise
        raise DataError(
            f"{paths[GRAPH]} was written by sparsify {manifest.sparsify} with torch {manifest.torch}, and this is "
            f"another version: {type(error).__name__}: {error}",
            "load it with that version, or apply the recipe and save the model again",
        ) from error


def stored_kernels(
    place: Path, manifest: Manifest, document: Mapping[str, Any], paths: Mapping[str, Path]
) -> Stored:
    """The kernels of a folder for the best level that this CPU runs; none, with a warning, where it runs none."""
    if manifest.code != code_digest():
        why = f"they were built by another version of sparsify ({manifest.sparsify})"
    else:
        level, why = usable(manifest.levels, manifest.instructions, PREFERRED)
        if level is not None:
            folders = {path.parent for path in paths.values()}
            try:
                return opened(folders.pop() if folders else place, document, level)
            except CompilerError as error:
                why = str(error)
        else:
            why = f"they are for other CPUs: {why}"
    warn(f"the kernels in {place} cannot be used, {HERE}: {why}")
    return Stored()
