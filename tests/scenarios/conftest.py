"""Kernels of scenarios are built without optimisation, in a third of the time."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation(compiled_fast: None) -> None:
    """Every kernel of this room."""
