"""Fixtures for the tests of flags, builds and the cache, which set their own options."""

import pytest


@pytest.fixture(autouse=True)
def without_optimisation() -> None:
    """Leaves the default options of users in force."""
