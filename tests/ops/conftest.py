"""What operators give is tested here; how fast kernels are does not matter."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation(compiled_fast: None) -> None:
    """Every kernel of this room."""
