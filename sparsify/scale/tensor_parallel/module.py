"""A model with split products in several processes: `TensorParallelModule`.

In: a model, a recipe, example inputs, in each process of a group. Out: a module with this process's part of the
weights, called with the same inputs in all processes; each process has all outputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError, DataError, ProcessError, RecipeError
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls
from sparsify.passes.capture.captured import Captured
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.export import capture
from sparsify.passes.module.prepare import as_call
from sparsify.passes.module.prune_and_capture import pruned
from sparsify.passes.rules.prunable import selected
from sparsify.recipe import Recipe, Rule
from sparsify.recipe.target import kind_of
from sparsify.report import Report
from sparsify.runtime.failures import named
from sparsify.scale import halo
from sparsify.scale.tensor_parallel import collectives
from sparsify.scale.tensor_parallel.local import cuts_of, local_module, whole_of
from sparsify.scale.tensor_parallel.split import Splits, split_products
from sparsify.scale.variant import digest


class TensorParallelModule(nn.Module):
    """A model with a process's part of the weights.

    Attributes:
        report: report of this process's part in kernels; None without rules.
        pairs: products split by output rows, and products split by input columns, by the names of their weights.
        whole: reason for an unsplit product, by the name of the replicated weight.
        weight_bytes: bytes of parameters in this process, before packing.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe | None,
        example_inputs: Any,
        group: Any = None,
        *,
        strict: bool = False,
        verify: bool = True,
    ) -> None:
        super().__init__()
        self._group, self._number = group, collectives.register(group)
        count = dist.get_world_size(group)
        args, kwargs = as_call(example_inputs)
        rules: Recipe | None = None
        if recipe is not None:
            asked = ApplyRequest(recipe)
            model = pruned(model, asked, example_inputs).model
            rules = given_rules(model, recipe, asked.pruning.taken)
        self._signature = calls.signature(model)
        call = calls.flatten(self._signature, args, kwargs)
        captured = capture(model, call, None)
        splits = split_products(captured.graph, count, tied_names(model))
        self._describe(splits, captured)
        local = local_module(
            captured.graph,
            splits,
            lambda name: captured.tensor(model, name),
            dist.get_rank(group),
            self._number,
        )
        local.train(model.training)
        self.weight_bytes = sum(parameter.nbytes for parameter in local.parameters())
        self.report: Report | None = None
        self._cuts = cuts_of(splits)
        self._shape, self._output, self._captured = call.shape, captured.output, captured
        # By kinds of calls whether they draw random numbers.
        self._known: dict[Any, bool] = {}
        self.local: nn.Module = local
        if rules is not None:
            self.local, self.report = _with_kernels(local, rules, call.tensors(_no_matrix), strict, verify)
        self.train(model.training)

    def _describe(self, splits: Splits, captured: Captured) -> None:
        """Records the split products."""

        def weights(nodes: Sequence[fx.Node]) -> list[str]:
            return [str(node.args[1].target) for node in nodes]  # type: ignore[union-attr]

        self.pairs = (weights(list(splits.columns)), weights(list(splits.rows)))
        self.whole = {str(node.args[1].target): why for node, why in splits.reasons.items()}  # type: ignore[union-attr]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model, the same in all processes.

        Raises:
            DataError: the inputs, or the random numbers that the model draws, differ between processes.
            CaptureError: a call of another kind than the example.
            ProcessError: another process cannot begin the call, or ended.
        """
        try:
            call = calls.flatten(self._signature, args, kwargs)
            tensors = call.tensors(_no_matrix)
            self._require_fits(call, tensors)
            draws = self._draws(tensors)
        except Exception:
            self._agree(None)
            raise
        self._agree(tensors, draws=draws)
        return pytree.tree_unflatten(list(self.local(*tensors)), self._output)

    def _draws(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a call draws random numbers.

        The first call of a kind runs once more, without communication: processes may choose kernels in different
        orders.
        """
        kind = (tuple((t.shape, t.dtype, t.requires_grad) for t in tensors), torch.is_grad_enabled())
        if kind not in self._known:
            with rehearsal(self.local):
                before = torch.get_rng_state()
                self.local(*tensors)
                self._known[kind] = not torch.equal(before, torch.get_rng_state())
        return self._known[kind]

    def _require_fits(self, call: calls.Call, tensors: Sequence[Tensor]) -> None:
        """Raises if the captured graph does not hold for a call."""
        extents: dict[str, int] = {}
        wanted = self._captured.extents
        is_alike = call.shape == self._shape and self.training == self._captured.training
        for tensor, sizes in zip(tensors, wanted, strict=False):
            is_alike = is_alike and tensor.dim() == len(sizes)
            for size, extent in zip(sizes, tensor.shape, strict=False):
                is_alike = (
                    is_alike
                    and (extents.setdefault(size, extent) if isinstance(size, str) else size) == extent
                )
        if not is_alike or not (self._captured.holds is None or self._captured.holds(extents)):
            sizes_text = ", ".join(f"[{', '.join(map(str, sizes))}]" for sizes in wanted)
            raise CaptureError(
                f"a call with tensors {[list(t.shape) for t in tensors]} in {'training' if self.training else 'eval'} "
                f"mode, and the example inputs were {sizes_text} in "
                f"{'training' if self._captured.training else 'eval'} mode",
                "shard the model with example inputs of this kind",
            )

    def _agree(self, tensors: Sequence[Tensor] | None, *, draws: bool = False) -> None:
        """One small message before each call, so that no process waits for a failed one."""
        number = 0
        for tensor in tensors or ():
            number = crc32(digest(tensor).to_bytes(8, "little"), number)
        state = crc32(torch.get_rng_state().numpy().tobytes()) if draws else 0
        told = torch.tensor([int(tensors is None), number, -number, state, -state])
        with named("a call", self._group):
            dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        failed, most, least, last, first = told.tolist()
        if tensors is None:
            return
        if failed:
            raise ProcessError("another process could not begin this call", "see its output for the reason")
        if most != -least:
            raise DataError(
                "the inputs are not the same in all processes",
                "tensor parallel processes take the same inputs",
            )
        if last != -first:
            raise DataError(
                "the model draws random numbers, as for dropout, and they are not the same in all processes",
                "torch.manual_seed(seed) with one seed in all of them, before the first step",
            )

    def whole_parameters(self) -> dict[str, Tensor]:
        """The parameters of all processes together, dense, by name; packed frozen ones are left out."""
        named_parameters = sorted(self.local.named_parameters())
        return {name: whole_of(p, self._cuts.get(name), self._group) for name, p in named_parameters}


def tied_names(model: nn.Module) -> frozenset[str]:
    """The names of parameters with several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return frozenset(name for found in names.values() if len(found) > 1 for name in found)


def given_rules(model: nn.Module, recipe: Recipe, taken: Any) -> Recipe:
    """The recipe for parts of a pruned model: parameters by name, with zeros already set.

    Raises:
        RecipeError: a rule needs all of a weight.
    """
    rules: list[Rule] = []
    for at, rule in enumerate(recipe.rules):
        if rule.dtype == "int8" or rule.later:
            what = (
                "`dtype: int8` has scales for rows of all of a weight"
                if rule.dtype == "int8"
                else "several stages"
            )
            raise RecipeError(
                f"shard: rule {rule.id or ', '.join(rule.targets)} of {recipe.name}: {what}; leave it out"
            )
        others = [target for target in rule.targets if kind_of(target) not in ("param", "")]
        known = [] if others else list(selected(model, rule))
        names = known if rule.prune is None else list(taken.get(at, ()))
        if not names:
            rules += [rule] if rule.prune is None or not known else []  # a rule without a match is an error
            continue
        update = {
            "targets": tuple(f"param:{name}" for name in names), "types": (), "ignore": (), "prune": None,
            "schedule": None, "source": "given", "ties": "error",
        }  # fmt: skip
        rules.append(rule.model_copy(update=update))
    return recipe.with_rules(rules).without_shard()


def _with_kernels(
    local: fx.GraphModule, recipe: Recipe, tensors: Sequence[Tensor], strict: bool, verify: bool
) -> tuple[nn.Module, Report]:
    """The module with packed weights, each process separately.

    Raises:
        CaptureError: its graph makes other sums over processes than the model.
    """
    given = tuple(tensors)

    def sums(module: nn.Module) -> list[str]:
        with rehearsal(module) as found, torch.no_grad():
            module(*given)
        return found

    wanted = sums(local)
    with halo.rehearsing():
        made = apply(local, recipe, given, strict=strict, verify=verify, inplace=not local.training)
    found = sums(made)
    if found != wanted:
        raise CaptureError(f"kernels make the sums {found}, and all processes make {wanted}")
    return made, made.report


@contextmanager
def rehearsal(module: nn.Module) -> Iterator[list[str]]:
    """Within this context sums over processes send nothing; afterwards buffers and random numbers are as before."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        with halo.rehearsing() as found, torch.random.fork_rng(devices=()):
            yield found
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _no_matrix(matrix: Tensor) -> tuple[Tensor, ...]:
    """Raises for sparse inputs.

    Raises:
        DataError: always.
    """
    raise DataError("tensor parallel models take no sparse inputs", "give dense tensors")
