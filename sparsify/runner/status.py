"""The exit status that an error stands for.

In: `DataError(...)`. Out: `3`.
"""

from sparsify.errors import (
    CacheError,
    CompilerNotFoundError,
    DataError,
    PackageConflictError,
    SparsifyError,
)

FINE, NEGATIVE, USAGE, ENVIRONMENT = 0, 1, 2, 3


def exit_status(error: SparsifyError) -> int:
    """3 for what the machine lacks, 2 for a request that names what is not there, 1 for any other failure."""
    if isinstance(error, DataError | CompilerNotFoundError | CacheError | PackageConflictError):
        return ENVIRONMENT
    if isinstance(error.__cause__, ModuleNotFoundError):
        return ENVIRONMENT
    return USAGE if type(error) is SparsifyError else NEGATIVE
