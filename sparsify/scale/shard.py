"""A model over the rows of one part: `shard(model, graph="parts/")`, in one process for each part.

In: a model of the whole graph, a folder of parts. Out: a `ShardedModule`, called as the model with this part's tensors;
outputs and gradients are those of one process.
"""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from zlib import crc32

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError, DataError, ProcessError, SparsifyError, public
from sparsify.passes.capture import calls
from sparsify.passes.capture.export import Captured, capture
from sparsify.passes.capture.shell import is_dunder, modes
from sparsify.passes.graph.node_info import info
from sparsify.scale import gradients, halo, parts, processes
from sparsify.scale.dropout import DRAWS, Draws
from sparsify.scale.parts import Part
from sparsify.scale.place import place
from sparsify.scale.placement import EDGES, NODES, REPLICATED, Placement
from sparsify.scale.variant import (
    CONTENTS,
    FAILED,
    NEW,
    SAME,
    Variant,
    ambiguous,
    attach,
    digest,
    require_equal,
    together,
)
from sparsify.training.all_reduce import broadcast_parameters

ROWS: Final = Placement(NODES, 0)
EDGE_ROWS: Final = Placement(EDGES, 0)
EDGE_INDEX: Final = Placement(EDGES, 1, ("column", "own"))
TIMEOUT_S: Final = 300.0


@public
def shard(
    model: nn.Module, recipe: Any = None, *, graph: str | PathLike[str], timeout_s: float = TIMEOUT_S
) -> "ShardedModule":
    """The model over the rows of this process: under `torchrun`, every process calls it with its part's tensors.

    The code of the model stays as it is: where rows of other processes are gathered along `edge_index`, they are
    exchanged, in both directions; gradients of parameters are summed over processes. A loss is the sum of what the
    processes compute of their own rows, so divide by counts of the whole graph, `part.count(mask)`.

    Args:
        model: of node features [nodes, ...] and `edge_index` [2, edges]; its parameters become those of process 0.
        recipe: None.
        graph: the folder that `sparsify partition` wrote, with a part for each process.
        timeout_s: after which a process that does not answer is an error in the others.

    Raises:
        DataError: the folder is missing, damaged or of several graphs, in any process.
        ProcessError: another number of processes, they do not meet, or one of them ended.
        UnsupportedOperatorError: at the first call, an operator reads rows of other processes in a way without a rule.

    >>> part = sparsify.shard(model, graph="parts/")                       # doctest: +SKIP
    >>> out = part(part.data.x, part.data.edge_index)                      # doctest: +SKIP
    """
    if recipe is not None:
        raise SparsifyError("shard takes no recipe yet", "leave it out: the parts run by torch's operators")
    folder = Path(graph)
    meta, part = None, None
    problem: SparsifyError | None = None
    try:
        meta = parts.read_meta(folder)
    except SparsifyError as error:
        problem = error
    processes.join(timeout_s)
    try:
        if meta is not None:
            processes.require_count(meta.parts, folder)
            part = parts.read(folder, torch.distributed.get_rank(), meta)
    except SparsifyError as error:
        problem = error
    processes.require_equal_start("" if meta is None else f"{meta.fingerprint}-{meta.digest}", problem)
    assert part is not None, "a problem raises"
    broadcast_parameters(model)
    return ShardedModule(model, part)


class ShardedModule(nn.Module):
    """A model over the rows of one part, with the model's own parameters and modes.

    Attributes:
        part: what `sparsify partition` wrote for this process.
        data: its tensors by name: `rows`, `edge_index`, and those of the graph, as `x`, `y`, `train_mask`.
    """

    source: nn.Module

    def __init__(self, model: nn.Module, part: Part) -> None:
        super().__init__()
        self.training = model.training
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        # Modules of the model may have these names, too; in its own code they are the model's.
        object.__setattr__(self, "source", model)
        object.__setattr__(self, "part", part)
        tensors = {**part.edge_data, **part.node_data, "edge_index": part.edge_index, "rows": part.rows}
        object.__setattr__(self, "data", SimpleNamespace(**tensors))
        self._plan = halo.HaloPlan.of(part)
        self._number = halo.register(self._plan)
        DRAWS[self._number] = Draws(processes.agree("a seed", torch.initial_seed())[0], part.rows)
        self._variants: dict[Any, Variant] = {}
        self._made = 0
        self._known = _tensors(model)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model besides parameters, buffers and modules, which are this module's, too."""
        if is_dunder(name) or "source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.source, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs for this part: own rows of those with a row for each node."""
        try:
            call = calls.flatten(calls.signature(self.source), args, kwargs)
            tensors = call.tensors(_no_parts)
        except Exception:
            together(FAILED, -1, self.part.parts)
            raise
        told = tuple((t.shape, t.dtype, self._is_edges(t), self._is_of_part(t)) for t in tensors)
        key = (modes(self), call.shape, told)
        variant = self._variants.get(key)
        replaced = {name: t for name, t in _tensors(self.source).items() if t is not self._known.get(name)}
        change, number = NEW, -1
        if variant is not None and variant.fits(self.source):
            is_same = not replaced and variant.contents(tensors) == variant.digests
            change, number = SAME if is_same else CONTENTS, variant.number
        change = together(change, number, self.part.parts)
        if change != SAME:
            mine = {name: digest(tensor) for name, tensor in replaced.items()}
            require_equal(processes.agree("a call", mine), "the model's ")
            self._known |= replaced
        if change == NEW or variant is None:
            variant = self._variants[key] = self._placed_together(call, tensors)
        if change != SAME:
            variant.require_alike(tensors)
        DRAWS[self._number].advance()
        return pytree.tree_unflatten(list(variant.graph(*tensors)), variant.output)

    def count(self, mask: Tensor) -> int:
        """The number of true entries of a mask, in all processes together."""
        return int(self.total(mask.sum()))

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor of each process over all of them, without gradients: of losses, to print them."""
        found: Tensor = halo.all_reduce_sum(value.detach(), self._number)
        return found

    def whole(self, rows: Tensor) -> Tensor:
        """The rows of all processes in the order of the whole graph, [nodes, ...], without gradients."""
        found = rows.new_zeros((self.part.nodes, *rows.shape[1:])).index_copy_(
            0, self.part.rows, rows.detach()
        )
        return self.total(found)

    def _is_edges(self, tensor: Tensor) -> bool:
        """Whether a tensor has the edges of the part."""
        edges = self.part.edge_index
        if tensor.shape != edges.shape or tensor.dtype != edges.dtype:
            return False
        return tensor.data_ptr() == edges.data_ptr() or torch.equal(tensor, edges)

    def _is_of_part(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of `data`."""
        return any(
            isinstance(known, Tensor)
            and (known.data_ptr(), known.shape, known.dtype)
            == (tensor.data_ptr(), tensor.shape, tensor.dtype)
            for known in vars(self.data).values()
        )

    def _placed_together(self, call: calls.Call, tensors: list[Tensor]) -> Variant:
        """The graph over local rows for calls of a kind, or an error in all processes."""
        made, problem = None, ""
        try:
            made = self._placed(call, tensors)
        except ProcessError:
            raise
        except Exception as error:
            problem = str(error) or type(error).__name__
            processes.agree("a call", problem)
            raise
        for rank, text in enumerate(processes.agree("a call", problem)):
            if text:
                raise ProcessError(
                    f"process {rank}: {text}", "the model and the calls must be those of the others"
                )
        self._made += 1
        return made

    def _placed(self, call: calls.Call, tensors: list[Tensor]) -> Variant:
        """The graph over local rows for calls of a kind."""
        names = call.shape.tensor_names()
        constants = [leaf.detail if leaf.kind == "constant" else leaf.kind for leaf in call.shape.leaves]
        kinds = {"modes": modes(self), "arguments": (call.shape.names, constants)}
        told = processes.agree("a call", {name: crc32(repr(kind).encode()) for name, kind in kinds.items()})
        require_equal(told, "the call's ")
        placed, unsure = self._input_placements(names, tensors)
        inputs = dict(zip(names, placed, strict=True))
        captured = self._captured(call, names, tensors, inputs)
        graph, outputs = place(captured.graph, inputs, self._number, self._plan.halo, self.part.nodes)
        self._share(graph, outputs, inputs)
        root = nn.Module()
        for node in graph.find_nodes(op="get_attr"):
            attach(root, str(node.target), captured.tensor(self.source, str(node.target)))
        read = {str(node.target) for node in graph.find_nodes(op="get_attr")} - captured.constants.keys()
        alike = {name: place_ for place_, name in enumerate(names) if not inputs[name].is_sharded}
        module = fx.GraphModule(root, graph, type(self.source).__name__)
        return Variant(module, captured.output, self._made, tuple(sorted(read)), alike, unsure)

    def _input_placements(
        self, names: list[str], tensors: list[Tensor]
    ) -> tuple[list[Placement], dict[str, int]]:
        """Placements of the tensors of a call, by sizes in all processes; positions of tensors whose contents decide.

        Raises:
            DataError: a tensor has neither the rows of parts nor the same contents in all processes, or it has both.
        """
        own, edges = len(self.part.rows), self.part.edge_index.shape[1]

        def has_rows(tensor: Tensor, count: int) -> bool:
            return tensor.dim() > 0 and len(tensor) == count

        mine = [
            (
                self._is_edges(t),
                has_rows(t, own),
                has_rows(t, edges),
                digest(t),
                self._is_of_part(t),
                tuple(t.shape),
            )
            for t in tensors
        ]
        told = processes.agree("a call", mine)
        if len({len(other) for other in told}) != 1:
            raise DataError(
                "processes call the model with other numbers of tensors", "call it alike in all of them"
            )
        found: list[Placement] = []
        unsure: dict[str, int] = {}
        for name, *facts in zip(names, *told):
            is_alike = len({fact[3] for fact in facts}) == 1
            may_be_alike = len({fact[5] for fact in facts}) == 1 and not all(fact[4] for fact in facts)
            is_index, is_nodes, is_edges = (all(fact[place] for fact in facts) for place in range(3))
            if is_index:
                found.append(EDGE_INDEX)
            elif is_nodes and is_edges and self.part.parts > 1:
                raise DataError(
                    f"{name} has a row for each node and for each edge of every part", "partition otherwise"
                )
            elif is_nodes or is_edges:
                if may_be_alike and self.part.parts > 1:
                    if is_alike:
                        raise ambiguous(name)
                    unsure[name] = len(found)
                found.append(ROWS if is_nodes else EDGE_ROWS)
            elif is_alike:
                found.append(REPLICATED)
            else:
                index = names.index(name)
                raise DataError(
                    f"{name} is {list(tensors[index].shape)} in process {self.part.rank}, which has {own} rows and "
                    f"{edges} edges, and it is not the same in all processes",
                    "give tensors of the part: part.data.x, part.data.edge_index",
                )
        return found, unsure

    def _captured(
        self, call: calls.Call, names: list[str], tensors: list[Tensor], inputs: dict[str, Placement]
    ) -> Captured:
        """The model's graph for symbolic numbers of nodes and edges, the same in all processes.

        Raises:
            CaptureError: export fails, or the model fixes a number of rows.
        """
        used = {
            size for t in (*tensors, *self.source.parameters(), *self.source.buffers()) for size in t.shape
        }
        sizes = iter(number for number in _primes() if number not in used)
        number = {NODES: next(sizes), EDGES: next(sizes)}
        examples = []
        for tensor, placement in zip(tensors, inputs.values(), strict=True):
            shape = list(tensor.shape)
            if placement.space is not None:
                shape[placement.mode] = number[placement.space]
            examples.append(torch.zeros(shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad))
        dynamic = {name: (placement.mode,) for name, placement in inputs.items() if placement.is_sharded}
        self.source.training = self.training
        captured = capture(self.source, calls.with_tensors(call, examples), dynamic or ())
        if captured.specialised:
            raise CaptureError(
                f"the model fixes a number of rows, {captured.specialised[0]}",
                "write it for graphs of any size",
            )
        whole = {NODES: self.part.nodes, EDGES: self.part.edges}
        if captured.holds is not None and not captured.holds(_extents(captured, inputs, whole)):
            raise CaptureError(
                "the model computes differently for graphs of this size than for others",
                "write it for graphs of any size",
            )
        return captured

    def _share(self, graph: fx.Graph, outputs: list[Placement], inputs: dict[str, Placement]) -> None:
        """Sums gradients of what all processes have over them; results that all have get their part of one."""
        known = graph.find_nodes(op="placeholder")
        shared_inputs = [node for node in known if not inputs[str(info(node).input_name)].is_sharded]
        read = [*graph.find_nodes(op="get_attr"), *shared_inputs]
        if read:
            last = known[-1] if known else read[-1]
            for node in graph.find_nodes(op="get_attr"):
                last.append(node)
                last = node
            with graph.inserting_after(last):
                together = graph.call_function(gradients.shared, (list(read), self._number))
            after = together
            for place_, node in enumerate(read):
                with graph.inserting_after(after):
                    after = graph.call_function(_item, (together, place_))
                node.replace_all_uses_with(after, delete_user_cb=lambda user: user is not together)
        (result,) = graph.find_nodes(op="output")
        values = list(result.args[0])
        for at, placement in enumerate(outputs):
            if not placement.is_sharded and isinstance(values[at], fx.Node):
                with graph.inserting_before(result):
                    values[at] = graph.call_function(gradients.alike, (values[at], self.part.parts))
        result.args = (values,)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by all their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _extents(captured: Captured, inputs: dict[str, Placement], whole: dict[str, int]) -> dict[str, int]:
    """The extents of the whole graph by the names of symbols."""
    found = {}
    for node, extents in zip(captured.graph.find_nodes(op="placeholder"), captured.extents, strict=True):
        placement = inputs[str(info(node).input_name)]
        if placement.space is not None:
            found[str(extents[placement.mode])] = whole[placement.space]
    return found


def _item(values: list[Tensor], place_: int) -> Tensor:
    """One of some tensors."""
    return values[place_]


def _no_parts(matrix: Tensor) -> tuple[Tensor, ...]:
    """Raises for sparse inputs.

    Raises:
        DataError: always.
    """
    raise DataError("shard takes no sparse adjacency yet", "give edge_index, part.data.edge_index")


def _primes() -> Iterator[int]:
    """Prime numbers from 97 on, which products of usual sizes do not give."""
    number = 97
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1
