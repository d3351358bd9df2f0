"""Fixtures of the compiler's tests, which build many kernels that are mostly called once."""

from typing import Any

import pytest

from sparsify.compiler.kernel.statement_kernel import GeneratedStep


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List of the calls that take the slow path."""
    noted: list[str] = []
    compute = GeneratedStep._compute

    def note(self: GeneratedStep, operands: Any) -> Any:
        noted.append(self.result)
        return compute(self, operands)

    monkeypatch.setattr(GeneratedStep, "_compute", note)
    return noted
