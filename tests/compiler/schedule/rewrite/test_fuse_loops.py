"""Merging of adjacent loops: loops that are merged, and loops that must stay separate."""

import pytest

from sparsify.compiler.notation.parse import parse_notation
from sparsify.compiler.schedule.rewrite.fuse_loops import merge


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(forall j: s[i] += x[j]); forall j: m[i] max= x[j]", "forall j: (s[i] += x[j]; m[i] max= x[j])"),
        ("(forall j: s[i] += x[j]); forall j: y[j] = s[i] * x[j]", None),
        ("(forall j: s[i] += x[j]); forall k: m[i] max= x[k]", None),
        ("(forall j: s[i] += x[j]); y[i] = s[i]; forall j: m[i] max= x[j]", None),
    ],
)
def test_merge(before, after):
    body = parse_notation(f"forall i: ({before})").body
    wanted = parse_notation(f"forall i: ({before if after is None else after})").body
    assert merge(body, "j") == wanted
