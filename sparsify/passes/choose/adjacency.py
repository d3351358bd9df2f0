"""What else computes a region over an adjacency, timed against its kernel: torch's products, and its own operators.

In: the call of `Y[i,k] = relu(sum(j, A[i,j] * X[j,k]))`, its kernel ready, and the example's inputs. Out: the same
call, which leaves calls like the example's to what was faster; a note with what each was expected to take, and took.

Rivals that are expected to take far longer are not timed. What turns agreed on is kept beside the kernels by machine,
program and about the sizes: another process finds it without timing. Where gradients are wanted, for other sizes, and
where a model is traced with other tensors, the kernel runs.

Half of `tune_seconds` is for rivals where there are some, the other for schedules. torch.compile takes longer: only
where it fits into that half is what it makes of the operators timed, for the sizes of the example alone. Turns begin
when all are made; a winner that another process timed is made when a model is applied and not at its first call.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler import calibrate
from sparsify.compiler.dtypes import BYTES
from sparsify.compiler.recall import recall
from sparsify.compiler.schedule.cost import known_extents, statement_us
from sparsify.compiler.schedule.machine import Curve, Machine
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.call.alternative import Preferred, Rival
from sparsify.passes.call.first_backward import Result, listed
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import estimated_us, example
from sparsify.passes.choose.schedules import LEAST_US
from sparsify.passes.choose.timing import GAIN, is_agreed, race
from sparsify.passes.choose.torch_cost import compiled_us, eager_us
from sparsify.passes.choose.torch_csr import Product, TorchProducts, products_of
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix

# How much slower than the kernel a rival may be expected to be, and how many are timed.
SLOWER: Final = 1.5
MOST: Final = 3
# How many times as fast as the kernel a rival must be where other work disturbed the turns.
FAR: Final = 3.0
# What torch.compile takes for a layer of message passing, loading its compiler included, on a busy machine.
COMPILE_SECONDS: Final = 30.0
# How many times as long as a kernel torch's product takes, by the columns of the dense matrix.
PRODUCT_RATIO: Final = Curve(((1, 1.0), (8, 1.3), (16, 1.6), (64, 3.0)))
# How far results of a rival may be from those of the kernel.
RTOL: Final = 1e-3
ATOL: Final = 1e-4
ROLES: Final = ("adjacency", "activation")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured.

    Attributes:
        us: of a call of the kernel.
        others: names of rivals and their times.
        is_agreed: whether turns agreed.
    """

    us: float
    others: tuple[tuple[str, float], ...]
    is_agreed: bool = True

    @property
    def winner(self) -> str:
        """The rival that is faster than the kernel by more than chance, far faster where turns disagree; else ""."""
        name, us = min(self.others, key=lambda other: other[1])
        return name if us <= ((1 - GAIN) if self.is_agreed else 1 / FAR) * self.us else ""


@dataclass(frozen=True, slots=True)
class Field:
    """What computes a region, and what each is expected to take.

    Attributes:
        us: of a call of the kernel.
        rivals: what else computes it, the one first that is expected to be the fastest.
    """

    us: float = 0.0
    rivals: tuple[Rival, ...] = ()

    @property
    def near(self) -> list[Rival]:
        """The rivals that may be faster than the kernel."""
        return [rival for rival in self.rivals if rival.us <= SLOWER * self.us]

    def __str__(self) -> str:
        others = ", ".join(f"{rival.name} {rival.us:.0f}" for rival in self.rivals)
        return f"beside the kernel, expected {self.us:.0f} us: {others}"


def field_of(draft: Draft, region: Region, call: RegionCall, sizes: Sizes) -> Field:
    """What computes a region; nothing else than the kernel where nothing is timed, or it is expected to be quick."""
    us = estimated_us(draft, region, sizes) or 0.0
    is_off = draft.options.tune_seconds == 0 or draft.is_trainable
    if is_off or us < LEAST_US or not has_rivals(region):
        return Field(us)
    return Field(us, tuple(sorted(rivals(draft, call, sizes, us), key=lambda rival: rival.us)))


def confront(
    draft: Draft, call: RegionCall, arguments: Sequence[fx.Node], sizes: Sizes, field: Field, seconds: float
) -> str:
    """Leaves calls like the example's to what was faster than the kernel of a call that is ready; in words.

    Args:
        arguments: of the call.
        sizes: of the example's operands.
        field: what computes the region.
        seconds: for which the kernel and its rivals are timed.
    """
    near = field.near
    slow = [rival for rival in near if rival.seconds > seconds]
    tried = [rival for rival in near if rival not in slow][:MOST]
    told = [
        str(field),
        *(f"{rival.name} not timed: that takes {rival.seconds:.0f} s to make" for rival in slow),
    ]
    if not near:
        told.append("none near enough to be timed")
    if tried:
        told.append(timed_against(draft, call, arguments, sizes, tried, seconds))
    return "; ".join(told)


def has_rivals(region: Region) -> bool:
    """Whether a region reads adjacencies, and nothing that has rivals of its own, as weights have."""
    is_own = region.layout is None and not region.backend and not region.is_contested
    return (
        is_own
        and bool(region.matrices)
        and all(
            isinstance(operand, fx.Node) or (isinstance(operand, Matrix) and operand.mark.role in ROLES)
            for operand in region.operands.values()
        )
    )


def rivals(draft: Draft, call: RegionCall, sizes: Sizes, kernel_us: float) -> Iterator[Rival]:
    """What else computes a region, as far as the recipe allows it."""
    machine, asked = calibrate.known(draft.options), draft.recipe.compile
    products = products_of(call.kernel)
    if products and asked.allows("torch_sparse"):
        us = kernel_us + sum(further_us(product, sizes, machine) for product in products)
        yield Rival("torch's CSR", partial(of_operands, TorchProducts(call.kernel, products)), us)
    if asked.allows("torch"):
        yield Rival("its own operators", RegionCall.dense_result, eager_us(call.dense.graph, machine))
        us = compiled_us(call.dense.graph, machine)
        yield Rival("its operators compiled", compiled(), us, is_exact=True, seconds=COMPILE_SECONDS)


def further_us(product: Product, sizes: Sizes, machine: Machine) -> float:
    """How much longer torch's product, and what stands behind it, are expected to take than the kernel's."""
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


def compiled() -> Callable[[RegionCall, Sequence[Any]], Result]:
    """The operators of a region as torch.compile makes them, at the first call."""
    made: list[Any] = []

    def run(call: RegionCall, arguments: Sequence[Any]) -> Result:
        if not made:
            made.append(torch.compile(call.dense, dynamic=False))
        found = made[0](*arguments)
        return tuple(found) if call.is_several else found[0]

    return run


def timed_against(
    draft: Draft,
    call: RegionCall,
    arguments: Sequence[fx.Node],
    sizes: Sizes,
    tried: Sequence[Rival],
    seconds: float,
) -> str:
    """What the kernel and rivals took, and which runs: the call prefers it from now on."""
    given: list[Any] = [example(draft, node) for node in arguments]
    rounded = {name: size or 0 for name, size in sizes.rounded(call.program)}
    names = [rival.name for rival in tried]
    question = f"faster than {call.program}: {names} {call.dense.graph} {calibrate.key_of(draft.options)}"
    try:
        answer = partial(timed, call, given, tried, seconds)
        found = recall(
            question,
            Sizes(rounded),
            answer,
            draft.options,
            lambda outcome: outcome.is_agreed,
            classes={"Outcome": Outcome},
        )
        winner = next((rival for rival in tried if rival.name == found.winner), None)
        is_able = winner is None or is_ready(winner, call, given)
    except SparsifyError as error:
        return f"not timed, the kernel runs: {error}"
    times = ", ".join(f"{name} {us:.0f}" for name, us in found.others)
    told = f"timed {found.us:.0f} us, {times}{'' if found.is_agreed else ' (other work disturbed it)'}"
    if winner is None:
        return f"{told}: the kernel runs"
    if not is_able:
        return f"{told}: the kernel runs, {winner.name} fails here"
    call.preferred = Preferred(winner, given)
    return f"{told}: {winner.name} runs where sizes are like these and no gradients are wanted"


def timed(call: RegionCall, arguments: Sequence[Any], tried: Sequence[Rival], seconds: float) -> Outcome:
    """What the kernel and its rivals take in turns; one that fails takes forever.

    Args:
        seconds: of the turns, for which all is made before.

    Raises:
        SparsifyError: the kernel fails for the example.
    """
    with torch.no_grad():
        right = call(*arguments)
        able = [rival for rival in tried if is_right(rival, call, arguments, right)]
        calls: list[Callable[[], Any]] = [partial(call, *arguments)]
        calls += [partial(rival.run, call, arguments) for rival in able]
        found = race(calls, seconds)
    times = dict(zip([rival.name for rival in able], [least.us for least in found[1:]], strict=True))
    others = tuple((rival.name, times.get(rival.name, inf)) for rival in tried)
    return Outcome(found[0].us, others, is_agreed(found))


def is_ready(rival: Rival, call: RegionCall, arguments: Sequence[Any]) -> bool:
    """Whether a rival can run, made now where that takes long and another process timed it."""
    with torch.no_grad():
        return not rival.seconds or is_right(rival, call, arguments, call(*arguments))


def is_right(rival: Rival, call: RegionCall, arguments: Sequence[Any], right: Result) -> bool:
    """Whether a rival computes the same as the kernel, but for the order of sums."""
    try:
        found = rival.run(call, arguments)
    except (RuntimeError, TypeError, SparsifyError):  # such as a library that torch was built without
        return False
    return all(
        own.shape == other.shape and torch.allclose(own, other, RTOL, ATOL, equal_nan=True)
        for own, other in zip(listed(found), listed(right), strict=True)
    )
