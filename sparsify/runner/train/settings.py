"""Settings of `sparsify train`, checked and completed before anything is loaded.

In: `resolve("gpt", recipe="rigl90", steps=1000)`. Out: `Settings` with the recipe, the data set and the sizes of
batches; `to_dict()` is stored in a checkpoint, for comparison with the settings of a resumed run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch

from sparsify import recipe as recipes
from sparsify.errors import SparsifyError
from sparsify.models import registry
from sparsify.recipe import Recipe
from sparsify.recipe.suggestion import nearest
from sparsify.runner.request import model_arguments, parsed, require_none, require_seed, require_types

BATCH: Final = {"tokens": 16, "images": 64, "pixels": 64, "features": 64}
SEQ: Final = 128
LEARNING_RATE: Final = 1e-3
STEPS: Final = 1000
"""Steps of a recipe without schedules."""
BEYOND: Final = 4 / 3
"""The steps of a training over those of its schedules."""
VALIDATIONS: Final = 10
DENSE: Final = "dense"
"""The teacher that is the model itself before it is pruned."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A training.

    Attributes:
        model: the registered name.
        recipe: recipe as plain data.
        arguments: arguments of the model's factory.
        dataset: a data set of the model, or the path of a text.
        data_root: the folder of real data, "" for none.
        steps, lr, batch_size, seq, seed: numbers of the training; `seq` is 0 for models without texts.
        validate_every, save_every: steps between validations, and between checkpoints.
        is_dense: whether the dense model is trained instead.
        device: device of model and batches; kernels run on "cpu" alone.
        teacher: source of results to learn in place of labels: "dense" (the model before pruning) or the folder of an
            earlier training; "" for none.
    """

    model: str
    recipe: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    dataset: str = "synthetic"
    data_root: str = ""
    steps: int = STEPS
    lr: float = LEARNING_RATE
    batch_size: int = 64
    seq: int = 0
    seed: int = 0
    validate_every: int = 100
    save_every: int = 500
    is_dense: bool = False
    device: str = "cpu"
    teacher: str = ""

    @property
    def entry(self) -> registry.Entry:
        """The registered model."""
        return registry.find(self.model)

    @property
    def loaded(self) -> Recipe:
        """The recipe."""
        return recipes.load(self.recipe)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        return asdict(self)


def resolve(
    model: str,
    *,
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe | None = None,
    overrides: Mapping[str, Any] | None = None,
    dataset: str | None = None,
    text: str | PathLike[str] | None = None,
    data_root: str | PathLike[str] | None = None,
    steps: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seq: int | None = None,
    seed: int | None = None,
    validate_every: int | None = None,
    save_every: int | None = None,
    dense: bool = False,
    device: str = "cpu",
    teacher: str | PathLike[str] | None = None,
) -> Settings:
    """The settings with their defaults filled in.

    A key of `overrides` is looked up among the arguments of the recipe, then of the model. By default a training has a
    third more steps than the schedules of the recipe.

    Raises:
        SparsifyError: an impossible model, data set, key, number or device.
        RecipeError: the recipe is not valid.
    """
    entry = registry.find(model)
    if not entry.trains_on:
        raise SparsifyError(
            f"{model} is not trained by this command", f"it is for {', '.join(trained_models())}"
        )
    loaded, arguments = completed(entry, entry.recipe if recipe is None else recipe, overrides or {})
    if not dense and not any(rule.prune for rule in loaded.rules):
        raise SparsifyError(
            f"no rule of {loaded.name} prunes", "a recipe with `prune`, as rigl90, or --dense"
        )
    numbers = {"steps": steps, "batch-size": batch_size, "seq": seq}
    require_numbers(entry, lr, {**numbers, "validate-every": validate_every, "save-every": save_every})
    count = steps or usual_steps(loaded)
    root = "" if data_root is None else str(Path(data_root).expanduser())
    return Settings(
        model,
        loaded.model_dump(mode="json", by_alias=True, exclude_unset=True),
        arguments,
        chosen_data(entry, dataset, text, root),
        root,
        count,
        lr or LEARNING_RATE,
        batch_size or BATCH[entry.inputs],
        tokens_of(entry, arguments, seq),
        require_seed(seed if seed is not None else loaded.seed or 0),
        validate_every or max(1, count // VALIDATIONS),
        save_every or max(1, count // VALIDATIONS),
        dense,
        require_device(device),
        chosen_teacher(entry, teacher),
    )


def chosen_teacher(entry: registry.Entry, given: str | PathLike[str] | None) -> str:
    """The requested teacher; by default the dense model for encoders (texts have no labels), else none."""
    if given is None:
        return DENSE if entry.results == "states" else ""
    return str(given) if given == DENSE else str(Path(given).expanduser())


def require_device(name: str) -> str:
    """The name of a device, if torch can place tensors on the device.

    Raises:
        SparsifyError: the device is not available.
    """
    try:
        torch.empty(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise SparsifyError(
            f"--device {name}: torch cannot use it here: {reason}",
            "cpu, or cuda with a build of torch for it",
        ) from error
    return name


def completed(
    entry: registry.Entry, given: Any, overrides: Mapping[str, Any]
) -> tuple[Recipe, dict[str, Any]]:
    """A recipe with its arguments, and the arguments of the model.

    Raises:
        SparsifyError: a key unknown to both.
    """
    keys = {key: parsed(value) for key, value in overrides.items()}
    of_recipe = {key: keys.pop(key) for key in list(keys) if key in recipes.load(given).args}
    loaded = recipes.load(given, **of_recipe)
    known = entry.arguments()
    arguments = known | model_arguments(loaded, entry, known)
    arguments |= {key: keys.pop(key) for key in list(keys) if key in known}
    require_none(keys, [*loaded.args, *known])
    require_types(arguments, known)
    return loaded, arguments


def require_numbers(entry: registry.Entry, lr: float | None, numbers: Mapping[str, int | None]) -> None:
    """Raises for options out of range, and for `seq` on a model without texts."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise SparsifyError(f"--{name} {number}: at least 1 is wanted")
    if lr is not None and not 0 < lr < float("inf"):
        raise SparsifyError(f"--lr {lr:g}: a number above 0 is wanted")
    if numbers["seq"] is not None and entry.inputs != "tokens":
        raise SparsifyError(f"--seq {numbers['seq']}: {entry.name} reads no texts")


def trained_models() -> list[str]:
    """Names of the models with data sets for training."""
    return [entry.name for entry in registry.MODELS.values() if entry.trains_on]


def last_update(recipe: Recipe) -> int:
    """The last step with a mask update in a schedule of the recipe."""
    parts = [part for rule in recipe.rules for part in (rule, *rule.later)]
    ends = [part.schedule.end or part.schedule.start for part in parts if part.prune and part.schedule]
    return max(ends, default=0)


def usual_steps(recipe: Recipe) -> int:
    """The default number of steps."""
    return round(BEYOND * last_update(recipe)) or STEPS


def tokens_of(entry: registry.Entry, arguments: Mapping[str, Any], seq: int | None) -> int:
    """The tokens of a text, 0 for models without texts.

    Raises:
        SparsifyError: more tokens than the model's positions.
    """
    if entry.inputs != "tokens":
        return 0
    key = "context" if "context" in arguments else "positions"
    most = arguments[key]
    if seq is not None and seq > most:
        raise SparsifyError(f"--seq {seq}: {entry.name} has {most} positions", f"{key}={seq} makes more")
    return min(SEQ, most) if seq is None else seq


def chosen_data(
    entry: registry.Entry, dataset: str | None, text: str | PathLike[str] | None, root: str
) -> str:
    """The requested data set; else a data set in the folder of real data; else the generated one.

    Raises:
        SparsifyError: two data sets are given, or one not for the model.
        DataError: the folder of real data has no data set of the model.
    """
    generated, *real = entry.trains_on
    if text is not None:
        if entry.inputs != "tokens":
            raise SparsifyError(f"--text {text}: {entry.name} reads no texts")
        if dataset is not None:
            raise SparsifyError(f"--text {text} and --dataset {dataset} are two data sets", "give one")
        return str(Path(text).expanduser())
    if dataset is not None:
        if dataset not in entry.trains_on:
            raise SparsifyError(
                f"{entry.name} is not trained on {dataset!r}{nearest(dataset, entry.trains_on)}"
            )
        return dataset
    if not root:
        return generated
    return next((name for name in real if is_there(name, Path(root))), real[0])


def is_there(name: str, root: Path) -> bool:
    """Whether a folder of data sets has one."""
    from sparsify.models.data.images import is_there as has_images
    from sparsify.models.data.sentences import ALL
    from sparsify.models.data.text import FOLDERS
    from sparsify.models.data.text import is_there as has_text

    if name == ALL:
        return any(has_text(each, root) for each in FOLDERS)
    return (has_text if name in FOLDERS else has_images)(name, root)
