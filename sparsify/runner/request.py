"""The request of a run, checked and completed before anything is loaded.

In: `resolve("gcn", overrides={"hidden": "64"})`. Out: the model, its recipe, data set and arguments.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sparsify import recipe as recipes
from sparsify.errors import SparsifyError
from sparsify.models import registry
from sparsify.recipe import Recipe
from sparsify.recipe.source import parse_scalar
from sparsify.recipe.suggestion import nearest
from sparsify.runner.attention import kind_of, numbers_of, with_sparse_attention
from sparsify.runner.weights import with_sparse_weights

TRAINING = {"epochs": 200, "lr": 0.01, "weight_decay": 5e-4, "patience": 100, "validate_every": 1}


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request.

    Attributes:
        entry: the registered model.
        recipe: rules for sparse tensors.
        dataset: the name of the data set.
        data_root: the folder of real data, None when not given.
        arguments: arguments of the model's factory.
        training: arguments of the training, over the defaults.
        seed: seed of all random numbers.
        batch, seq: rows and tokens of the input of a model without a graph; None for usual sizes.
        batch_size: seed nodes of a step on sampled neighbourhoods, None for steps on the whole graph.
        fanout: numbers of sampled neighbours, one for each hop away from the seed nodes.
        trains_sparse: whether the sparse model is trained instead of the dense one.
    """

    entry: registry.Entry
    recipe: Recipe
    dataset: str
    data_root: Path | None
    arguments: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch: int | None = None
    seq: int | None = None
    batch_size: int | None = None
    fanout: tuple[int, ...] = ()
    trains_sparse: bool = False


def resolve(
    model: str,
    *,
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe | None = None,
    dataset: str | None = None,
    data_root: str | PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    seed: int | None = None,
    sparse_weights: str | None = None,
    sparse_attn: str | None = None,
    layers: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    batch_size: int | None = None,
    fanout: str | None = None,
    sparse: bool = False,
) -> Request:
    """The request with its defaults filled in.

    A key of `overrides` is looked up among the arguments of the recipe, the model, the training and the pattern of
    attention, in order. The data set is `dataset`, else the data set of an explicit recipe, else the model's first.

    Raises:
        SparsifyError: a model, data set or key is unknown.
        RecipeError: the recipe is not valid.

    >>> resolve("gcn", overrides={"hidden": "64"}).arguments["hidden"]
    64
    """
    entry = registry.find(model)
    loaded = recipes.load(entry.recipe if recipe is None else recipe)
    keys = {key: parsed(value) for key, value in (overrides or {}).items()}
    of_recipe = {key: keys.pop(key) for key in list(keys) if key in loaded.args}
    if of_recipe:
        loaded = recipes.load(entry.recipe if recipe is None else recipe, **of_recipe)
    if sparse_attn is not None and sparse_weights is None and recipe is None:
        loaded = loaded.with_rules(())  # attention alone
    if sparse_weights is not None:
        loaded = with_sparse_weights(loaded, sparse_weights)
    require_sizes(entry, batch, seq)
    sampling = sampling_of(entry, batch_size, fanout)
    require_training(entry, batch_size, sparse)
    known = entry.arguments()
    arguments = known | model_arguments(loaded, entry, known)
    arguments |= positions_for(seq, arguments, keys)
    arguments |= {key: keys.pop(key) for key in list(keys) if key in known}
    trainable = TRAINING if entry.is_graph else {}
    training = {key: keys.pop(key) for key in list(keys) if key in trainable}
    require_attention(entry, sparse_attn, layers, arguments.get("layers"))
    loaded = with_pattern(loaded, sparse_attn, layers, keys)
    require_none(keys, [*loaded.args, *known, *trainable])
    require_types(arguments, known)
    require_types(training, TRAINING)
    require_positive(training, ("epochs", "patience", "validate_every"))
    named = chosen_data(entry, loaded if recipe is not None else None, dataset)
    chosen_seed = require_seed(seed if seed is not None else loaded.seed or 0)
    root = None if data_root is None else Path(data_root).expanduser()
    return Request(
        entry, loaded, named, root, arguments, training, chosen_seed, batch, seq, *sampling, sparse
    )


def require_seed(seed: int) -> int:
    """The seed; raises unless it fits 32 bits."""
    if not 0 <= seed < 2**32:
        raise SparsifyError(f"the seed {seed}", f"a whole number from 0 to {2**32 - 1}")
    return seed


def require_attention(
    entry: registry.Entry, sparse_attn: str | None, layers: str | None, count: int | None
) -> None:
    """Raises for a pattern on a model without attention, or for layers beyond `count` (None if unknown)."""
    if sparse_attn is None:
        return
    if entry.is_graph:
        raise SparsifyError(
            f"--sparse-attn {sparse_attn}: {entry.name} has no attention over tokens",
            "its pattern is the graph; bert and vit take patterns",
        )
    if layers is not None and count is not None and (beyond := max(numbers_of(layers))) >= count:
        raise SparsifyError(
            f"--layers {layers}: there is no layer {beyond}", f"numbers from 0 to {count - 1}"
        )


def with_pattern(recipe: Recipe, sparse_attn: str | None, layers: str | None, keys: dict[str, Any]) -> Recipe:
    """The recipe with the requested pattern of attention, if any; the pattern consumes the remaining `keys`."""
    if sparse_attn is not None:
        numbers = {key: keys.pop(key) for key in list(keys)}
        return with_sparse_attention(recipe, kind_of(sparse_attn), numbers, layers)
    if layers is not None:
        raise SparsifyError(
            f"--layers {layers} is for --sparse-attn", "give a pattern, as in --sparse-attn bigbird"
        )
    return recipe


def positions_for(seq: int | None, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Positions for all tokens, for a model with random weights and too few positions by default."""
    has_positions = "positions" in arguments and "positions" not in given
    if seq is None or not has_positions or given.get("checkpoint", arguments.get("checkpoint")):
        return {}
    return {"positions": max(seq, arguments["positions"])}


def chosen_data(entry: registry.Entry, recipe: Recipe | None, dataset: str | None) -> str:
    """The requested data set, else the data set of an explicit recipe, else the model's first."""
    named = dataset or (recipe.data.name if recipe is not None and recipe.data else entry.datasets[0])
    if named not in entry.datasets:
        raise SparsifyError(f"{entry.name} does not run on {named!r}{nearest(named, entry.datasets)}")
    return named


def require_sizes(entry: registry.Entry, batch: int | None, seq: int | None) -> None:
    """Raises for sizes unknown to the model's input, and for sizes below 1."""
    for name, size, has in (("batch", batch, not entry.is_graph), ("seq", seq, entry.inputs == "tokens")):
        if size is not None and not has:
            fit = ", ".join(
                other.name
                for other in registry.MODELS.values()
                if (not other.is_graph if name == "batch" else other.inputs == "tokens")
            )
            raise SparsifyError(f"--{name} {size}: {entry.name} has no such size; it is for {fit}")
        if size is not None and size < 1:
            raise SparsifyError(f"--{name} {size}: at least 1 is wanted")


def require_training(entry: registry.Entry, batch_size: int | None, is_asked: bool) -> None:
    """Raises for `--sparse` without a training of the sparse model alone.

    Raises:
        SparsifyError: runs do not train the model, or train both models on samples.
    """
    if not is_asked:
        return
    if not entry.is_graph:
        fit = ", ".join(one.name for one in registry.MODELS.values() if one.is_graph)
        raise SparsifyError(f"--sparse: {entry.name} is not trained by a run", f"it is for {fit}")
    if batch_size is not None:
        raise SparsifyError(
            f"--sparse with --batch-size {batch_size}: on samples both models are trained",
            "leave out --sparse",
        )


def sampling_of(
    entry: registry.Entry, batch_size: int | None, fanout: str | None
) -> tuple[int | None, tuple[int, ...]]:
    """Batch size and numbers of neighbours (`10,10`); `None, ()` without sampling.

    Raises:
        SparsifyError: a model without an edge_index, one option without the other, or numbers below 1.
    """
    if batch_size is None and fanout is None:
        return None, ()
    if entry.inputs != "edge_index":
        fit = ", ".join(one.name for one in registry.MODELS.values() if one.inputs == "edge_index")
        raise SparsifyError(
            f"--batch-size and --fanout: {entry.name} has no edges to sample; they are for {fit}"
        )
    if batch_size is None or fanout is None:
        raise SparsifyError(
            "sampled neighbourhoods need --batch-size and --fanout", "as in --batch-size 1024 --fanout 10,10"
        )
    counts = [parse_scalar(part) for part in fanout.split(",")]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in counts):
        raise SparsifyError(f"--fanout {fanout}", "whole numbers above 0 with commas between, as 10,10")
    if batch_size < 1:
        raise SparsifyError(f"--batch-size {batch_size}: at least 1 is wanted")
    return batch_size, tuple(counts)


def parsed(value: Any) -> Any:
    """The value of a text on the command line."""
    return parse_scalar(value) if isinstance(value, str) else value


def model_arguments(recipe: Recipe, entry: registry.Entry, known: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the model from the recipe; from a recipe for another model, only known arguments."""
    if recipe.model is None:
        return {}
    given = recipe.model.args
    if recipe.model.factory == entry.name:
        require_none({key: value for key, value in given.items() if key not in known}, known)
    return {key: value for key, value in given.items() if key in known}


def require_none(unknown: Mapping[str, Any], known: Any) -> None:
    """Raises for the first key without a taker."""
    for key, value in unknown.items():
        raise SparsifyError(f"{key}={value}: nothing here has an argument {key!r}{nearest(key, known)}")


def require_types(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises for the first argument with another type than the default's."""
    for key, value in arguments.items():
        kind = type(defaults[key])
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool) != (
            kind is bool
        ):
            raise SparsifyError(f"{key}={value!r}: {KINDS[kind]} is wanted, as in {key}={defaults[key]}")


KINDS: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def require_positive(arguments: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raises for the first of `keys` with an argument below 1."""
    for key in keys:
        if arguments.get(key, 1) < 1:
            raise SparsifyError(f"{key}={arguments[key]}: at least 1 is wanted")


def split_pairs(pairs: list[str]) -> dict[str, str]:
    """`["hidden=64"]` as `{"hidden": "64"}`."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SparsifyError(f"{pair!r} is no argument", "write key=value, as in hidden=64")
        if key in found:
            raise SparsifyError(f"{key} is given twice: {found[key]} and {value}")
        found[key] = value
    return found
