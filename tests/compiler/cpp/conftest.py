"""The tests of flags, builds and the cache say themselves with which options."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation() -> None:
    """The options in force are those of users."""
