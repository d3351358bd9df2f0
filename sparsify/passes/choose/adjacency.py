"""Timed alternatives to the kernel over an adjacency: torch's products and operators.

In: the call of `Y[i,k] = relu(sum(j, A[i,j] * X[j,k]))` with a compiled kernel, and the example's inputs. Out: the same
call, with a faster alternative for calls similar to the example; a note with the expected and measured time of each
candidate. Alternatives with a far longer expected time are not timed. The kernel runs where gradients are wanted, for
other sizes, and in traces with other tensors. With alternatives, half of `tune_seconds` is for them, the other half for
schedules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler import calibrate
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.schedule.cost.machine import Curve, Machine
from sparsify.compiler.schedule.cost.statement import known_extents, statement_us
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.call.alternative import Alternative, Preferred
from sparsify.passes.call.first_backward import Result, listed
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.autotune import THRESHOLDS, Candidate, autotune
from sparsify.passes.choose.estimate import estimated_us, example
from sparsify.passes.choose.price import eager_us
from sparsify.passes.choose.torch_csr import Product, TorchProducts, products_of
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix

KIND: Final = "alternative"
# How many times as long as a kernel torch's product takes, by the columns of the dense matrix.
PRODUCT_RATIO: Final = Curve(((1, 1.0), (8, 1.3), (16, 1.6), (64, 3.0)))
# Tolerances between the results of an alternative and of the kernel.
RTOL: Final = 1e-3
ATOL: Final = 1e-4
ROLES: Final = ("adjacency", "activation")


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The other implementations of a region.

    Attributes:
        us: expected time of a call of the kernel.
        all: alternatives, fastest expected first.
    """

    us: float = 0.0
    all: tuple[Alternative, ...] = ()

    @property
    def near(self) -> list[Alternative]:
        """The alternatives that may be faster than the kernel."""
        return [one for one in self.all if one.us <= THRESHOLDS[KIND].slower * self.us]

    def __str__(self) -> str:
        others = ", ".join(f"{one.name} {one.us:.0f}" for one in self.all)
        return f"beside the kernel, expected {self.us:.0f} us: {others}"


def alternatives_of(draft: Draft, region: Region, call: RegionCall, sizes: Sizes) -> Alternatives:
    """The alternatives of a region; none without a tuning budget, or for a kernel expected to be fast."""
    us = estimated_us(draft, region, sizes) or 0.0
    is_off = draft.options.tune_seconds == 0 or draft.is_trainable
    if is_off or us < THRESHOLDS[KIND].least_us or not has_alternatives(region):
        return Alternatives(us)
    return Alternatives(us, tuple(sorted(alternatives(draft, call, sizes, us), key=lambda one: one.us)))


def tune_alternatives(
    draft: Draft,
    call: RegionCall,
    arguments: Sequence[fx.Node],
    sizes: Sizes,
    offered: Alternatives,
    seconds: float,
) -> str:
    """Prefers the fastest alternative for calls similar to the example; returns the text of the decision.

    Args:
        arguments: argument nodes of the call.
        sizes: sizes of the example's operands.
        offered: the alternatives.
        seconds: budget for timing the kernel and its alternatives.
    """
    tried = offered.near[: THRESHOLDS[KIND].most]
    if not tried:
        return f"{offered}; none near enough to be timed"
    return f"{offered}; {timed_against(draft, call, arguments, sizes, tried, seconds)}"


def has_alternatives(region: Region) -> bool:
    """Whether a region reads adjacencies, and no operand with alternatives elsewhere, such as weights."""
    is_own = region.layout is None and not region.backend and not region.is_contested
    return (
        is_own
        and bool(region.matrices)
        and all(
            isinstance(operand, fx.Node) or (isinstance(operand, Matrix) and operand.mark.role in ROLES)
            for operand in region.operands.values()
        )
    )


def alternatives(draft: Draft, call: RegionCall, sizes: Sizes, kernel_us: float) -> Iterator[Alternative]:
    """The alternatives to a region's kernel allowed by the recipe."""
    machine, options = calibrate.cached_machine(draft.options), draft.recipe.compile
    products = products_of(call.kernel)
    if products and options.allows("torch_sparse"):
        us = kernel_us + sum(further_us(product, sizes, machine) for product in products)
        yield Alternative("torch's CSR", partial(of_operands, TorchProducts(call.kernel, products)), us)
    if options.allows("torch"):
        yield Alternative("its own operators", RegionCall.dense_result, eager_us(call.dense.graph, machine))


def further_us(product: Product, sizes: Sizes, machine: Machine) -> float:
    """Expected microseconds of torch's product, with later operators, beyond the kernel's time."""
    program = product.step.program
    extents = known_extents(program, sizes.extents)
    stored = sizes.also(product.step.twins).stored
    own_us = statement_us(program, program.statements[0], extents, stored, machine)
    columns = extents[product.columns] if product.columns else 1
    size = extents[product.names[0]] * columns * BYTES[product.step.output.dtype]
    behind = product.passes * (machine.torch_us + 2 * size / machine.reads_all.at(2 * size))
    return (PRODUCT_RATIO.at(columns) - 1) * own_us + behind


def of_operands(products: TorchProducts, call: RegionCall, arguments: Sequence[Any]) -> torch.Tensor:
    """The result of products for the arguments of a region's call."""
    return products(call.values(arguments))


def timed_against(
    draft: Draft,
    call: RegionCall,
    arguments: Sequence[fx.Node],
    sizes: Sizes,
    tried: Sequence[Alternative],
    seconds: float,
) -> str:
    """Times the kernel and its alternatives, and makes the call prefer the fastest."""
    examples: list[Any] = [example(draft, node) for node in arguments]
    rounded = {name: size or 0 for name, size in sizes.rounded(call.program)}
    names = [one.name for one in tried]
    try:
        timing = autotune(
            KIND,
            f"faster than {call.program}: {names} {call.dense.graph}",
            partial(candidates, call, examples, tried),
            sizes=Sizes(rounded),
            options=draft.options,
            seconds=seconds,
        )
    except SparsifyError as error:
        return f"not timed, the kernel runs: {error}"
    winner = next((one for one in tried if one.name == timing.name), None)
    times = ", ".join(f"{name} {timing.us_of(name):.0f}" for name in names)
    text = f"timed {timing.us:.0f} us, {times}{timing.disturbed}"
    if winner is None:
        return f"{text}: the kernel runs"
    call.preferred = Preferred(winner, examples)
    return f"{text}: {winner.name} runs where sizes are like these and no gradients are wanted"


def candidates(call: RegionCall, arguments: Sequence[Any], tried: Sequence[Alternative]) -> list[Candidate]:
    """The kernel, and the alternatives with equal results.

    Raises:
        SparsifyError: the kernel fails for the example.
    """
    with torch.no_grad():
        right = call(*arguments)
        able = [one for one in tried if is_right(one, call, arguments, right)]
    others = [Candidate(one.name, partial(one.run, call, arguments)) for one in able]
    return [Candidate("kernel", partial(call, *arguments)), *others]


def is_right(one: Alternative, call: RegionCall, arguments: Sequence[Any], right: Result) -> bool:
    """Whether an alternative's result equals the kernel's, up to the order of summation."""
    try:
        result = one.run(call, arguments)
    except (RuntimeError, TypeError, SparsifyError):  # for example a library missing in this build of torch
        return False
    return all(
        tensor.shape == other.shape and torch.allclose(tensor, other, RTOL, ATOL, equal_nan=True)
        for tensor, other in zip(listed(result), listed(right), strict=True)
    )
