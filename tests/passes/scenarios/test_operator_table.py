"""Each row of the operator table against its operator, in float64, with extents 0, 1 and equal ones."""

import random
import re
import zlib

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.interpret import interpret
from sparsify.passes.graph.canonicalize import canonicalize
from sparsify.passes.program.table import OPAQUE, ROWS
from sparsify.passes.program.translate import dense_operand, translate

TENSOR = re.compile(r"\b(\w+)\[([\w+*,]*)\](?::(\w+))?(?=[,)\]])")
EXAMPLES = sorted({example for row in ROWS.values() for example in row.examples})
# Ordinary extents, then equal ones, then such with 1, all 1, with 0, with both.
POOLS = ([2, 3, 4, 5], [3], [1, 2], [1], [0, 2], [0, 1, 3])


def instance(example, sizes, generator):
    """The function of an example and its tensors, for these extents of letters."""
    tensors = {}

    def tensor(match):
        name, shape, kind = match.groups()
        if name not in tensors:
            extents = [int(eval(extent, dict(sizes))) for extent in shape.split(",") if extent]
            tensors[name] = torch.randn(extents, generator=generator, dtype=torch.float64)
            if kind == "bool":
                tensors[name] = tensors[name] > 0
            elif kind:  # places of a mode
                tensors[name] = torch.randint(0, sizes[kind] + 1, extents, generator=generator)
        return name

    text = TENSOR.sub(
        tensor, example.replace(" ", "").replace('"', "'") if "einsum" not in example else example
    )
    scope = {letter: size for letter, size in sizes.items() if letter not in tensors} | {
        "torch": torch, "inf": float("inf"), "abs": torch.abs, "sigmoid": torch.sigmoid,
    }  # fmt: skip
    scope[text.partition("(")[0]] = getattr(torch.ops.aten, text.partition("(")[0])
    return eval(f"lambda {', '.join(tensors)}: {text}", scope), list(tensors.values())


def computed(example, sizes, seed=0):
    """The result of an operator and that of its row, or the reason why it has none."""
    function, tensors = instance(example, sizes, torch.Generator().manual_seed(seed))
    expected = function(*tensors)
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors).graph
    canonicalize(graph)
    output = graph.output_node().args[0]
    program = translate(graph)
    if output.name in program.opaque:
        return expected, program.opaque[output.name]
    given = dict(zip([n.name for n in graph.find_nodes(op="placeholder")], tensors, strict=True))
    outside = {name for name in program.source if name not in program.statements}
    for name in outside - given.keys():  # such as the abs of an example's operand
        given[name] = constant(program.source[name], given)
    operands = {name: dense_operand(program, name) for name in outside}
    if not program.statements:
        return expected, given[output.name]
    whole = declare(
        tuple(program.statements.values()), operands, (output.name,), sizes=dict(program.extents) or None
    )
    inputs = {
        name: given[name].numpy().reshape([s for s in given[name].shape if s != 1]) for name in whole.inputs
    }
    found = torch.as_tensor(np.asarray(interpret(whole, inputs)[output.name][0]))
    return expected, found.reshape(expected.shape).to(expected.dtype)


def constant(node, given):
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: given[n.name])
    return node.target(*args, **kwargs)


def sizes_for(turn, example):
    """Extents of letters."""
    draw = random.Random(zlib.crc32(example.encode()) + turn)
    return {letter: draw.choice(POOLS[turn]) for letter in "mnkpl"}


def taken(example, turn):
    """Whether a row holds for extents of one kind, and then computes what its operator does."""
    sizes = sizes_for(turn, example)
    try:
        expected, found = computed(example, sizes, turn)
    except (RuntimeError, IndexError, ValueError):
        function, tensors = instance(example, sizes, torch.Generator().manual_seed(0))
        with pytest.raises((RuntimeError, IndexError, ValueError)):  # torch has no result for such extents
            function(*tensors)
        return False
    if isinstance(found, str):
        return False
    torch.testing.assert_close(
        found, expected, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda text: f"{sizes}: {text}"
    )
    return True


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", EXAMPLES)
def test_rows_compute_what_their_operators_do(example):
    assert taken(example, 0)
    taken(example, 1 + zlib.crc32(example.encode()) % (len(POOLS) - 1))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", EXAMPLES)
def test_rows_hold_for_all_extents(example):
    assert sum(taken(example, turn) for turn in range(len(POOLS))) >= 2


def test_core_operators_have_a_row_or_a_reason():
    core = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            tags = (getattr(packet, overload).tags for overload in packet.overloads())
            if any(torch.Tag.core in found for found in tags):
                core.add(name)
    assert len(core) > 150
    assert not {name for name in core if name not in ROWS and name not in OPAQUE}


def test_no_operator_is_both_translated_and_opaque():
    assert not ROWS.keys() & OPAQUE.keys()
