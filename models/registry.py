"""Models by name.

In: `find("gcn")`. Out: its factory, default recipe and inputs. Listing names imports no torch.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from sparsify.errors import SparsifyError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sparsify.models.data.graph import Graph

GRAPHS = ("synthetic", "cora", "citeseer", "pubmed", "ogbn-arxiv")
RANDOM = ("random",)
TEXTS = ("synthetic", "ag_news", "imdb")
SENTENCES = ("synthetic", "texts", "ag_news", "imdb")
DIGITS = ("synthetic", "mnist")
PHOTOGRAPHS = ("synthetic", "cifar10")
Factory = Callable[..., "nn.Module"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered model.

    Attributes:
        name: name in `sparsify run`.
        factory: maker of the model, for graphs from (features, classes, ...); or `"module:attribute"`, imported lazily.
        recipe: default recipe.
        datasets: supported data sets; the first is the default.
        inputs: kind of the arguments of forward: the features of a graph and an edge_index or a normalised adjacency;
            or rows of features, of mostly zero pixels, of numbers with bags of rows of tables, of tokens, or images.
        extra: extra of this distribution with the packages of the model.
        trains_on: data sets of `sparsify train` for the model, a generated one first; empty without training.
        results: kind of the results: logits of classes, or hidden states, trained by distillation only.
        by_hand: maker of an equivalent call in plain torch from (model, graph): `"module:attribute"`, or "" without.
    """

    name: str
    factory: Factory | str
    recipe: str
    datasets: tuple[str, ...] = GRAPHS
    inputs: Literal["edge_index", "adjacency", "features", "pixels", "bags", "tokens", "images"] = (
        "edge_index"
    )
    extra: str = "graph"
    by_hand: str = ""
    trains_on: tuple[str, ...] = ()
    results: Literal["classes", "states"] = "classes"

    @property
    def is_graph(self) -> bool:
        """Whether the model runs on a graph, which determines its sizes and its training task."""
        return self.inputs in ("edge_index", "adjacency")

    def load(self) -> Factory:
        """Factory of the model, imported on demand.

        Raises:
            SparsifyError: the package of the model is not installed.
        """
        if not isinstance(self.factory, str):
            return self.factory
        module, _, attribute = self.factory.partition(":")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch-geometric uses deprecated parts of torch
                found: Factory = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise SparsifyError(
                f"{self.name} needs {error.name}, which is not installed",
                f"pip install 'sparsify-fx[{self.extra}]'",
            ) from error
        return found

    def written_by_hand(self, model: "nn.Module", graph: "Graph") -> "Callable[[], Tensor] | None":
        """A pass of `model` over `graph` in plain torch, `None` without a hand-written version."""
        if not self.by_hand:
            return None
        module, _, attribute = self.by_hand.partition(":")
        found: Callable[[], Tensor] = getattr(importlib.import_module(module), attribute)(model, graph)
        return found

    def arguments(self) -> dict[str, Any]:
        """Arguments of the factory with defaults; sizes given by the data are left out."""
        parameters = inspect.signature(self.load()).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def build(self, features: int, classes: int, arguments: Mapping[str, Any], seed: int = 0) -> "nn.Module":
        """New model for a graph."""
        return self.make(arguments, seed, features, classes)

    def make(self, arguments: Mapping[str, Any], seed: int = 0, *sizes: int) -> "nn.Module":
        """New model with weights drawn from `seed`; the state of torch's generator is preserved.

        Raises:
            SparsifyError: arguments that the factory refuses.
        """
        import torch

        factory = self.load()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                return factory(*sizes, **arguments)
            except SparsifyError:
                raise
            except (RuntimeError, ValueError, TypeError, ArithmeticError, OSError) as error:
                given = ", ".join(f"{name}={value}" for name, value in arguments.items())
                raise SparsifyError(f"{self.name} cannot be built with {given}: {error}") from error


MODELS: dict[str, Entry] = {}


def register(entry: Entry) -> Entry:
    """Registers a model for `sparsify run`; names are unique."""
    if entry.name in MODELS:
        raise SparsifyError(f"the model {entry.name!r} is registered already", "choose another name")
    MODELS[entry.name] = entry
    return entry


def find(name: str) -> Entry:
    """Model called `name`.

    >>> find("gcn").recipe
    'gcn'
    """
    if name in MODELS:
        return MODELS[name]
    near = get_close_matches(name, MODELS, n=1)
    raise SparsifyError(
        f"there is no model {name!r}", f"did you mean {near[0]}?" if near else f"one of {', '.join(MODELS)}"
    )


BY_HAND = f"{__package__}.by_hand"

register(Entry("gcn", f"{__package__}.gcn:GCN", recipe="gcn", by_hand=f"{BY_HAND}:gcn"))
register(
    Entry(
        "gcn-matmul",
        f"{__package__}.gcn_matmul:MatmulGCN",
        recipe="gcn",
        inputs="adjacency",
        by_hand=f"{BY_HAND}:gcn_matmul",
    )
)
register(Entry("sage", f"{__package__}.sage:SAGE", recipe="sage", by_hand=f"{BY_HAND}:sage"))
register(Entry("gin", f"{__package__}.gin:GIN", recipe="gin", by_hand=f"{BY_HAND}:gin"))
register(Entry("gat", f"{__package__}.gat:GAT", recipe="gat", by_hand=f"{BY_HAND}:gat"))
register(
    Entry(
        "mlp",
        f"{__package__}.mlp:MLP",
        recipe="mlp",
        datasets=RANDOM,
        inputs="features",
        trains_on=DIGITS,
    )
)
register(
    Entry("bert", f"{__package__}.bert:bert", recipe="bert", datasets=RANDOM, inputs="tokens", extra="text")
)
register(Entry("vit", f"{__package__}.vit:vit", recipe="vit", datasets=RANDOM, inputs="images", extra="text"))
register(
    Entry(
        "autoencoder",
        f"{__package__}.autoencoder:Autoencoder",
        recipe="autoencoder",
        datasets=(*RANDOM, "mnist"),
        inputs="pixels",
    )
)
register(Entry("dlrm", f"{__package__}.dlrm:DLRM", recipe="dlrm", datasets=RANDOM, inputs="bags"))
register(
    Entry("resnet50", f"{__package__}.resnet:ResNet", recipe="resnet50", datasets=RANDOM, inputs="images")
)
register(
    Entry(
        "gpt",
        f"{__package__}.gpt:GPT",
        recipe="gpt",
        datasets=RANDOM,
        inputs="tokens",
        trains_on=TEXTS,
    )
)
register(
    Entry(
        "gpt-40m",
        f"{__package__}.gpt:gpt_40m",
        recipe="gpt",
        datasets=RANDOM,
        inputs="tokens",
        trains_on=TEXTS,
    )
)
register(
    Entry(
        "resnet20",
        f"{__package__}.resnet20:ResNet20",
        recipe="resnet20",
        datasets=RANDOM,
        inputs="images",
        trains_on=PHOTOGRAPHS,
    )
)
register(
    Entry(
        "lenet5",
        f"{__package__}.lenet:LeNet5",
        recipe="lenet",
        datasets=RANDOM,
        inputs="images",
        trains_on=DIGITS,
    )
)
register(
    Entry(
        "lenet300",
        f"{__package__}.lenet:LeNet300",
        recipe="lenet",
        datasets=(*RANDOM, "mnist"),
        inputs="pixels",
        trains_on=DIGITS,
    )
)
register(
    Entry(
        "minilm",
        f"{__package__}.minilm:minilm",
        recipe="minilm",
        datasets=RANDOM,
        inputs="tokens",
        extra="text",
        trains_on=SENTENCES,
        results="states",
    )
)
