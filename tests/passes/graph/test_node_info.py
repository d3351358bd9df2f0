"""Notes of passes about nodes: typed, and a copy's own; no pass uses a key of `node.meta` beside torch's."""

import re
from pathlib import Path

import pytest
from torch import fx

import sparsify
from sparsify.passes.graph.node_info import NodeInfo, call_of, info, set_info

OF_TORCH = ("val", "nn_module_stack", "example_value")


def test_copies_have_notes_of_their_own():
    graph = fx.Graph()
    node = graph.placeholder("x")
    assert info(node) == NodeInfo()
    set_info(node, dense_reason="small", is_write=True)
    copy = graph.node_copy(node)
    set_info(copy, dense_reason=None)
    assert (info(node).dense_reason, info(copy).dense_reason, info(copy).is_write) == ("small", None, True)
    with pytest.raises(AssertionError, match="calls no region"):
        call_of(node)
    with pytest.raises(TypeError):
        set_info(node, dense_reasons="small")


def test_passes_use_no_other_keys():
    found = {
        f"{path.name}: {key}"
        for path in (Path(sparsify.__file__).parent / "passes").rglob("*.py")
        for key in re.findall(r"""\.meta(?:\[|\.(?:get|pop|setdefault)\()['"](\w+)['"]""", path.read_text())
        if key not in OF_TORCH
    }
    assert not found, found
