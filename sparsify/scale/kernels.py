"""Kernels of a recipe in a graph over local rows, chosen in each process separately.

In: a module over local rows with exchanges, and a recipe. Out: a module with fused regions between the exchanges.

Processes with other rows may choose other kernels. The exchanges are fixed in the graph before any choice, nothing
is sent while kernels are timed, and a graph with exchanges different from other processes is rejected.
"""

from collections.abc import Sequence

from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedFakeTensorException
from torch.func import functional_call

from sparsify.errors import CaptureError, RecipeError
from sparsify.passes.apply import apply
from sparsify.recipe import Recipe
from sparsify.report import Report
from sparsify.scale import halo
from sparsify.warn import warn


def require_rules_of_graphs(recipe: Recipe) -> None:
    """Raises for a rule that changes the weights, because optimizers of the model hold them already.

    Raises:
        RecipeError: names the first such rule.
    """
    for rule in recipe.rules:
        if rule.origin != "given" or rule.dtype != "same":
            what = (
                "rounds" if rule.origin == "given" else "makes zeros by itself, `source: " + rule.origin + "`"
            )
            raise RecipeError(
                f"shard: rule {rule.id or ', '.join(rule.targets)} of {recipe.name} {what}",
                "shard takes rules with `source: given`; prune the model before it is sharded",
            )


def with_kernels(
    module: fx.GraphModule, recipe: Recipe, tensors: Sequence[Tensor], *, strict: bool, verify: bool
) -> tuple[nn.Module, Report]:
    """The module with kernels, and the report; torch's operators run if no kernel is faster.

    Args:
        module: module over local rows.
        recipe: recipe with rules for already sparse tensors.
        tensors: tensors of a call, in the order of the inputs.
        strict: whether a dense fallback is an error.
        verify: whether results are compared with torch's operators, on local rows alone.
    """
    given = tuple(tensors)
    with halo.rehearsing():
        made = apply(module, recipe.without_shard(), given, dynamic=(), strict=strict, verify=verify)
    wanted, found = wanted_exchanges(module, given), made_exchanges(made, given)
    if wanted == found:
        return made, made.report
    reason = f"kernels make the exchanges {found}, and all processes make {wanted}; torch's operators run"
    if strict:
        raise CaptureError(reason)
    made.report.warnings.append(reason)
    warn(reason)
    return module, made.report


def wanted_exchanges(module: nn.Module, tensors: Sequence[Tensor]) -> list[str]:
    """The exchanges of a module of torch's operators, by fake tensors, because messages along edges are large."""
    try:
        mode = FakeTensorMode()
        named = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        fakes: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in named.items()}
        given = tuple(mode.from_tensor(tensor) for tensor in tensors)
        with mode, halo.rehearsing() as found:
            functional_call(module, fakes, given, tie_weights=False)
        return found
    except (RuntimeError, NotImplementedError, UnsupportedFakeTensorException):  # data-dependent sizes
        return made_exchanges(module, tensors)


def made_exchanges(module: nn.Module, tensors: Sequence[Tensor]) -> list[str]:
    """The exchanges of a call in order, each with a note of a gradient; nothing is sent."""
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    with halo.rehearsing() as found:
        functional_call(module, buffers, tuple(tensors), tie_weights=False)
    return found
