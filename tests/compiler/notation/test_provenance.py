"""Loops derived from index variables, in both directions."""

import pytest

from sparsify.compiler.notation.nodes import Fuse, Position, Split
from sparsify.compiler.notation.provenance import Provenance

FOUND = Provenance(
    (Split("k", "ko", "ki", 64), Split("ki", "kio", "kii", 8), Fuse("h", "i", "hi"), Position("j", "p", "A"))
)


@pytest.mark.parametrize(
    ("index", "loops"),
    [("k", ["ko", "kio", "kii"]), ("h", ["hi"]), ("i", ["hi"]), ("j", ["j", "p"]), ("l", ["l"])],
)
def test_leaves(index, loops):
    assert FOUND.leaves(index) == loops


@pytest.mark.parametrize(
    ("loop", "indices"), [("kii", {"k"}), ("ko", {"k"}), ("hi", {"h", "i"}), ("p", {"j"}), ("l", {"l"})]
)
def test_roots(loop, indices):
    assert FOUND.roots(loop) == indices
