"""Fixtures for the tests of flags, builds and the cache, which set their own options."""

import pytest


@pytest.fixture(autouse=True)
def default_flags(compiled_optimised: None) -> None:
    """Leaves the default options of users in force."""
