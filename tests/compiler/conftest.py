"""The tests of the compiler build many kernels; other rooms compile theirs as users do."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation(compiled_fast: None) -> None:
    """Every kernel of this room."""
