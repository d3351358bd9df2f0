"""The numbers of rows for which a region's alternative is faster than its kernel, by timing at several numbers.

In: the call of a mixture of experts with a compiled kernel, captured for 16 tokens. Out: the same call, in which
torch's matrix products compute calls with fewer than 3 tokens; a note with the times at each number of tokens.

The example is timed first, then a fourth and four times its rows, and so on in both directions until the other
implementation is faster. Between two numbers the ratio of both times is interpolated, as linear in the logarithm of the
rows; beyond the numbers that were timed the nearest one decides. A graph of fixed extents is timed for its own rows
alone.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import exp, inf, log
from typing import Final

import torch
from torch import fx

from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.call.alternative import Alternative, ByRows, Ranges
from sparsify.passes.call.bind import extract
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.autotune import Candidate, Winner, autotune
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, example
from sparsify.passes.choose.expert_products import ExpertProducts, expert_products, of_experts
from sparsify.passes.graph import operators
from sparsify.passes.graph.operators import known_size, operator_name, tensor_value
from sparsify.passes.lift.experts.mixture import BY_EXPERT, MIXTURE
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.storage.interop.tensors import tensor

KIND: Final = "rows"
NAME: Final = "torch's products, expert by expert"
# Factor between the numbers of rows that are timed, and the limits of further ones. A single row has its own graph.
STEP: Final = 4
LEAST: Final = 2
MOST: Final = 256
# Experts per token of gates without a scatter of chosen weights.
CHOSEN: Final = 2
# Differences of results, relative to the largest one: products are rounded to the operands' dtype.
TOLERANCES: Final = {torch.bfloat16: 2**-5, torch.float16: 2**-8, torch.float32: 1e-4, torch.float64: 1e-9}


def products_of(draft: Draft, region: Region) -> ExpertProducts | None:
    """Torch's products in place of a mixture's kernel; `None` for other regions, and in training."""
    options = draft.recipe.compile
    if MIXTURE not in region.notes or region.program is None or draft.is_trainable:
        return None
    return expert_products(region.program) if options.allows("torch") else None


def tune_rows(draft: Draft, region: Region, call: RegionCall, seconds: float) -> str | None:
    """Sets the alternative to a mixture's kernel by its tokens; the text of the times, `None` if nothing is timed.

    Args:
        seconds: budget for each number of rows.
    """
    products = products_of(draft, region)
    argument = rows_argument(call, products) if products is not None else None
    if seconds == 0 or products is None or argument is None:
        return None
    value = tensor_value(region.output)
    assert value is not None, "a mixture is a tensor"
    rows = known_size(value.shape[0], UNKNOWN_ROWS) or UNKNOWN_ROWS
    is_dynamic = isinstance(value.shape[0], torch.SymInt)
    try:
        times = timed(rows, is_dynamic, partial(race, draft, region, call, products, seconds))
    except SparsifyError as error:
        return f"not timed against {NAME}, the kernel runs: {error}"
    ratios = {count: one.us / one.us_of(NAME) for count, one in times.items()}
    row_ranges = ranges(ratios, {count: bool(one.name) for count, one in times.items()})
    if row_ranges:
        run = partial(of_experts, products)
        call.preferred = ByRows(Alternative(NAME, run, times[rows].us_of(NAME)), *argument, row_ranges)
    return described(times, row_ranges)


def rows_argument(call: RegionCall, products: ExpertProducts) -> tuple[int, int] | None:
    """The position of an argument with a row for each token, and its mode; `None` without one."""
    for operand in call.operands:
        extents = call.program.declaration(operand.name).extents
        is_tensor = operand.structure is None and operand.name != products.gate
        if is_tensor and products.token in extents:
            return operand.argument, extents.index(products.token)
    return None


def timed(rows: int, is_dynamic: bool, race: Callable[[int], Winner]) -> dict[int, Winner]:
    """The times by ascending number of rows: the example's, and others until the faster implementation changes."""
    winners = {rows: race(rows)}
    is_faster = bool(winners[rows].name)
    for step in (1 / STEP, STEP) if is_dynamic else ():
        count = int(rows * step)
        while LEAST <= count <= MOST:
            winners[count] = race(count)
            if bool(winners[count].name) != is_faster:
                break
            count = int(count * step)
    return dict(sorted(winners.items()))


def ranges(ratios: Mapping[int, float], are_faster: Mapping[int, bool]) -> Ranges:
    """The ranges of rows in which the alternative is faster.

    Args:
        ratios: time of the kernel in times of the alternative, by ascending number of rows.
        are_faster: whether the alternative is faster, by number of rows.

    >>> ranges({4: 2.0, 16: 0.5, 64: 0.5}, {4: True, 16: False, 64: False})
    ((0, 8.0),)
    """
    result: list[tuple[float, float]] = []
    begin: float | None = None
    counts = list(ratios)
    for count, after in zip(counts, [*counts[1:], None], strict=True):
        if are_faster[count] and begin is None:
            begin = 0
        if after is None or are_faster[count] == are_faster[after]:
            continue
        end = crossing(count, after, ratios)
        if begin is not None:
            result.append((begin, end))
        begin = None if are_faster[count] else end
    return (*result, (begin, inf)) if begin is not None else tuple(result)


def crossing(few: int, many: int, ratios: Mapping[int, float]) -> float:
    """The number of rows at which both times are equal; the geometric mean where ratios do not say so."""
    first, last = log(ratios[few]), log(ratios[many])
    share = first / (first - last) if first * last < 0 else 0.5
    return round(exp(log(few) + share * (log(many) - log(few))), 3)


def described(times: Mapping[int, Winner], row_ranges: Ranges) -> str:
    """The text of the measured times, and of the decision."""
    text = "; ".join(
        f"{count} rows {one.us:.0f} us, {one.us_of(NAME):.0f}{one.disturbed}" for count, one in times.items()
    )
    text = f"timed against {NAME}: {text}"
    if not row_ranges:
        return f"{text}: the kernel runs"
    where = " and ".join(said(*one) for one in row_ranges)
    return f"{text}: {NAME} run {where} where no gradients are wanted"


def said(begin: float, end: float) -> str:
    """The text of a range of rows."""
    if end == inf:
        return f"from {begin:.0f} rows on" if begin else "for all rows"
    return f"from {begin:.0f} to {end:.0f} rows" if begin else f"below {end:.0f} rows"


def race(
    draft: Draft, region: Region, call: RegionCall, products: ExpertProducts, seconds: float, rows: int
) -> Winner:
    """The times of the kernel and of the alternative for some rows."""
    chosen = entries_per_row(region)
    extents = {products.token: rows, **extents_of(draft, region, products)}
    return autotune(
        KIND,
        f"rows of {call.program}: {NAME}",
        partial(candidates, draft, region, call, products, rows, chosen),
        sizes=Sizes(extents, {products.gate: rows * chosen}),
        options=draft.options,
        seconds=seconds,
    )


def extents_of(draft: Draft, region: Region, products: ExpertProducts) -> dict[str, int]:
    """The extents of the operands other than the rows, by index variable."""
    assert region.program is not None, "a mixture has a program"
    extents: dict[str, int] = {}
    for name, operand in region.operands.items():
        value = tensor_value(operand.dense if isinstance(operand, Matrix) else operand)
        declared = region.program.declaration(region.names[name]).extents
        for index, extent in zip(declared, () if value is None else value.shape, strict=False):
            if index != products.token:
                extents[index] = known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS
    return extents


def entries_per_row(region: Region) -> int:
    """The experts of each token: the weights that the gate's scatter places, 2 for other gates."""
    (gate,) = (matrix for matrix in region.matrices if matrix.mark.role == "gate")
    for node in operators.ancestors(gate.leaves):
        if operator_name(node).startswith("scatter"):
            value = tensor_value(node.args[2])
            count = None if value is None else known_size(value.shape[-1])
            if count is not None:
                return count
    return CHOSEN


def candidates(
    draft: Draft, region: Region, call: RegionCall, products: ExpertProducts, rows: int, chosen: int
) -> list[Candidate]:
    """The kernel and its alternative, for tokens that choose experts at random.

    Raises:
        SparsifyError: the results differ.
    """
    operands = operands_of(draft, region, products, rows, chosen)
    with torch.no_grad():
        expected, actual = call.kernel(*operands).float(), products(operands).float()
    largest = max(float(expected.abs().max()), 1e-30)
    tolerance = TOLERANCES.get(call.dtypes[0], 1e-4)
    if not float((expected - actual).abs().max()) <= tolerance * largest:
        raise SparsifyError(f"{NAME} have other results")
    return [
        Candidate("kernel", partial(call.kernel, *operands)),
        Candidate(NAME, partial(products, operands)),
    ]


def operands_of(
    draft: Draft, region: Region, products: ExpertProducts, rows: int, chosen: int
) -> list[torch.Tensor]:
    """The operands of a mixture's program for some rows."""
    assert region.program is not None, "a mixture has a program"
    draws = torch.Generator().manual_seed(0)
    sources = {region.names[name]: operand for name, operand in region.operands.items()}
    operands: list[torch.Tensor] = []
    for name in region.program.inputs:
        source = sources[name]
        extents = region.program.declaration(name).extents
        if isinstance(source, Matrix):
            experts = extents_of(draft, region, products)[products.expert]
            weights, places = torch.rand(rows, experts, generator=draws).topk(min(chosen, experts))
            gate = torch.zeros(rows, experts).scatter(1, places, weights)
            operands.append(tensor(gate.to(source.dtype), BY_EXPERT))
            continue
        assert isinstance(source, fx.Node), "a mixture reads tensors besides its gate"
        value = weight_of(draft, source) if operators.is_constant(source) else example(draft, source)
        if products.token in extents:
            shape = [*value.shape]
            shape[extents.index(products.token)] = rows
            value = torch.randn(shape, generator=draws).to(value.dtype)
        operands.append(value)
    return operands


def weight_of(draft: Draft, node: fx.Node) -> torch.Tensor:
    """A tensor computed from parameters alone: random numbers would give products that overflow or underflow."""
    leaves = [leaf for leaf in operators.ancestors([node]) if leaf.op == "get_attr"]
    with torch.no_grad():
        (value,) = extract(draft.graph, leaves, [node])(*[example(draft, leaf) for leaf in leaves])
    assert isinstance(value, torch.Tensor), "programs read tensors"
    return value.detach()
