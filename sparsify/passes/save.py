"""A sparse model in a folder, and back: weights, recipe and manifest, no pickle.

In: `save(sparse, "model/")`, later `load("model/", model)`. Out: `weights.safetensors`, `recipe.yaml` and
`manifest.json`; a `SparseModule` with these weights.
"""

import json
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch
from ruamel.yaml import YAML
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sparsify import recipe as recipes
from sparsify.errors import DataError
from sparsify.passes.apply import applied
from sparsify.passes.base import Asked
from sparsify.passes.pruning import Pruning
from sparsify.passes.sparse_module import SparseModule
from sparsify.recipe import Recipe

LAYOUT: Final = 1
WEIGHTS, RECIPE, MANIFEST = "weights.safetensors", "recipe.yaml", "manifest.json"


def save(module: SparseModule, folder: str | PathLike[str]) -> Path:
    """The folder, in which the model's weights, its recipe and what `apply` was asked for now are.

    Tied weights are stored once. The code of the model is not stored: `load` takes the model.

    Args:
        module: the result of `apply`.
        folder: made when it does not exist; files of an earlier `save` are replaced.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    tensors, tied = distinct(module.state_dict())
    asked = module._asked
    manifest = {
        "layout": LAYOUT,
        "model": type(module._source).__name__,
        "training": module.training,
        "strict": asked.strict,
        "verify": asked.verify,
        "trainable": asked.trainable,
        "tied": tied,
        "passed": asked.pruning.passed,
        "sparsify": version(),
        "torch": str(torch.__version__),
    }
    save_file(tensors, place / WEIGHTS)
    (place / RECIPE).write_text(recipe_text(asked.recipe), encoding="utf-8")
    (place / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return place


def load(
    folder: str | PathLike[str], model: nn.Module, example_inputs: Any = None, **changes: Any
) -> SparseModule:
    """The sparse model in a folder that `save` wrote.

    Args:
        folder: as given to `save`.
        model: of the class that was saved; its weights are overwritten by those of the folder.
        example_inputs: as for `apply`; without them the capture happens at the first call.
        changes: arguments of `apply` that differ from those at saving.

    Raises:
        DataError: a file is missing, damaged or of a newer layout, or the weights do not fit the model.
        RecipeError: the recipe is wrong.
    """
    place = Path(folder)
    manifest = read_manifest(place)
    try:
        tensors = load_file(place / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read {place / WEIGHTS}: {error}", "save the model again") from None
    tensors |= {name: tensors[first] for name, first in manifest["tied"].items()}
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        found = type(model).__name__
        raise DataError(
            f"the weights in {place}, of a {manifest['model']}, do not fit this {found}: {error}",
            "build the model with the arguments that it had when it was saved",
        ) from None
    model.train(manifest["training"])
    kept = {name: manifest[name] for name in ("strict", "verify", "trainable")}
    passed = {int(at): reasons for at, reasons in manifest.get("passed", {}).items()}
    pruning = Pruning(passed=passed, is_known="passed" in manifest)
    asked = Asked(recipes.load(place / RECIPE), pruning=pruning, **{**kept, **changes})
    return applied(model, asked, example_inputs)


def read_manifest(place: Path) -> dict[str, Any]:
    """The manifest of a folder."""
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{place} holds no saved sparse model: {error}", "name a folder that sparsify.save wrote"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("layout") != LAYOUT:
        raise DataError(
            f"{place / MANIFEST} has a layout that this version does not know, it reads {LAYOUT}",
            "load it with the version of sparsify that wrote it",
        )
    return manifest


def distinct(state: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a state, each once, and for further names of a tensor its first."""
    first: dict[tuple[Any, ...], str] = {}
    tensors, tied = {}, {}
    for name, value in state.items():
        place = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        known = first.setdefault(place, name)
        if known == name:
            tensors[name] = value.detach().contiguous().clone()
        else:
            tied[name] = known
    return tensors, tied


def recipe_text(recipe: Recipe) -> str:
    """The recipe as YAML that reads back equal."""
    stream = StringIO()
    YAML(typ="safe", pure=True).dump(
        recipe.model_dump(mode="json", by_alias=True, exclude_unset=True), stream
    )
    return stream.getvalue()


def version() -> str:
    """The version of this package."""
    from sparsify import __version__

    return __version__
