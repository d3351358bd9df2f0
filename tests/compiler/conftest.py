"""The tests of the compiler build many kernels, most of which nobody calls twice."""

from typing import Any

import pytest

from sparsify.compiler.kernel.statement_kernel import GeneratedStep


@pytest.fixture(autouse=True)
def without_optimisation(compiled_fast: None) -> None:
    """Every kernel of this room."""


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each call that goes the long way."""
    noted: list[str] = []
    compute = GeneratedStep._compute

    def note(self: GeneratedStep, operands: Any) -> Any:
        noted.append(self.result)
        return compute(self, operands)

    monkeypatch.setattr(GeneratedStep, "_compute", note)
    return noted
