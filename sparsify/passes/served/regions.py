"""Kernel calls and their operands as JSON and back: regions, memoized operands, node orders.

In: `RegionCall(program, operands, ...)` of an emitted graph. Out: an entry of `Writer.calls`, and from the entry an
equal call with a prebuilt kernel. Structures, kernels and calls are listed once each, in topological order.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.stored_kernels import Collected, Stored
from sparsify.errors import DataError
from sparsify.options import Options
from sparsify.passes.call.alternative import Alternative, ByRows, Preferred
from sparsify.passes.call.region_call import Operand, RegionCall, find
from sparsify.passes.capture.draft import Notices
from sparsify.passes.choose.linear_library import LIBRARIES, Product
from sparsify.passes.operands.cached_operands import Structure
from sparsify.passes.operands.convolution_operands import FlatImages
from sparsify.passes.reorder.node_order import METHODS, NodeOrder
from sparsify.passes.served.graphs import decoded_graph, encoded_graph
from sparsify.passes.served.values import decoded, encoded

if TYPE_CHECKING:
    from sparsify.passes.choose.torch_convolution import Folded

CSR: Final = "torch's CSR"
OPERATORS: Final = "its own operators"


def module_of(function: Any) -> fx.GraphModule:
    """The module whose bound forward is a function.

    Raises:
        DataError: the function belongs to no graph module.
    """
    found = getattr(function, "__self__", None)
    if not isinstance(found, fx.GraphModule):
        raise DataError(
            f"a region of this model reads what {function!r:.60} computes, which no file holds",
            "save without kernels=True, and load with the model",
        )
    return found


class Writer:
    """The calls of the graphs of a model as data.

    Args:
        collected: takes the shared objects of kernels.

    Attributes:
        calls, structures, kernels: as data, in order.
    """

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.calls: list[dict[str, Any]] = []
        self.structures: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []

    def graph(self, graph: fx.Graph) -> list[Any]:
        """A graph as data."""
        return encoded_graph(graph, self)

    def handle(self, value: Any) -> Any:
        """The number of the call with a handle."""
        return self.call(find(value))

    def target(self, value: Any) -> Any:
        """The target of a node as data if the target is an object of this package, else None."""
        from sparsify.passes.choose.torch_convolution import Folded

        owner = value.__self__ if isinstance(value, MethodType) else None
        if isinstance(owner, RegionCall):
            return {"region": self.call(owner)}
        if isinstance(owner, Product):
            names = [name for name, library in LIBRARIES.items() if library is owner.library]
            return {"product": [*names, owner.activation, owner.algorithm]}
        return {"folded": self.folded(value)} if isinstance(value, Folded) else None

    def call(self, call: Any) -> int:
        """The number of a region's call, or of an order of nodes."""
        write = self._order if isinstance(call, NodeOrder) else self._region
        return self._listed(call, self.calls, write)

    def _listed(self, value: Any, known: list[dict[str, Any]], write: Callable[[Any], dict[str, Any]]) -> int:
        """The position of an object in a list, appended if new."""
        if id(value) not in self._known:
            document = write(value)
            self._known[id(value)] = len(known)
            self._kept.append(value)
            known.append(document)
        return self._known[id(value)]

    def _order(self, order: NodeOrder) -> dict[str, Any]:
        """An order of nodes as data."""
        method = next(name for name, function in METHODS.items() if function is order.method)
        return {
            "order": method,
            "edges": self.graph(module_of(order.edges).graph),
            "entry": encoded(order.entry),
            "conversion": encoded(order.structure.entry),
        }

    def _region(self, call: RegionCall) -> dict[str, Any]:
        """The call of a region as data."""
        if call.failure is not None:
            raise DataError(
                f"{call.name} of this model has no kernel to save: {call.failure}",
                "make a C++ compiler available and apply the recipe again, or save without kernels=True",
            )
        operands = [
            {
                "name": o.name,
                "argument": o.argument,
                "leaves": list(o.leaves),
                "result": o.result,
                "full": o.is_full,
                "structure": None if o.structure is None else self.structure(o.structure),
            }
            for o in call.operands
        ]
        library = None if call.library is None else self.graph(module_of(call.library).graph)
        return {
            "name": call.name,
            "program": repr(call.program),
            "kernel": self.kernel(call.kernel),
            "operands": operands,
            "shapes": encoded(call.shapes),
            "dense": self.graph(call.dense.graph),
            "library": library,
            "layout": None if call.layout is None else self.layout(call.layout),
            "densely": sorted(call.densely),
            "general": call.is_general,
            "notes": list(call.notes),
            "preferred": None if call.preferred is None else self.preferred(call.preferred),
        }

    def preferred(self, found: Preferred | ByRows) -> Any:
        """The alternative to a region's kernel, with the key of its calls or their rows."""
        if isinstance(found, ByRows):
            place = {"argument": found.argument, "mode": found.mode, "ranges": encoded(found.ranges)}
            return {"name": found.alternative.name, "us": found.alternative.us, "rows": place}
        if found.alternative.name not in (CSR, OPERATORS):
            raise DataError(
                f"{found.alternative.name} computes a region, which no file holds", "another recipe"
            )
        return {"name": found.alternative.name, "us": found.alternative.us, "like": encoded(found._like)}

    def kernel(self, kernel: Kernel) -> int:
        """The number of a kernel."""
        return self._listed(kernel, self.kernels, self.collected.kernel)

    def structure(self, structure: Structure) -> int:
        """The number of a structure, a memoized computation of operands."""
        return self._listed(structure, self.structures, self._structure)

    def _structure(self, structure: Structure) -> dict[str, Any]:
        return {
            "graph": self.graph(module_of(structure.module).graph),
            "outputs": encoded(list(structure.outputs)),
            "entry": encoded(structure.entry),
            "most": structure.memory.most,
            "static": sorted(structure.memory.static),
            "frozen": structure.is_frozen,
        }

    def layout(self, layout: FlatImages) -> dict[str, Any]:
        """The layout of images for a convolution, and kernels for images of other sizes."""
        return {
            "windows": encoded(layout.windows),
            "places": encoded(layout.places),
            "example": list(layout.example.extents),
            "rows": None if layout.by_row is None else repr(layout.by_row),
            "keeps": layout.placed.most > 0,
            "single": layout.is_single,
            "by_rows": layout.has_rows,
            "readers": [[name, encoded(windows)] for name, windows in layout.reader_windows.items()],
            "others": [[list(extents), self.kernel(kernel)] for extents, kernel in layout.others.items()],
        }

    def folded(self, found: "Folded") -> dict[str, Any]:
        """A convolution of torch with the operators fused after it."""
        return {
            "leaves": list(found.leaves),
            "added": found.added,
            "image": found.image,
            "how": encoded(found.how),
            "eps": found.eps,
            "activation": found.activation,
            "layout": encoded(found.layout),
            "pool": None if found.pool is None else self.graph(module_of(found.pool).graph),
            "plain": self.graph(module_of(found.plain).graph),
            "name": found.__name__,
            "entry": encoded(found.structure.entry),
        }


class Reader:
    """The calls of graphs from data.

    Args:
        document: document with the lists of a `Writer`.
        stored: the kernels of the folder.
        options: options of kernels.
        notices: receiver of warnings.
    """

    def __init__(
        self, document: Mapping[str, Any], stored: Stored, options: Options, notices: Notices
    ) -> None:
        self.options, self.notices = options, notices
        self.kernels = [stored.kernel(kernel, options) for kernel in document["kernels"]]
        self.structures: list[Structure] = []
        self.calls: list[Any] = []
        self._documents = document["structures"]
        self._programs: dict[str, Program] = {}
        for call in document["calls"]:
            self.calls.append(self._order(call) if "order" in call else self._region(call))

    def graph(self, nodes: Sequence[Any]) -> fx.Graph:
        """A graph of data."""
        return decoded_graph(nodes, self)

    def forward(self, nodes: Sequence[Any]) -> Callable[..., Any]:
        """The function of a graph without parameters."""
        return Late(self, nodes)

    def handle(self, value: Any) -> Any:
        """The handle of a call, by number."""
        return self.calls[value].handle

    def target(self, value: Any) -> Any:
        """The target of a node."""
        ((kind, found),) = value.items()
        if kind == "region":
            return self.calls[found].__call__
        if kind == "product":
            name, activation, algorithm = found
            return Product(LIBRARIES[name], str(activation), str(algorithm)).__call__
        if kind == "folded":
            return self.folded(found)
        raise KeyError(kind)

    def structure(self, number: int) -> Structure:
        """The structure of a number, a memoized computation of operands."""
        while len(self.structures) <= number:
            document = self._documents[len(self.structures)]
            self.structures.append(
                Structure(
                    self.forward(document["graph"]),
                    decoded(document["outputs"]),
                    decoded(document["entry"]),
                    document["most"],
                    document["static"],
                    document["frozen"],
                )
            )
        return self.structures[number]

    def _program(self, text: str) -> Program:
        """The program of a text, shared by layers."""
        if text not in self._programs:
            self._programs[text] = serialize.read(text)
        return self._programs[text]

    def _order(self, document: Mapping[str, Any]) -> NodeOrder:
        entries = decoded(document["conversion"]), decoded(document["entry"])
        return NodeOrder(self.forward(document["edges"]), document["order"], *entries)

    def _region(self, document: Mapping[str, Any]) -> RegionCall:
        """The call of a region."""
        program = self._program(document["program"])
        operands = [
            Operand(
                o["name"],
                o["argument"],
                None if o["structure"] is None else self.structure(o["structure"]),
                tuple(o["leaves"]),
                o["result"],
                o["full"],
            )
            for o in document["operands"]
        ]
        library = None if document["library"] is None else self.forward(document["library"])
        call = RegionCall(
            program,
            operands,
            decoded(document["shapes"]),
            Late(self, document["dense"]),
            self.options,
            self.notices,
            library=library,
            layout=None if document["layout"] is None else self.layout(document["layout"]),
            kernel=self.kernels[document["kernel"]],
        )
        call.name, call.is_general, call.is_portable = document["name"], document["general"], True
        call.densely, call.notes = frozenset(document["densely"]), list(document["notes"])
        if document["preferred"] is not None:
            call.preferred = self.preferred(call, document["preferred"])
        return call

    def preferred(self, call: RegionCall, document: Mapping[str, Any]) -> Preferred | ByRows | None:
        """The alternative to a region's kernel."""
        from sparsify.passes.choose.adjacency import of_operands
        from sparsify.passes.choose.expert_products import expert_products, of_experts
        from sparsify.passes.choose.torch_csr import TorchProducts, products_of

        if (rows := document.get("rows")) is not None:
            experts = expert_products(call.program)
            if experts is None:
                return None
            made = Alternative(document["name"], partial(of_experts, experts), document["us"])
            return ByRows(made, rows["argument"], rows["mode"], decoded(rows["ranges"]))
        run: Any = RegionCall.dense_result
        if document["name"] == CSR:
            if not (products := products_of(call.kernel)):
                return None
            run = partial(of_operands, TorchProducts(call.kernel, products))
        found = Preferred(Alternative(document["name"], run, document["us"]), ())
        found._like = decoded(document["like"])
        return found

    def layout(self, document: Mapping[str, Any]) -> FlatImages:
        """The layout of images for a convolution."""
        rows = None if document["rows"] is None else serialize.read(document["rows"])
        found = FlatImages(
            decoded(document["windows"]),
            decoded(document["places"]),
            tuple(document["example"]),
            rows,
            document["keeps"],
            document["single"],
            document.get("by_rows", False),  # older folders have no entry, and kernels by numbers of results
            {name: decoded(windows) for name, windows in document.get("readers", ())},
        )
        others = document["others"] if isinstance(document["others"], list) else []
        found.others = {tuple(extents): self.kernels[number] for extents, number in others}
        return found

    def folded(self, document: Mapping[str, Any]) -> "Folded":
        """A convolution of torch with the operators fused after it."""
        from sparsify.passes.choose.torch_convolution import Folded

        found = Folded.__new__(Folded)
        found.covered, found.inputs = [], []
        found.leaves = tuple(document["leaves"])
        found.added, found.image = document["added"], document["image"]
        found.how, found.eps = decoded(document["how"]), float(document["eps"])
        found.activation, found.layout = document["activation"], decoded(document["layout"])
        found.pool = None if document["pool"] is None else self.forward(document["pool"])
        found.plain = self.forward(document["plain"])
        found.remember(decoded(document["entry"]))
        found.__name__ = str(document["name"])
        return found


class Late:
    """A module without parameters whose graph is read lazily: most serve calls that never come."""

    def __init__(self, reader: Reader, nodes: Sequence[Any]) -> None:
        self.reader, self.nodes = reader, nodes

    @cached_property
    def module(self) -> fx.GraphModule:
        """The module."""
        return fx.GraphModule(torch.nn.Module(), self.reader.graph(self.nodes))

    @property
    def graph(self) -> fx.Graph:
        """The graph of the module."""
        return self.module.graph

    def __call__(self, *inputs: Any) -> Any:
        """The results of the module."""
        return self.module.forward(*inputs)
