"""The house rules: the public surface, import directions, sizes of files, what is shipped and pinned."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sparsify
from sparsify import recipe
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.cpp.toolchain.build import Compiler
from sparsify.options import Options

from . import conftest, kernel_objects, mirror, sampling

ROOT = Path(__file__).resolve().parent.parent
MOST_WITHOUT_TEST = 285  # lower it with each module that gets a test
SHIPPED = ("sparsify", "recipes", "models", "experiments/reproduce", "experiments/scorch", "experiments/sten")
SOURCES = sorted(path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py"))
LINES_OF_A_FUNCTION = 60
NO_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", sparsify.__all__)
def test_public_name(name: str) -> None:
    found = getattr(sparsify, name)
    assert found.__name__.rpartition(".")[2] == name
    assert found.__doc__


def test_public_surface_is_complete() -> None:
    assert list(sparsify._MODULES) == sparsify.__all__
    assert set(sparsify.__all__) <= set(dir(sparsify))


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'sparsify' has no attribute 'sparse'"):
        sparsify.sparse  # noqa: B018


@pytest.mark.parametrize(
    "name", ["sparsify", "sparsify.cli.main", "sparsify.recipes", "sparsify.recipe", "sparsify.models"]
)
def test_imports_without_torch_from_anywhere(name: str, tmp_path: Path) -> None:
    code = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_source(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert path.name not in NO_NAMES
    assert ast.get_docstring(tree), "the module says nothing about itself"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno + 1 <= LINES_OF_A_FUNCTION, f"{node.name} is too long"


def imported(tree: ast.Module) -> Iterator[str]:
    """The full names that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(
    folder: str, nodes: Callable[[ast.Module], ast.Module] = lambda tree: tree
) -> dict[str, set[str]]:
    """The modules of a folder, each with the modules of the folder that it imports."""
    paths = {
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in (ROOT / folder).rglob("*.py")
    }
    trees = {name: nodes(ast.parse(path.read_text(encoding="utf-8"))) for name, path in paths.items()}
    found = {
        name: {full if full in paths else full.rpartition(".")[0] for full in imported(tree)}
        for name, tree in trees.items()
    }
    return {name: (names & paths.keys()) - {name} for name, names in found.items()}


def at_load_time(tree: ast.Module) -> ast.Module:
    """The statements outside of functions, classes and conditions."""
    return ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])


def test_modules_import_each_other_in_no_circle() -> None:
    graph = import_graph("sparsify", at_load_time)
    assert "sparsify.errors" in graph["sparsify.options"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which shows a circle


# `compiler/kernel` is left out: a kernel and the operators of traced graphs need each other.
COMPILER = sorted(path.parent for path in (ROOT / "sparsify" / "compiler").glob("*/__init__.py"))
ROOMS = [f"compiler/{path.name}" for path in COMPILER if path.name != "kernel"]


# Imports in functions and for type checking count, too.
@pytest.mark.parametrize("folder", [*ROOMS, "ops", "pruning", "nn", "training", "scale", "runtime"])
def test_rooms_have_no_circle_of_imports(folder: str) -> None:
    graph = import_graph(f"sparsify/{folder}")
    assert len(graph) > 1
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("hidden", ["", "if TYPE_CHECKING:\n    ", "def f():\n    "])
def test_a_circle_is_found(hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("from room import first\n")
    (tmp_path / "room" / "first.py").write_text("from room.second import name\n")
    (tmp_path / "room" / "second.py").write_text(f"{hidden}from room import first\n")
    with pytest.raises(CycleError, match="nodes are in a cycle"):
        TopologicalSorter(import_graph("room")).prepare()
    if hidden:
        TopologicalSorter(import_graph("room", at_load_time)).prepare()


def test_compiler_knows_no_graphs_of_torch() -> None:
    for path in (ROOT / "sparsify" / "compiler").rglob("*.py"):
        names = imported(ast.parse(path.read_text(encoding="utf-8")))
        assert [name for name in names if f"{name}.".startswith("torch.fx.")] == [], path


def test_the_architecture_page_shows_the_passes() -> None:
    from sparsify.passes.pipeline import PASSES

    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = [
        line.split()[0]
        for line in page.split("model + recipe")[1].split("```")[0].splitlines()
        if line.strip()
    ]
    assert shown[1 : 1 + len(PASSES)] == [step.name for step in PASSES]


def test_tests_are_named_after_modules() -> None:
    assert not list(mirror.without_module()), (
        "name the tests after one module, or move them to a scenarios folder"
    )
    assert len(mirror.without_test()) <= MOST_WITHOUT_TEST, (
        "`python -m tests.mirror` lists modules without a test"
    )


def import_name(path: Path) -> str:
    """The name under which pytest imports a test module: that of its file behind those of the packages around it."""
    names = [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        names.insert(0, folder.name)
    return ".".join(names)


def test_test_modules_have_names_of_their_own() -> None:
    names = Counter(import_name(path) for path in (ROOT / "tests").rglob("test_*.py"))
    twice = [name for name, count in names.items() if count > 1]
    assert not twice, "pytest cannot import both: put an __init__.py into the folder of one of them"


def test_environment_is_read_in_options_alone() -> None:
    pattern = re.compile(r"""(environ\b.*|getenv\()["']SPARSIFY_""")
    found = [name_of(path) for path in SOURCES if pattern.search(path.read_text(encoding="utf-8"))]
    assert set(found) <= {"sparsify/options.py"}


def test_every_dependency_is_pinned() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=!~\[ ;]", text)[0].lower().replace("_", "-") for text in requirements}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    assert names(project["dependencies"] + extras["graph"] + extras["text"] + extras["dev"]) <= names(pinned)


def test_golden(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(conftest, "GOLDEN", tmp_path)
    (tmp_path / "loops.txt").write_text("forall i\n")
    golden("loops.txt", "forall i")
    with pytest.raises(AssertionError, match="--update-golden accepts it"):
        golden("loops.txt", "forall j")
    with pytest.raises(AssertionError, match=r"kernel.cpp is missing"):
        golden("kernel.cpp", "")


class Case:
    """A collected test with markers."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def test_each_case_has_its_day() -> None:
    every, exhaustive = pytest.mark.sampled(3).mark, pytest.mark.exhaustive.mark
    runs = []
    for day in range(20000, 20003):
        cases = [Case(f"test_a.py::test_b[{number}]", every) for number in range(7)]
        cases += [Case("test_a.py::test_c", every), Case("test_a.py::test_d[0]", every, exhaustive)]
        cases += [Case(f"test_a.py::test_e[{number}]") for number in range(2)]
        sampling.mark_other_days(cases, day)  # type: ignore[arg-type]
        runs.append([case.nodeid for case in cases if "exhaustive" not in case.marks])
    assert all(sum("test_b" in name for name in run) in (2, 3) for run in runs)
    assert all("test_a.py::test_e[1]" in run for run in runs)
    taken = sorted(name for run in runs for name in run if "test_e" not in name)
    assert taken == [*(f"test_a.py::test_b[{number}]" for number in range(7)), "test_a.py::test_c"]


def test_objects_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(source: str, directory: Path, compiler: Compiler, options: Options) -> Path:
        built.append(source)
        (directory / "kernel.so").write_text(source)
        return directory / "kernel.so"

    monkeypatch.setattr(cache, "build", build)
    compiler, fast = Compiler("/usr/bin/g++", "g++ 12"), Options(compiler_flags=("-O0",))
    kernel, other = (f"{kernel_objects.GENERATED}{name}" for name in ("a", "b"))
    requests = [(kernel, fast), (kernel, fast), (other, fast), (kernel, Options()), *[("by hand", fast)] * 2]
    for _ in range(2):
        with kernel_objects.reused(tmp_path / "objects"):
            for number, (source, options) in enumerate(requests):
                folder = tmp_path / f"{len(built)} {number}"
                folder.mkdir(exist_ok=True)
                assert cache.build(source, folder, compiler, options).read_text() == source
    assert built == [kernel, other, kernel, *["by hand"] * 4]
    old = min((tmp_path / "objects").iterdir())
    os.utime(old, (0, 0))
    kernel_objects.prune(tmp_path / "objects")
    assert not old.exists() and len(list((tmp_path / "objects").iterdir())) == 2


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_wheel(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    for name in ("sparsify", "recipes", "models", "experiments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("sparsify_fx-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
        archive.extractall(site)
    inside = {f"sparsify/{name_of(path).removeprefix('sparsify/')}" for path in SOURCES}
    data = {"sparsify/py.typed", "sparsify/recipes/gcn.yaml", "sparsify/recipes/schema.json"}
    assert inside | data <= shipped
    assert {name.split("/")[0] for name in shipped} == {
        "sparsify",
        f"sparsify_fx-{sparsify.__version__}.dist-info",
    }
    code = "import sparsify.recipes as r, sparsify.models as m; print(r.__file__, m.__file__)"
    run = {
        "cwd": tmp_path,
        "env": {"PYTHONPATH": str(site)},
        "check": True,
        "capture_output": True,
        "text": True,
    }
    places = subprocess.run([sys.executable, "-c", code], **run).stdout.split()
    assert places == [str(site / "sparsify" / name / "__init__.py") for name in ("recipes", "models")]
    figures = [sys.executable, "-m", "sparsify", "reproduce", "scorch", "figure8"]
    asked = {**run, "check": False, "env": {**run["env"], "SPARSIFY_CACHE_DIR": str(tmp_path)}}
    assert "there are no matrices" in subprocess.run(figures, **asked).stdout
    listed = subprocess.run([sys.executable, "-m", "sparsify", "recipes", "ls"], **run).stdout
    assert [line.split()[0] for line in listed.splitlines()] == recipe.names()
