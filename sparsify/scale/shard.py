"""A model over the rows of one part: `shard(model, graph="parts/")`, in one process for each part.

In: a model of the whole graph, a folder of parts. Out: a `ShardedModule`, called like the model with this part's
tensors; outputs and gradients equal the results of one process.
"""

from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, overload
from zlib import crc32

import torch
from torch import Tensor, fx, nn

from sparsify import recipe as recipes
from sparsify.errors import DataError, ProcessError, RecipeError, SparsifyError, public
from sparsify.passes.apply import Given
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import is_dunder, modes
from sparsify.recipe import Recipe
from sparsify.scale import halo, parts, processes
from sparsify.scale.capture_rows import EDGE_INDEX, EDGE_ROWS, ROWS, captured_rows
from sparsify.scale.dropout import DRAWS, Draws
from sparsify.scale.hoist import hoist
from sparsify.scale.in_turns import PartsInTurn
from sparsify.scale.kernels import require_rules_of_graphs, with_kernels
from sparsify.scale.overlap.choose import measure
from sparsify.scale.overlap.overlaps import Overlaps
from sparsify.scale.parts import Part
from sparsify.scale.place import NUMBERS, place
from sparsify.scale.placement import EDGES, NODES, REPLICATED, Placement
from sparsify.scale.tensor_parallel.module import TensorParallelModule
from sparsify.scale.variant import (
    CONTENTS,
    FAILED,
    NEW,
    SAME,
    Variant,
    ambiguous,
    attach,
    attribute,
    digest,
    require_equal,
    together,
)
from sparsify.training.all_reduce import broadcast_parameters

TIMEOUT_S: Final = 300.0


@overload
def shard(
    model: nn.Module,
    recipe: Given | None = None,
    *,
    graph: str | PathLike[str],
    strict: bool = False,
    verify: bool = True,
    timeout_s: float = TIMEOUT_S,
    memory: None = None,
    overlap: bool | None = None,
) -> "ShardedModule": ...


@overload
def shard(
    model: nn.Module, recipe: None = None, *, graph: str | PathLike[str], memory: str | int
) -> PartsInTurn: ...


@overload
def shard(
    model: nn.Module,
    recipe: Given,
    example_inputs: Any = None,
    *,
    strict: bool = False,
    verify: bool = True,
    timeout_s: float | None = None,
) -> "ShardedModule | PartsInTurn | TensorParallelModule": ...


@public
def shard(
    model: nn.Module,
    recipe: Given | None = None,
    example_inputs: Any = None,
    *,
    graph: str | PathLike[str] | None = None,
    strict: bool = False,
    verify: bool = True,
    timeout_s: float | None = None,
    memory: str | int | None = None,
    overlap: bool | None = None,
) -> "ShardedModule | PartsInTurn | TensorParallelModule":
    """The part of a model computed by this process, under `torchrun`: rows of a graph, or weights of linear layers.

    The code of the model is unchanged. With a graph, every process calls the result with its part's tensors: rows of
    other processes gathered along `edge_index` are exchanged, in both directions; gradients of
    parameters are summed over processes. A loss is the sum of the losses of own rows over all processes, so divide
    by counts of the whole graph, `part.count(mask)`. With `shard: {linear: tensor}` in the recipe, every process calls
    the result with the same inputs, and has all outputs.

    Args:
        model: model of node features [nodes, ...] and `edge_index` [2, edges], or with linear layers; the parameters
            become the parameters of process 0.
        recipe: as of `apply`; `shard` selects the division. With a graph, rules apply to already sparse tensors
            (`source: given`), so the steps between two exchanges run in kernels; None for torch's operators.
        example_inputs: inputs of the model with `linear: tensor`, as of `apply`.
        graph: folder written by `sparsify partition`, with a part for each process; by default from the recipe.
        strict: raise if a tensor made sparse by a rule would stay dense.
        verify: compare kernels with torch's operators at the first call, on local rows.
        memory: in one process, the parts are computed one after the other, in inference, each within the memory limit,
            as "2GB"; called with `data`, placeholders of the whole graph's tensors. Takes no rules.
        timeout_s: timeout for a process that does not answer, an error in the others; by default from the recipe,
            or 300.
        overlap: with a graph, whether rows without neighbours in other parts are computed while halo rows travel; by
            default each process decides by the cost model, with measured rates of the network.

    Raises:
        DataError: the folder is missing, damaged or of several graphs, in any process.
        RecipeError: the recipe divides nothing, and no graph is given.
        ProcessError: another number of processes, a failed rendezvous, or an ended process.
        UnsupportedOperatorError: at the first call, an operator reads rows of other processes in a way without a rule.

    >>> part = sparsify.shard(model, graph="parts/")                       # doctest: +SKIP
    >>> out = part(part.data.x, part.data.edge_index)                      # doctest: +SKIP
    """
    loaded = None if recipe is None else recipes.load(recipe)
    asked = loaded.shard if loaded is not None else None
    if timeout_s is None:
        timeout_s = asked.timeout if asked is not None else TIMEOUT_S
    if graph is None and asked is not None and asked.linear is not None:
        _require_no_overlap(overlap, "`linear: tensor`")
        return _tensor_parallel(model, loaded, example_inputs, timeout_s, strict=strict, verify=verify)
    if example_inputs is not None:
        raise SparsifyError("shard with example inputs and a graph", "leave them out: calls have the inputs")
    folder = _folder(graph, loaded)
    memory = memory if memory is not None or asked is None else asked.memory
    if memory is not None:
        _require_no_overlap(overlap, "memory=")
        return _in_turns(model, loaded, folder, memory)
    return _by_rows(model, loaded, folder, timeout_s, strict=strict, verify=verify, overlap=overlap)


def _require_no_overlap(overlap: bool | None, what: str) -> None:
    """Raises for an argument `overlap` of a model without exchanges of halo rows."""
    if overlap is not None:
        raise SparsifyError(f"shard with {what} and overlap=", "leave overlap= out: no halo rows travel")


def _folder(graph: str | PathLike[str] | None, recipe: Recipe | None) -> Path:
    """The given folder of parts, or the folder of the recipe."""
    asked = recipe.shard if recipe is not None else None
    named_folder = graph if graph is not None or asked is None else asked.graph
    if named_folder is None:
        raise RecipeError(
            "shard without graph=, and a recipe without `shard`; give the folder of sparsify partition, or write "
            "`shard: {linear: tensor}`",
            "" if recipe is None else recipe.file,
        )
    return Path(named_folder)


def _in_turns(model: nn.Module, recipe: Recipe | None, folder: Path, memory: str | int) -> PartsInTurn:
    """The model over all parts, one after the other."""
    if recipe is not None and recipe.rules:
        raise SparsifyError("shard with a recipe and memory=", "leave one of them out")
    return PartsInTurn(model, folder, memory)


def _by_rows(
    model: nn.Module,
    recipe: Recipe | None,
    folder: Path,
    timeout_s: float,
    *,
    strict: bool,
    verify: bool,
    overlap: bool | None,
) -> "ShardedModule":
    """The model over the rows of this process's part."""
    if recipe is not None:
        require_rules_of_graphs(recipe)
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
    return ShardedModule(model, part, recipe, strict=strict, verify=verify, overlap=overlap)


def _tensor_parallel(
    model: nn.Module,
    recipe: Recipe | None,
    example_inputs: Any,
    timeout_s: float,
    *,
    strict: bool,
    verify: bool,
) -> TensorParallelModule:
    """The model with this process's part of the weights."""
    if example_inputs is None:
        raise SparsifyError(
            "shard with `linear: tensor` and no example inputs", "shard(model, recipe, (x,)), as of apply"
        )
    processes.join(timeout_s)
    processes.require_equal_start("", None)
    broadcast_parameters(model)
    made, problem = None, ""
    try:
        made = TensorParallelModule(model, recipe, example_inputs, strict=strict, verify=verify)
    except Exception as error:
        problem = str(error) or type(error).__name__
        processes.agree("the split", (problem, None))
        raise
    told = processes.agree("the split", (problem, made.pairs))
    for rank, (text, pairs) in enumerate(told):
        if text or pairs != made.pairs:
            raise ProcessError(
                f"process {rank}: {text or 'splits other products'}",
                "give all of them the same model and recipe",
            )
    return made


class ShardedModule(nn.Module):
    """A model over the rows of one part, with the model's own parameters and modes.

    Attributes:
        part: the part of this process, written by `sparsify partition`.
        report: report of the latest graph in kernels; None without a recipe, and before the first call.
        data: tensors of the part by name: `rows`, `edge_index`, and the data of the graph, as `x`, `y`, `train_mask`.
        overlap: whether the latest graph computes inner rows while halo rows travel, and the reason; empty before the
            first call.
    """

    source: nn.Module

    def __init__(
        self,
        model: nn.Module,
        part: Part,
        recipe: Recipe | None = None,
        *,
        strict: bool = False,
        verify: bool = True,
        overlap: bool | None = None,
    ) -> None:
        super().__init__()
        self.training = model.training
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        # Modules of the model may have these names, too; in the model's code they are the model's.
        object.__setattr__(self, "source", model)
        object.__setattr__(self, "part", part)
        tensors = {**part.edge_data, **part.node_data, "edge_index": part.edge_index, "rows": part.rows}
        object.__setattr__(self, "data", SimpleNamespace(**tensors))
        self._recipe, self._strict, self._verify = recipe, strict, verify
        object.__setattr__(self, "report", None)
        object.__setattr__(self, "overlap", "")
        self._plan = halo.HaloPlan.of(part)
        self._number = halo.register(self._plan)
        DRAWS[self._number] = Draws(processes.agree("a seed", torch.initial_seed())[0])
        self._variants: dict[Any, Variant] = {}
        self._made = 0
        self._known = _tensors(model)
        is_measured = part.parts > 1 and any(processes.agree("the start", overlap is None))
        network = measure(self._plan.group) if is_measured else None  # by all processes together
        self._overlaps = Overlaps(part, self._plan, self._number, overlap, network)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model besides parameters, buffers and modules, shared with this module."""
        if is_dunder(name) or "source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.source, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs for this part: own rows of outputs with a row for each node."""
        try:
            call = calls.flatten(calls.signature(self.source), args, kwargs)
            tensors = call.tensors(_no_parts)
        except Exception:
            together(FAILED, -1, self.part.parts)
            raise
        told = tuple((t.shape, t.dtype, self._is_edges(t), self._is_of_part(t)) for t in tensors)
        key = (modes(self), call.shape, told, torch.is_autocast_enabled("cpu"))
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
        return variant(self.source, tensors, self.part.parts)

    def count(self, mask: Tensor) -> int:
        """The number of true entries of a mask, in all processes together."""
        return int(self.total(mask.sum()))

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes, without gradients: of losses, for printing."""
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
        self.source.training = self.training
        captured = captured_rows(self.source, call, names, tensors, inputs, self.part.nodes, self.part.edges)
        graph, outputs = place(
            captured.graph, inputs, self._number, self._plan.halo, self.part.nodes, self.part.edges
        )
        numbers = {NUMBERS[NODES]: self.part.rows, NUMBERS[EDGES]: self.part.edge_numbers}
        merged = self._overlaps.merged(captured.graph, graph, inputs, outputs)
        object.__setattr__(self, "overlap", self._overlaps.reason)
        if merged is not None:
            graph, numbers = merged
        root = nn.Module()
        root.training = self.training
        read = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        for name in read:
            attach(root, name, numbers[name] if name in numbers else captured.tensor(self.source, name))
        reads = {
            name: (tensor.shape, tensor.dtype)
            for name in sorted(read - captured.constants.keys() - numbers.keys())
            if (tensor := attribute(root, name)) is not None
        }
        alike = {name: place_ for place_, name in enumerate(names) if not inputs[name].is_sharded}
        module = fx.GraphModule(root, graph, type(self.source).__name__)
        hoist(module, inputs, tensors, numbers.keys())
        runs: nn.Module = module
        if self._recipe is not None and not torch.is_autocast_enabled("cpu"):
            runs, report = with_kernels(
                module, self._recipe, tensors, strict=self._strict, verify=self._verify
            )
            object.__setattr__(self, "report", report)
        replicated = tuple(at for at, placement in enumerate(outputs) if not placement.is_sharded)
        return Variant(runs, captured.output, self._made, reads, alike, unsure, replicated, self._number)

    def _input_placements(
        self, names: list[str], tensors: list[Tensor]
    ) -> tuple[list[Placement], dict[str, int]]:
        """Placements of the tensors of a call, by sizes in all processes; positions of tensors decided by contents.

        Raises:
            DataError: a tensor has neither the rows of parts nor the same contents in all processes, or both.
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


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by all their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _no_parts(matrix: Tensor) -> tuple[Tensor, ...]:
    """Raises for sparse inputs.

    Raises:
        DataError: always.
    """
    raise DataError("shard takes no sparse adjacency yet", "give edge_index, part.data.edge_index")
