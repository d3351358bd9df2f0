"""Cost model: regions expected to be slower than the replaced operators of torch stay dense.

In: the region of `Y[i,j,l] = sum(k, X[i,j,k] * W[i,k,l])` with few zeros in W. Out: no region, a line in the report.

Layers are timed for the formats of their weights, convolutions and embeddings of bags separately; all other regions of
the front end are compared by expected times. A dense input declared sparse by a rule is read once a call, to detect
changed entries: the total gain of its regions must exceed this cost. Times of torch's operators are predicted: products
at the speed of torch's products on the machine, all other operators at the speed of memory. `index_add(zeros, 0, rows,
index_select(x, 0, columns))` over 88,000 edges and 64 features takes about 20 ms; a scatter adds messages one by one.
"""

from math import inf, prod
from typing import Any, Final

from torch import fx

from sparsify.compiler import calibrate
from sparsify.compiler.schedule.cost.machine import Machine
from sparsify.compiler.schedule.cost.matmul import dense_us
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, estimated_us
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.graph.operators import VIEWS, argument, known_size, operator_name, tensor_value
from sparsify.passes.region.region import Region
from sparsify.passes.rules.scatters import BAGS

PRODUCTS: Final = frozenset(("mm", "addmm", "linear", "matmul", "bmm", "baddbmm", "mv"))
# Products whose first operand is a summand.
BIASED: Final = frozenset(("addmm", "baddbmm"))
GATHERS: Final = frozenset(("index_select", "index", "gather", "embedding"))
SCATTERS: Final = frozenset(("index_add", "scatter_add", "scatter_reduce", "index_put", "scatter"))
# The number of a mode of bags of rows.
EXTREMA: Final = 2
# Time to add a row of messages, in addition to memory traffic.
SCATTERED_US: Final = 0.05
# Time of torch per entry of a row in a bag reduced by maximum.
COMPARED_US: Final = 0.0015


def eager_us(graph: fx.Graph, machine: Machine) -> float:
    """Expected time of the operators of a graph, one after the other."""
    return sum(operator_us(node, machine) for node in graph.nodes)


def operator_us(node: fx.Node, machine: Machine) -> float:
    """Expected time of an operator."""
    if not is_computed(node):
        return 0.0
    name, result = operator_name(node), tensor_value(node)
    if name == BAGS:
        return machine.torch_us + bags_us(node, machine)
    if result is None:  # several results, such as extrema and their positions
        moved = sum(map(bytes_of, node.all_input_nodes))
        return machine.torch_us + moved / machine.reads_all.at(moved)
    if name in PRODUCTS:
        left = node.args[1 if name in BIASED else 0]
        *many, rows, columns = (*extents(node), 1) if result.dim() == 1 else extents(node)
        sizes = prod(many) * rows, columns, (1, *extents(left))[-1]
        return dense_us(*sizes, machine, result.element_size())
    if name in CONTRACTIONS:
        *many, columns = extents(node) or (1,)
        inner = CONTRACTIONS[name](node) / max(1, numbers(node))
        return dense_us(prod(many), columns, max(1, round(inner)), machine, result.element_size())
    moved = 2 * bytes_of(node)
    if name in SCATTERS:
        source = message(node)
        moved = bytes_of(node) + 3 * bytes_of(source)
        rows = extents(source)[0] if extents(source) else 1
        return machine.torch_us + rows * SCATTERED_US + moved / machine.reads.at(moved)
    if name not in GATHERS:
        moved = bytes_of(node) + sum(map(bytes_of, node.all_input_nodes))
    return machine.torch_us + moved / machine.reads_all.at(moved)


def bags_us(node: fx.Node, machine: Machine) -> float:
    """Time of torch's reduction of rows bag by bag: one loop over rows; extrema are compared one by one."""
    table, indices = node.args[:2]
    entries = numbers(indices) * extents(table)[1]
    if argument(node, 4, "mode", 0) == EXTREMA:
        return entries * COMPARED_US
    return bytes_of(table) / numbers(table) * entries / machine.gathers.at(bytes_of(table))


def einsum_products(node: fx.Node) -> int:
    """The scalar products of an einsum: one per coordinate of all its index variables."""
    equation, operands = node.args[:2]
    terms = str(equation).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):  # type: ignore[arg-type]
        shape = extents(operand)
        named = zip(reversed(term.replace("...", "")), reversed(shape), strict=False)
        sizes |= {letter: size for letter, size in named if size > sizes.get(letter, 0)}
        if "..." in term:
            leading = shape[: len(shape) - len(term) + 3]
            sizes["..."] = max(sizes.get("...", 1), prod(leading))
    return prod(sizes.values())


def bilinear_products(node: fx.Node) -> int:
    """The scalar products of a bilinear form."""
    first, second = (extents(arg)[-1] for arg in node.args[:2])
    return numbers(node) * first * second


def attention_products(node: fx.Node) -> int:
    """The products of numbers in attention: scores, and sums of values."""
    query, key = (extents(arg) for arg in node.args[:2])
    return numbers(node) * key[-2] + prod(query) * key[-2]


def paired_products(node: fx.Node) -> int:
    """The products of numbers in a product over pairs of modes."""
    left, modes = node.args[0], node.args[2]
    return numbers(node) * prod(extents(left)[mode] for mode in modes)  # type: ignore[union-attr, index, misc]


def distance_products(node: fx.Node) -> int:
    """The products of numbers in the distances of rows."""
    return numbers(node) * extents(node.args[0])[-1]


CONTRACTIONS: Final = {
    "tensordot": paired_products,
    "cdist": distance_products,
    "einsum": einsum_products,
    "bilinear": bilinear_products,
    "scaled_dot_product_attention": attention_products,
}


def is_computed(node: fx.Node) -> bool:
    """Whether a node computes numbers, not just a view."""
    return (
        node.op in ("call_function", "call_method")
        and (tensor_value(node) is not None or isinstance(node.meta.get("val"), tuple | list))
        and operator_name(node) not in VIEWS
    )


def message(scatter: fx.Node) -> Any:
    """The tensor added by a scatter."""
    return scatter.all_input_nodes[-1]


def extents(node: Any) -> tuple[int, ...]:
    """The extents of a tensor, for the example."""
    value = tensor_value(node)
    shape = () if value is None else value.shape
    return tuple(known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS for extent in shape)


def numbers(node: Any) -> int:
    """The number of numbers a tensor has, for the example."""
    return prod(extents(node))


def bytes_of(node: Any) -> int:
    """The bytes of a tensor, for the example; 0 for anything else."""
    value = tensor_value(node)
    return 0 if value is None else numbers(node) * value.element_size()


def price(draft: Draft) -> Draft:
    """The draft without regions of the front end that lose to torch's operators."""
    options = draft.recipe.compile
    if options.memory == "compact" or not options.allows("torch"):
        return draft
    gains = {id(region): gain_us(draft, region) for region in draft.regions}
    reasons = {
        id(region): f"a kernel is expected to take {-gain:.0f} us more than torch's operators"
        for region in draft.regions
        if (gain := gains[id(region)]) < 0
    }
    cheaper = [region for region in draft.regions if id(region) not in reasons]
    for leaf in dict.fromkeys(leaf for region in cheaper for leaf in compared_inputs(region)):
        readers = [region for region in cheaper if leaf in compared_inputs(region)]
        gained, read_us = sum(gains[id(region)] for region in readers), reading_us(draft, leaf)
        if gained < read_us:
            reason = f"kernels are expected to save {gained:.0f} us, and to read {leaf} for changes takes {read_us:.0f}"
            reasons |= {id(region): reason for region in readers}
    for region in draft.regions:
        if id(region) in reasons:
            node = region.covered[0] if region.is_contested else region.shown
            choose_dense(draft, region, node, reasons[id(region)])
    draft.regions = [region for region in draft.regions if id(region) not in reasons]
    return draft


def gain_us(draft: Draft, region: Region) -> float:
    """Expected gain of a region; infinite if timed instead, or unknown."""
    is_timed = region.is_layer or region.is_contested
    us = None if region.equations is None or is_timed else estimated_us(draft, region)
    if us is None:
        return inf
    machine = calibrate.cached_machine(draft.options)
    dense_us = sum(operator_us(node, machine) for node in region.covered)
    region.notes.append(f"expected {us:.0f} us, torch's operators {dense_us:.0f}")
    return dense_us - us


def compared_inputs(region: Region) -> list[fx.Node]:
    """The dense inputs read as sparse operands by a region, without a `static` declaration in the recipe."""
    read = [matrix.dense for matrix in region.matrices if not matrix.mark.static]
    return [node for node in read if node is not None and node.op == "placeholder"]


def reading_us(draft: Draft, leaf: fx.Node) -> float:
    """Expected time to read an input once, by one thread."""
    moved = bytes_of(leaf)
    return moved / calibrate.cached_machine(draft.options).reads.at(moved)
