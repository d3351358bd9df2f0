"""Errors: one text per class, pickling, the tree and exit statuses."""

import copy
import errno
import inspect
import pickle

import pytest

from sparsify import errors
from sparsify.errors import SparsifyError

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, SparsifyError) and found.__module__ == errors.__name__
]
OWN_FIELDS = {
    errors.ParseError: (("y = x[i", 5, "never closed"), "never closed\n  y = x[i\n       ^"),
    errors.DiscordantError: (
        ("A[i, j]: d0s1", "B[i, j]: d1s0"),
        "A[i, j]: d0s1 and B[i, j]: d1s0 need opposite loop orders; store one of them with the other mode "
        "ordering: tensor.to(format=...)",
    ),
    errors.RecipeError: (("unknown key 'fromat'", "gcn.yaml", 7, 5), "gcn.yaml:7:5: unknown key 'fromat'"),
    errors.RecipeNotFoundError: (
        ("no file and no built-in recipe", "gnc"),
        "gnc: no file and no built-in recipe",
    ),
    errors.KernelError: ((2, "position overflow"), "position overflow (status 2)"),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_text_and_pickle(kind: type[SparsifyError]) -> None:
    fields, text = OWN_FIELDS.get(kind, (("found this", "do that"), "found this; do that"))
    error = kind(*fields)
    assert str(error) == text
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), vars(again), again.args) == (text, vars(error), error.args)


BUILT_IN = {
    ValueError: "InvalidTensorError FormatError ParseError EinsumError ShapeError DtypeError ScheduleError RecipeError "
    "RecipeNotFoundError DataError DiscordantError DeviceError SparsifierError",
    RuntimeError: "ShapeError CaptureError VerificationError KernelError CompilerError CompilerNotFoundError "
    "BuildError CacheError ProcessError UnsupportedOperatorError UnsupportedProgramError DenseSizeError "
    "ConversionError",
    TypeError: "DtypeError ConversionError",
    NotImplementedError: "UnsupportedOperatorError UnsupportedProgramError DenseSizeError ConversionError",
    OSError: "RecipeNotFoundError",
    FileNotFoundError: "RecipeNotFoundError",
    ImportError: "PackageConflictError",
}


@pytest.mark.parametrize("base", BUILT_IN, ids=lambda base: base.__name__)
def test_what_python_code_catches(base: type[Exception]) -> None:
    found = {kind.__name__ for kind in CLASSES if issubclass(kind, base)}
    assert found == set(BUILT_IN[base].split())


def test_recipe_not_found_as_the_system_says_it() -> None:
    error = errors.RecipeNotFoundError("no file and no built-in recipe", "gnc")
    assert (error.errno, error.filename) == (errno.ENOENT, "gnc")
    assert errors.RecipeNotFoundError("nothing").filename is None


def test_text_without_remedy() -> None:
    assert str(SparsifyError("found this")) == "found this"


def test_caret_points_into_the_right_line() -> None:
    text = "y[i] = x[i]\nz[i] = y[i] $ 2"
    assert str(errors.ParseError(text, text.index("$"), "unknown sign")) == (
        "unknown sign\n  z[i] = y[i] $ 2\n              ^"
    )


def test_recipe_error_without_a_place() -> None:
    assert str(errors.RecipeError("no such recipe")) == "no such recipe"
    assert str(errors.RecipeError("cannot be read", "a.yaml")) == "a.yaml: cannot be read"


def test_tree_in_the_docstring_lists_every_class() -> None:
    listed = [line.split()[0] for line in (errors.__doc__ or "").splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(kind.__name__ for kind in CLASSES)
    for kind in CLASSES:
        line = next(
            line for line in (errors.__doc__ or "").splitlines() if line.split()[:1] == [kind.__name__]
        )
        depth = (len(line) - len(line.lstrip())) // 2 - 2
        assert depth == sum(issubclass(base, SparsifyError) for base in kind.__mro__) - 1, kind


@pytest.mark.parametrize(
    "error, status",
    [
        (SparsifyError("no model 'gnc'"), errors.USAGE),
        (errors.RecipeError("unknown key"), errors.NEGATIVE),
        (errors.RecipeNotFoundError("no file"), errors.USAGE),
        (errors.VerificationError("differs"), errors.NEGATIVE),
        (errors.DataError("no folder"), errors.ENVIRONMENT),
        (errors.CompilerNotFoundError("none"), errors.ENVIRONMENT),
        (errors.CacheError("read-only"), errors.ENVIRONMENT),
        (errors.PackageConflictError("other"), errors.ENVIRONMENT),
    ],
    ids=str,
)
def test_exit_status(error: SparsifyError, status: int) -> None:
    assert errors.exit_status(error) == status


def test_exit_status_of_a_missing_package() -> None:
    with pytest.raises(SparsifyError) as raised:
        raise SparsifyError("gcn needs torch_geometric") from ModuleNotFoundError("torch_geometric")
    assert errors.exit_status(raised.value) == errors.ENVIRONMENT
