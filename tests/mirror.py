"""Source modules and their test modules: `sparsify/compiler/ir/node.py` and `tests/compiler/ir/test_node.py`.

`python -m tests.mirror` prints the modules without a test module, the longest first.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("compiler", "passes", "storage")
# Tests of several modules at once.
ACROSS = ("compiler/random_programs", "passes/scenarios")


def test_path(module: Path) -> Path:
    """The path of the test module, relative to the checkout.

    >>> str(test_path(Path("sparsify/compiler/ir/node.py")))
    'tests/compiler/ir/test_node.py'
    """
    inside = module.relative_to("sparsify")
    return Path("tests") / inside.parent / f"test_{inside.name}"


def modules() -> list[Path]:
    """The modules of the rooms, relative to the checkout."""
    found = (path for room in ROOMS for path in (ROOT / "sparsify" / room).rglob("*.py"))
    return sorted(path.relative_to(ROOT) for path in found if path.stem != "__init__")


def without_test() -> list[Path]:
    """The modules without a test module."""
    return [module for module in modules() if not (ROOT / test_path(module)).is_file()]


def without_module() -> Iterator[Path]:
    """The test modules of the rooms that name no module, except tests of several modules."""
    named = {test_path(module) for module in modules()}
    for room in ROOMS:
        for path in sorted((ROOT / "tests" / room).rglob("test_*.py")):
            test = path.relative_to(ROOT)
            if test not in named and not any(test.is_relative_to(f"tests/{folder}") for folder in ACROSS):
                yield test


if __name__ == "__main__":
    lengths = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in without_test()}
    for path, count in sorted(lengths.items(), key=lambda pair: -pair[1]):
        print(f"{count:5} {path}")
    print(f"{len(lengths)} of {len(modules())} modules have no test module")
