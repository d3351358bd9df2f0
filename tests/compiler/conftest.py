"""The tests of the compiler build many kernels, most of which nobody calls twice."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation(compiled_fast: None) -> None:
    """Every kernel of this room."""
