"""Manifests of saved models: read back, and refused with the first wrong field."""

import json
from dataclasses import asdict

import pytest

from sparsify.passes.manifest import (
    GRAPH,
    Manifest,
    ManifestError,
    SavedFile,
    UnknownLayoutError,
    parsed,
    text,
)

FILE = SavedFile(3, "ab")
PLAIN = Manifest(2, "Bert", False, True, False, None, {"a": "b"}, {0: {"w": "no zeros"}}, FILE, FILE)
SERVED = Manifest(
    *(3, "Bert", False, True, False, True, {}, None, FILE, FILE),
    files={GRAPH: FILE, f"kernels-{'0' * 16}/{'a' * 16}.so": FILE},
    levels=["avx2"],
    instructions=["fma"],
    code="c",
)


@pytest.mark.parametrize("manifest", [PLAIN, SERVED], ids=["plain", "served"])
def test_text_and_back(manifest):
    content = text(manifest)
    assert parsed(content.encode()) == manifest
    assert ("files" in json.loads(content)) == manifest.is_served
    assert manifest.digest == parsed(content.encode()).digest


def test_fields_of_later_versions_are_ignored():
    assert parsed(json.dumps({**asdict(PLAIN), "more": 1}).encode()) == PLAIN


WRONG = {
    "layout: an integer": {"layout": True},
    "layout: 0 is none of 1, 2, 3": {"layout": 0},
    "model: a text": {"model": None},
    "strict: true or false": {"strict": 1},
    "tied.a: a text": {"tied": {"a": 1}},
    "passed.w: the position of a rule": {"passed": {"w": {}}},
    "passed.1.w: a text": {"passed": {"1": {"w": 2}}},
    "weights.bytes: an integer": {"weights": {"bytes": 1.0, "sha256": ""}},
    "weights: a mapping": {"weights": 3},
    "levels.1: a text": {"levels": ["avx2", 2]},
    "levels: a list": {"levels": "avx2"},
    "files.graph.json: a mapping": {"files": {GRAPH: 3}},
    "the sums of its files": {"recipe": None},
    "the sum of its graph": {"files": {}},
    "../x.so is no file of a saved model": {"files": {GRAPH: asdict(FILE), "../x.so": asdict(FILE)}},
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_fields(words):
    with pytest.raises(ManifestError, match=words):
        parsed(json.dumps({**asdict(SERVED), **WRONG[words]}).encode())


def test_missing_field():
    fields = asdict(PLAIN)
    del fields["verify"]
    with pytest.raises(ManifestError, match="verify: the field is missing"):
        parsed(json.dumps(fields).encode())


def test_layout_of_a_later_version():
    with pytest.raises(UnknownLayoutError, match="the layout 4"):
        parsed(b'{"layout": 4}')
