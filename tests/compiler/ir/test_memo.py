"""Bounded memos: values by key, none for keys without a hash, cleared if full."""

from sparsify.compiler.ir.memo import REMEMBERED, recall, remember


def test_values_are_recalled_by_their_key():
    memory = {}
    remember(memory, ("a", 1), "kernel")
    assert recall(memory, ("a", 1)) == "kernel" and recall(memory, ("a", 2)) is None


def test_keys_without_a_hash_are_not_kept():
    memory = {}
    remember(memory, ([],), "kernel")
    assert memory == {} and recall(memory, ([],)) is None


def test_a_full_memo_is_cleared():
    memory = {number: number for number in range(REMEMBERED)}
    remember(memory, "new", 1)
    assert memory == {"new": 1}
