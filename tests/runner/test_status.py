"""The exit status of errors."""

import pytest

from sparsify import errors
from sparsify.models.registry import Entry
from sparsify.runner.status import exit_status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.DataError("no files"), 3),
        (errors.CompilerNotFoundError("no g++"), 3),
        (errors.CacheError("full"), 3),
        (errors.RecipeError("wrong"), 1),
        (errors.VerificationError("differs"), 1),
        (errors.SparsifyError("no such model"), 2),
    ],
    ids=str,
)
def test_exit_status(error, status):
    assert exit_status(error) == status


def test_missing_package_is_the_machines_fault():
    with pytest.raises(errors.SparsifyError) as caught:
        Entry("x", "no_such_package_here:Model", recipe="gcn").load()
    assert exit_status(caught.value) == 3
