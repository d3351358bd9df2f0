"""The formats of weights that never change: the fastest for their zeros, or dense where none is fast enough.

In: the region of `Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])`, W frozen with 10 % of its entries, 128 rows.
Out: the same with W stored `j/96: dense, i: dense, j%96: compressed(crd=int16)`; a region whose weight has few zeros
is left to torch, and the report says so.
"""

from dataclasses import replace
from math import prod

from torch import Tensor

from sparsify.compiler import calibrate
from sparsify.compiler.einsum.nodes import Access, Call, Reduce
from sparsify.compiler.node import walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule.pack import Packing, pack_matrix
from sparsify.passes import region as regions
from sparsify.passes.base import Draft
from sparsify.passes.estimate import known_size
from sparsify.passes.lift.matrix import Matrix
from sparsify.passes.operators import operator_name, scope, tensor_value
from sparsify.passes.region import Region

# Rows of an input whose size only a run can tell.
UNKNOWN_ROWS = 128
# Entries of a weight for which the machine is measured where nobody has yet.
LARGE = 1 << 16


def pack(draft: Draft) -> Draft:
    """The draft with a format for each frozen weight whose rule leaves it to the compiler."""
    if draft.is_trainable:
        return draft
    kept = []
    for region in draft.regions:
        weights = {name: m for name, m in region.operands.items() if isinstance(m, Matrix) and is_free(m)}
        found = {name: packing(draft, region, weight) for name, weight in weights.items()}
        chosen = {name: packed for name, packed in found.items() if packed is not None}
        is_free_region = chosen and len(chosen) == len(region.matrices)
        if is_free_region and not is_worth_it(chosen, draft.recipe.compile.memory):
            for name, packed in chosen.items():
                node = region.output
                gain = "faster" if packed.is_smaller else "smaller"
                reason = f"the weight {weights[name].source} is {gain} dense: {compared(packed)}"
                draft.report.left_dense(node.name, operator_name(node), scope(node), reason)
            continue
        for name, packed in chosen.items():
            weight = weights[name]
            region.operands[name] = replace(weight, packed=packed.format)
            region.notes.append(f"{weight.source} packed: {compared(packed)}")
        regions.finish(region)
        kept.append(region)
    draft.regions = kept
    return draft


def is_free(matrix: Matrix) -> bool:
    """Whether a sparse operand is a weight whose format nobody chose."""
    return matrix.dense is not None and matrix.dense.op == "get_attr" and matrix.mark.format == "auto"


def is_worth_it(chosen: dict[str, Packing], memory: str) -> bool:
    """Whether packed weights take less memory than dense ones and, unless that is all, are expected to be faster."""
    if not all(found.is_smaller for found in chosen.values()):
        return False
    if memory == "compact":
        return True
    return sum(found.us for found in chosen.values()) < sum(found.dense_us for found in chosen.values())


def compared(found: Packing) -> str:
    """Why a format was chosen, or none."""
    share = f"{found.stored / max(1, found.entries):.1%} stored"
    return f"{share}, expected {found.us:.0f} us, torch's product {found.dense_us:.0f}"


def packing(draft: Draft, region: Region, weight: Matrix) -> Packing | None:
    """The best format of a weight, None where it is not multiplied with rows that lie along its columns."""
    assert weight.dense is not None, "weights are parameters"
    known = draft.known_tensor(weight.dense)
    product = next((p for _, _, value in region.statements if (p := product_with(value, weight.name))), None)
    if known is None or product is None:
        return None
    own, other = product
    summed = index_names(other)[-1]
    if len(index_names(own)) != 2 or summed not in index_names(own):
        return None
    mask: Tensor = (known.t() if weight.transposed else known) != 0
    is_turned = index_names(own)[0] == summed
    rows = rows_of(region, other)
    is_large = known.numel() >= LARGE
    machine = (calibrate.try_measured if is_large else calibrate.known)(draft.options)
    compact = draft.recipe.compile.memory == "compact"
    turned = mask.t() if is_turned else mask
    found = pack_matrix(turned, rows, known.element_size(), machine, compact=compact)[0]
    return replace(found, format=found.format.permuted((1, 0))) if is_turned else found


def product_with(value: object, name: str) -> tuple[Access, Access] | None:
    """The access to a matrix and what it is multiplied with in a sum of products of two."""
    for part in walk(value):  # type: ignore[arg-type]
        match part:
            case Reduce("sum", _, Call("mul", (Access() as left, Access() as right))):
                if name in (left.tensor, right.tensor):
                    return (left, right) if left.tensor == name else (right, left)
    return None


def rows_of(region: Region, access: Access) -> int:
    """How many rows the other operand of a product has in the example."""
    operand = region.operands.get(access.tensor)
    node = operand.dense if isinstance(operand, Matrix) else operand
    node = node or next(node for node, _, _ in region.statements if node.name == access.tensor)
    value = tensor_value(node)
    sizes = [known_size(extent) for extent in value.shape[:-1]] if value is not None else [None]
    return prod(size or UNKNOWN_ROWS for size in sizes)
