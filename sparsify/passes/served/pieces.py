"""Models in pieces as files: kernels and decisions of each piece, for a later load with the model's class.

In: a `SparseModule` with Python code between its graphs. Out: `described_pieces(module, levels)`, a document with the
dense weights and the document of each piece; later `StoredPieces`, in which Dynamo's graphs find their kernels. A graph
without an entry, and a piece whose weights have changed, are captured as without the folder.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.compiler.cpp.toolchain import levels
from sparsify.compiler.cpp.toolchain.fingerprint import code_digest
from sparsify.errors import DataError
from sparsify.options import current
from sparsify.passes import saved_folder
from sparsify.passes.capture.calls import CallShape
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.manifest import GRAPH, Manifest
from sparsify.passes.module.piecewise import PieceKey
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.served.describe import Described, described
from sparsify.passes.served.kinds import decoded_shape, encoded_shape
from sparsify.passes.served.load import PIECES, of_this_version, stored_kernels
from sparsify.passes.served.restore import dense_state, restored
from sparsify.passes.served.served_module import ServedModule
from sparsify.passes.served.values import decoded, encoded
from sparsify.report import PieceEntry
from sparsify.runtime.locks import CAPTURES

# The entry, the number, the document and the kernels of a graph.
StoredGraph = tuple[PieceEntry, int, Any, Any]
# Prefix of the arrays of pieces: names of weights do not start with a dot.
PREFIX: Final = f".{PIECES}."


def is_in_pieces(module: SparseModule) -> bool:
    """Whether all calls in evaluation so far ran in pieces."""
    captures = module._captures
    if module.training or captures.pieces is None:
        return False
    kinds = [kind for kind in captures.refused if not any(kind[0])]
    is_captured = any(not any(mode) for (mode, _), _ in captures.entries)
    return bool(kinds) and all(kind in captures.piecewise for kind in kinds) and not is_captured


def described_pieces(
    module: SparseModule, target: Sequence[str], state: Mapping[str, Tensor], tied: Mapping[str, str]
) -> Described:
    """The document of a model in pieces, its arrays, and the kernels of its pieces for levels of CPUs.

    Args:
        module: model whose calls in evaluation ran in pieces.
        target: levels of CPUs.
        state: dense weights of the model, each once.
        tied: the name in `state` for each further name of a weight.

    Raises:
        DataError: the model trains, or a piece has computations that no file holds.
        CompilerError: kernels cannot be built for a level.
    """
    arrays, files, graphs = Arrays(state), dict[str, Path](), list[dict[str, Any]]()
    with CAPTURES:
        assert module._captures.pieces is not None, "calls of the model ran in pieces"
        compiler = module._captures.pieces.compiler
        for key, choice in compiler.storable():
            piece = None
            if isinstance(choice.module, ServedModule):
                raise DataError(
                    "the model has the kernels of a folder",
                    "copy that folder, or load the model without kernels=True, call it and save it",
                )
            if choice.module is not None:
                made = described(choice.module, target)
                piece = made.document
                for name, array in made.arrays.items():
                    arrays.add(array_name(len(graphs), name), array)
                files |= made.files
            graphs.append({"key": encoded(tuple(key)), "entry": encoded(choice.entry), "piece": piece})
        kinds = [
            [encoded_shape(shape), why]
            for (mode, shape), why in module._captures.refused.items()
            if not any(mode)
        ]
    names = [*state, *tied]
    document = {
        "model": type(module._source).__name__,
        "parameters": names,
        "buffers": [],
        "temporary": [],
        "tensors": {name: tied.get(name, name) for name in names},
        "held": {},
        PIECES: {
            "kinds": kinds,
            "graphs": graphs,
            "sizes": compiler.has_data_sizes,
            "shared": arrays.shared,
        },
    }
    facts = {"levels": list(target), "instructions": levels.own_sets(), "code": code_digest()}
    return Described(document, facts, arrays.by_name, files)


class Arrays:
    """The arrays of a file, each once: weights of the model, and those of pieces.

    Attributes:
        by_name: arrays by name; no two share memory.
        shared: the name in `by_name` for each further name of an array.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.by_name = dict(state)
        self.shared: dict[str, str] = {}
        self._names = {_view(array): name for name, array in state.items()}
        self._memory = {array.untyped_storage().data_ptr() for array in state.values()}

    def add(self, name: str, array: Tensor) -> None:
        """Adds an array; other views of memory in the file are copied."""
        known = self._names.setdefault(_view(array), name)
        if known != name and array.numel():
            self.shared[name] = known
            return
        memory = array.untyped_storage().data_ptr()
        self.by_name[name] = array.clone() if memory in self._memory else array
        self._memory.add(memory)


def _view(array: Tensor) -> Any:
    """The entries in memory that an array reads."""
    return array.data_ptr(), array.dtype, array.shape, array.stride()


class Unpacked:
    """The dense weights of a folder with graphs, and the pieces of its model.

    Args:
        kernels: whether the folder is trusted: whether its shared objects may be loaded.

    Attributes:
        pieces: pieces of the folder read last; None for a model of whole graphs, and without trust.
    """

    def __init__(self, kernels: bool) -> None:
        self.kernels = kernels
        self.pieces: StoredPieces | None = None

    def __call__(self, folder: Path, manifest: Manifest, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model state in a folder as dense tensors for the source class.

        Raises:
            DataError: graphs are missing, changed, or of another version.
        """
        path = saved_folder.checked(folder, manifest, GRAPH)
        with of_this_version(manifest, path):
            document = json.loads(saved_folder.text_of(path))
            self.pieces = None
            if self.kernels and PIECES in document:
                self.pieces = StoredPieces(folder, manifest, document[PIECES], tensors)
            return dense_state(document, tensors.__getitem__)


class StoredPieces:
    """The pieces of a model in a folder.

    Args:
        folder, manifest: folder of the model and its manifest.
        document: part of the folder's document about pieces.
        tensors: arrays of the folder.

    Attributes:
        refusals: reason why no graph holds calls of a kind, by kind in evaluation.
        has_data_sizes: whether operators such as `x[mask]` are part of pieces.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        self.folder = folder
        self.tensors = {name: array for name, array in tensors.items() if name.startswith(PREFIX)}
        self.tensors |= {name: tensors[known] for name, known in document["shared"].items()}
        self.has_data_sizes = bool(document["sizes"])
        self.refusals: dict[CallShape, str] = {
            decoded_shape(shape): str(why) for shape, why in document["kinds"]
        }
        names = [name for name in manifest.files if name != GRAPH]
        paths = {name.rpartition("/")[2]: saved_folder.checked(folder, manifest, name) for name in names}
        self.graphs: dict[PieceKey, list[StoredGraph]] = {}
        for number, graph in enumerate(document["graphs"]):
            kernels = None
            if graph["piece"] is not None:
                kernels = stored_kernels(folder, manifest, graph["piece"], paths)
                if kernels.level is None:  # warned already
                    self.graphs, self.refusals = {}, {}
                    return
            key, entry = PieceKey(*decoded(graph["key"])), decoded(graph["entry"])
            self.graphs.setdefault(key, []).append((entry, number, graph["piece"], kernels))

    def __deepcopy__(self, memo: dict[int, Any]) -> "StoredPieces":
        return self

    def __reduce__(self) -> Any:
        return unknown, ()

    def find(
        self, key: PieceKey, members: Mapping[str, Tensor], request: ApplyRequest
    ) -> tuple[PieceEntry, SparseModule | None] | None:
        """The entry and the kernels of a graph; None for an unknown graph or other weights.

        Args:
            key: the graph.
            members: parameters and buffers of the graph, by name.
            request: arguments of `apply` for the piece.
        """
        for entry, number, document, kernels in self.graphs.get(key, ()):
            if document is None:
                return entry, None
            if self._has_weights(number, document, members):
                return entry, self._restored(number, document, kernels, members, request)
        return None

    def _has_weights(self, number: int, document: Any, members: Mapping[str, Tensor]) -> bool:
        """Whether a graph of the folder has the weights of a graph: repeated blocks have equal keys."""
        with torch.no_grad():
            state = dense_state(document, self.array_of(number))
            return all(torch.equal(state[name], one) for name, one in members.items() if name in state)

    def _restored(
        self, number: int, document: Any, kernels: Any, members: Mapping[str, Tensor], request: ApplyRequest
    ) -> SparseModule:
        """The kernels of a graph."""
        array = self.array_of(number)

        def live(name: str) -> Tensor:
            # Weights in no packed form are those of the model, and follow its changes.
            member = members.get(name)
            return (
                array(name)
                if member is None or not isinstance(document["tensors"].get(name), str)
                else member
            )

        threads = request.recipe.compile.threads
        options = replace(current(), threads=threads or current().threads)
        with torch.inference_mode(False):
            return restored(document, live, kernels, request, options, self.folder)

    def array_of(self, number: int) -> Callable[[str], Tensor]:
        """The function from the names of a piece's arrays to arrays."""
        return lambda name: self.tensors[array_name(number, name)]


def array_name(number: int, name: str) -> str:
    """The name of an array of a piece in the file of the model.

    >>> array_name(2, "lin.bias")
    '.pieces.2.lin.bias'
    """
    return f"{PREFIX}{number}.{name}"


def unknown() -> None:
    """The pieces of a pickled model: another process captures them anew, since libraries are not pickled."""
