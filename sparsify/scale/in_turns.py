"""Inference over the parts of a graph one after the other, in one process with limited memory.

In: a model, a folder of parts, "2GB". Out: `PartsInTurn`, called with placeholders of the whole graph's tensors; the
results cover the whole graph, in a memory-mapped file. Between two exchanges every part is computed separately;
operands of later steps wait on disk.

Source: Mostafa, Sequential aggregation and rematerialization: distributed full-batch training of graph neural networks
on large graphs, MLSys 2022; only inference, without gradients.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as pytree

from sparsify.errors import DataError, SparsifyError, UnsupportedOperatorError
from sparsify.passes.capture import calls
from sparsify.passes.capture.captured import Captured
from sparsify.passes.graph.node_info import info
from sparsify.scale import halo, parts
from sparsify.scale.capture_rows import EDGE_INDEX, EDGE_ROWS, ROWS, captured_rows
from sparsify.scale.hoist import EXCHANGES
from sparsify.scale.parts import Part
from sparsify.scale.place import NUMBERS, place
from sparsify.scale.placement import EDGES, NODES, REPLICATED, Placement

UNITS: Final = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
OPERATORS: Final = torch.ops.sparsify


def bytes_of(memory: str | int) -> int:
    """A number of bytes from a text, `2GB`, `500 MB` or `1GiB`.

    >>> bytes_of("2GB"), bytes_of("1 KiB")
    (2000000000, 1024)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(memory), re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise SparsifyError(f"memory={memory!r}", 'a number of bytes, or "2GB"')
    unit = UNITS[found[2].upper()]
    return int(float(found[1]) * (1024 ** (len(str(unit)) // 3) if found[3] and unit > 1 else unit))


class PartsInTurn(nn.Module):
    """A model over a graph, computed part by part.

    Attributes:
        data: placeholders, without memory, of the tensors of the whole graph, by name: `edge_index`, `x`, `y`.
        needed_bytes: memory of the largest part, as estimated at the first call; 0 before.
    """

    source: nn.Module

    def __init__(self, model: nn.Module, folder: Path, memory: str | int) -> None:
        super().__init__()
        object.__setattr__(self, "source", model)
        self.limit_bytes, self.needed_bytes = bytes_of(memory), 0
        meta = parts.read_meta(folder)
        self._folder = folder
        self._parts = [parts.read(folder, rank, meta) for rank in range(meta.parts)]
        self._plans = [halo.register(halo.HaloPlan.of(part)) for part in self._parts]
        first = self._parts[0]
        sizes = {name: (meta.nodes, tensor) for name, tensor in first.node_data.items()}
        sizes |= {name: (meta.edges, tensor) for name, tensor in first.edge_data.items()}
        shown = {
            name: torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
            for name, (count, tensor) in sizes.items()
        }
        shown["edge_index"] = torch.empty((2, meta.edges), dtype=torch.int64, device="meta")
        self._placements = dict.fromkeys(first.edge_data, EDGE_ROWS) | dict.fromkeys(first.node_data, ROWS)
        self._placements["edge_index"] = EDGE_INDEX
        self.data = SimpleNamespace(**shown)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model for the whole graph; rows are in a memory-mapped file.

        Raises:
            SparsifyError: the model is in training mode, or a part needs more memory than the limit.
            DataError: a placeholder is not one of `data`.
        """
        if self.source.training:
            raise SparsifyError("parts are computed one after the other in inference alone", "model.eval()")
        call = calls.flatten(calls.signature(self.source), args, kwargs)
        tensors, names = call.tensors(_no_matrices), call.shape.tensor_names()
        known = {id(tensor): name for name, tensor in vars(self.data).items()}
        given = dict(zip(names, ((known.get(id(t)), t) for t in tensors), strict=True))
        for name, (of_data, tensor) in given.items():
            if of_data is None and tensor.device.type == "meta":
                raise DataError(
                    f"{name} is computed from a stand-in, which has no values",
                    "give tensors of data as they are, and compute in the model",
                )
        inputs = {
            name: REPLICATED if of_data is None else self._placements[of_data]
            for name, (of_data, _) in given.items()
        }
        examples = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
        nodes, edges = self._parts[0].nodes, self._parts[0].edges
        captured = captured_rows(self.source, call, names, examples, inputs, nodes, edges)
        with torch.no_grad(), tempfile.TemporaryDirectory(prefix="sparsify-") as place_:
            run = _Run(self, captured, inputs, given, Path(place_))
            self.needed_bytes = run.needed_bytes()
            if self.needed_bytes > self.limit_bytes:
                raise SparsifyError(
                    f"a part of {self._folder} needs some {self.needed_bytes:,} bytes, and memory={self.limit_bytes:,}",
                    f"more than {len(self._parts)} parts, sparsify partition GRAPH --parts N, or more memory",
                )
            return pytree.tree_unflatten(run.outputs(), captured.output)


class _Run:
    """One pass over the parts.

    Attributes:
        graphs: graph of each part, identical node for node.
        ends: positions of the exchanges, and of the output.
        last: position of the last reader, by the position of a node.
    """

    def __init__(
        self,
        owner: PartsInTurn,
        captured: Captured,
        inputs: Mapping[str, Placement],
        given: Mapping[str, tuple[str | None, Tensor]],
        folder: Path,
    ) -> None:
        self.owner, self.captured, self.inputs, self.given, self.folder = (
            owner,
            captured,
            inputs,
            given,
            folder,
        )
        self.parts: list[Part] = owner._parts
        made = [
            place(captured.graph, inputs, plan, len(part.halo), part.nodes, part.edges)
            for plan, part in zip(owner._plans, self.parts, strict=True)
        ]
        self.graphs, self.placements = [list(graph.nodes) for graph, _ in made], made[0][1]
        self.at = [{node: place for place, node in enumerate(nodes)} for nodes in self.graphs]
        first = self.graphs[0]
        self.ends = [at for at, node in enumerate(first) if node.target in EXCHANGES or node.op == "output"]
        self.last = {
            at: max((self.at[0][user] for user in node.users), default=at) for at, node in enumerate(first)
        }
        self.numbers: dict[tuple[int, int], Any] = {}
        self.stored: set[tuple[int, int]] = set()

    def outputs(self) -> list[Any]:
        """The results for the whole graph."""
        start = 0
        for end in self.ends:
            for rank in range(len(self.parts)):
                self._segment(rank, start, end)
            if self.graphs[0][end].op != "output":
                self._exchange(end)
                self._forget(end)
            start = end + 1
        leaves = self.graphs[0][self.ends[-1]].args[0]
        return [self._whole(number, leaf) for number, leaf in enumerate(leaves)]

    def _segment(self, rank: int, start: int, end: int) -> None:
        """Computes the nodes of a part up to an exchange, and stores operands of later nodes."""
        values: dict[fx.Node, Any] = {}
        for at in range(start, end):
            node = self.graphs[rank][at]
            if node.op in ("placeholder", "get_attr"):
                continue
            values[node] = self._computed(rank, node, values)
            for operand in node.all_input_nodes:
                if self.last[self.at[rank][operand]] == at:
                    values.pop(operand, None)
            if self.last[at] >= end:
                self._store(rank, at, values[node])

    def _computed(self, rank: int, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        """The value of a node from values of the current segment and of earlier ones."""

        def read(operand: fx.Node) -> Any:
            if operand not in values:
                values[operand] = self._value(rank, operand)
            return values[operand]

        args, kwargs = fx.map_arg((node.args, node.kwargs), read)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _value(self, rank: int, node: fx.Node) -> Any:
        """An input, a parameter, or a stored value of an earlier segment."""
        part = self.parts[rank]
        if node.op == "get_attr":
            own = {NUMBERS[NODES]: part.rows, NUMBERS[EDGES]: part.edge_numbers}
            name = str(node.target)
            return own[name] if name in own else self.captured.tensor(self.owner.source, name)
        if node.op == "placeholder":
            of_data, tensor = self.given[str(info(node).input_name or node.target)]
            if of_data is None:
                return tensor
            return (
                part.edge_index if of_data == "edge_index" else {**part.edge_data, **part.node_data}[of_data]
            )
        at = self.at[rank][node]
        if (rank, at) in self.numbers:
            return self.numbers[rank, at]
        return torch.load(self._file(rank, at), mmap=True, weights_only=True)

    def _file(self, rank: int, at: int) -> Path:
        """The file of the stored value of a node."""
        return self.folder / f"{rank}-{at}.pt"

    def _store(self, rank: int, at: int, value: Any) -> None:
        """Stores a value for later segments: tensors on disk."""
        if pytree.tree_any(lambda leaf: isinstance(leaf, Tensor), value):
            copied = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), value)
            torch.save(copied, self._file(rank, at))
            self.stored.add((rank, at))
        else:
            self.numbers[rank, at] = value

    def _forget(self, end: int) -> None:
        """Removes values without a later reader."""
        for rank, at in list(self.stored):
            if self.last[at] <= end and at != end:
                self._file(rank, at).unlink()
                self.stored.remove((rank, at))

    def _exchange(self, at: int) -> None:
        """Gives each part the result of an exchange."""
        target = self.graphs[0][at].target
        operands = [nodes[at].args[0] for nodes in self.graphs]

        def operand(rank: int) -> Tensor:
            found: Tensor = self._value(rank, operands[rank])
            return found

        ranks = range(len(self.parts))
        if target is OPERATORS.halo_exchange.default:
            for rank in ranks:
                halos = [operand(other)[self._sent(other, rank)] for other in ranks]
                self._store(rank, at, torch.cat([operand(rank), *halos]))
        elif target is OPERATORS.halo_reduce.default:
            for rank in ranks:
                found = operand(rank)[: len(self.parts[rank].rows)].clone()
                for other in ranks:
                    found.index_add_(0, self._sent(rank, other), operand(other)[self._received(other, rank)])
                self._store(rank, at, found)
        else:
            total = self._total(at, [operand(rank) for rank in ranks])
            for rank in ranks:
                self._store(rank, at, total)

    def _total(self, at: int, values: Sequence[Tensor]) -> Tensor:
        """The sum or the maximum over the parts."""
        node = self.graphs[0][at]
        if node.target is OPERATORS.all_reduce_sum.default:
            return torch.stack(list(values)).sum(0)
        modes: Any = node.args[1]
        return torch.stack([halo.greatest(value, modes) for value in values]).amax(0)

    def _sent(self, rank: int, to: int) -> Tensor:
        """The own rows of a part sent to another one."""
        part = self.parts[rank]
        start = sum(part.send_counts[:to])
        return part.send_rows[start : start + part.send_counts[to]].long()

    def _received(self, rank: int, owner: int) -> slice:
        """The range of an owner's rows behind the own rows of a part."""
        part = self.parts[rank]
        start = len(part.rows) + sum(part.receive_counts[:owner])
        return slice(start, start + part.receive_counts[owner])

    def _whole(self, number: int, leaf: Any) -> Any:
        """An output for the whole graph, with rows in a memory-mapped file."""
        placement = self.placements[number]
        if not isinstance(leaf, fx.Node):
            return leaf
        at = self.at[0][leaf]
        first = self._value(0, leaf)
        if not placement.is_sharded:
            return first.clone() if isinstance(first, Tensor) else first
        if placement.space not in (NODES, EDGES):
            raise UnsupportedOperatorError(
                f"output {number} has rows of {placement.space}", "return rows of nodes or of edges"
            )
        is_nodes = placement.space == NODES
        shape = list(first.shape)
        shape[placement.mode] = self.parts[0].nodes if is_nodes else self.parts[0].edges
        found = _mapped(shape, first.dtype)
        for rank, part in enumerate(self.parts):
            value = self._value(rank, self.graphs[rank][at])
            found.index_copy_(placement.mode, part.rows if is_nodes else part.edge_numbers, value)
        return found

    def needed_bytes(self) -> int:
        """Peak memory of the tensors of one part, from their sizes alone."""
        return max(self._needed(rank) for rank in range(len(self.parts)))

    def _needed(self, rank: int) -> int:
        """Bytes of a part: inputs, parameters, and tensors read or made between two exchanges."""
        most, start = 0, 0
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            values: dict[fx.Node, Any] = {}
            for end in self.ends:
                alive: dict[fx.Node, int] = {}
                for at in range(start, end + 1):
                    node = self.graphs[rank][at]
                    if node.op == "output":
                        continue
                    values[node] = self._faked(rank, node, values, fake)
                    for one in (node, *node.all_input_nodes):
                        alive[one] = _nbytes(values[one])
                    most = max(most, sum(alive.values()))
                    for operand in node.all_input_nodes:
                        if self.last[self.at[rank][operand]] <= at:
                            alive.pop(operand, None)
                start = end + 1
        return most

    def _faked(self, rank: int, node: fx.Node, values: Mapping[fx.Node, Any], fake: FakeTensorMode) -> Any:
        """The value of a node as fake tensors; a mask keeps all rows."""
        if node.op in ("placeholder", "get_attr"):
            return pytree.tree_map_only(Tensor, fake.from_tensor, self._value(rank, node))
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        try:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except DynamicOutputShapeException:
            return args[0]


def _nbytes(value: Any) -> int:
    """Bytes of all tensors of a value."""
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _mapped(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor in an unnamed file, with the lifetime of the tensor."""
    count = 1
    for size in shape:
        count *= size
    with tempfile.NamedTemporaryFile(prefix="sparsify-") as file:
        found = torch.from_file(file.name, shared=True, size=max(count, 1), dtype=dtype)
    return found[:count].view(list(shape))


def _no_matrices(matrix: Tensor) -> tuple[Tensor, ...]:
    """Raises for sparse inputs.

    Raises:
        DataError: always.
    """
    raise DataError("shard takes no sparse adjacency yet", "give edge_index, part.data.edge_index")
