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
DIGITS = ("synthetic", "mnist")
PHOTOGRAPHS = ("synthetic", "cifar10")
Factory = Callable[..., "nn.Module"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered model.

    Attributes:
        name: how `sparsify run` calls it.
        factory: makes the model, for graphs from (features, classes, ...); or `"module:attribute"` to import later.
        recipe: the recipe that is used when none is given.
        datasets: what it can run on; the first is the default.
        inputs: what its forward takes: the features of a graph and an edge_index or a normalised adjacency; or rows
            of features, of pixels, most of them 0, of numbers with bags of rows of tables, of tokens, or images.
        extra: of this distribution, that installs what the model is built with.
        trains_on: the data sets that `sparsify train` has for it, a generated one first; none of other models.
        by_hand: makes a call that a user of torch alone would write, from (model, graph): `"module:attribute"`, or
            "" where there is none.
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

    @property
    def is_graph(self) -> bool:
        """Whether the model runs on a graph, which gives it its sizes and something to learn."""
        return self.inputs in ("edge_index", "adjacency")

    def load(self) -> Factory:
        """The factory itself.

        Raises:
            SparsifyError: the package that the model is built with is not installed.
        """
        if not isinstance(self.factory, str):
            return self.factory
        module, _, attribute = self.factory.partition(":")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch-geometric uses parts of torch that are to go
                found: Factory = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise SparsifyError(
                f"{self.name} needs {error.name}, which is not installed",
                f"pip install 'sparsify-fx[{self.extra}]'",
            ) from error
        return found

    def written_by_hand(self, model: "nn.Module", graph: "Graph") -> "Callable[[], Tensor] | None":
        """A pass of `model` over `graph` as torch alone has it, `None` where nobody wrote one."""
        if not self.by_hand:
            return None
        module, _, attribute = self.by_hand.partition(":")
        found: Callable[[], Tensor] = getattr(importlib.import_module(module), attribute)(model, graph)
        return found

    def arguments(self) -> dict[str, Any]:
        """The factory's own arguments and their defaults, the sizes that the data give left out."""
        parameters = inspect.signature(self.load()).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def build(self, features: int, classes: int, arguments: Mapping[str, Any], seed: int = 0) -> "nn.Module":
        """A new model for a graph."""
        return self.make(arguments, seed, features, classes)

    def make(self, arguments: Mapping[str, Any], seed: int = 0, *sizes: int) -> "nn.Module":
        """A new model with weights drawn from `seed`; the state of torch's generator stays as it was.

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
    """Makes a model known to `sparsify run`; a name is given once."""
    if entry.name in MODELS:
        raise SparsifyError(f"the model {entry.name!r} is registered already", "choose another name")
    MODELS[entry.name] = entry
    return entry


def find(name: str) -> Entry:
    """The model called `name`.

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
    )
)
