"""Lets the pass tests import the models that they share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def regions_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are compared one by one: times of whole calls of small models on busy machines undo nothing."""
    if request.path.stem != "test_whole_call":
        from sparsify.passes.module import capture_call

        monkeypatch.setattr(capture_call, "require_faster_call", lambda *_: None)


@pytest.fixture(autouse=True)
def compiled_graphs_forgotten() -> Iterator[None]:
    """What Dynamo compiled lasts no longer than a test."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
