"""The tests of runs compare results and count kernels; how fast kernels are does not matter."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation(compiled_fast: None) -> None:
    """Every kernel of this room."""
