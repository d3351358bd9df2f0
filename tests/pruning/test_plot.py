"""Schedules of recipes as drawings."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sparsify import recipe
from sparsify.errors import SparsifyError
from sparsify.pruning.plot import as_svg, as_text, schedules

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("name, first", [("rigl90", 0.9), ("set90", 0.9), ("gmp90", 0.0)])
def test_built_in_recipes_are_drawn(name, first):
    found = schedules(recipe.load(RECIPES / f"{name}.yaml"))
    schedule = found["weights"]
    assert (schedule.target(0), schedule.target(7500)) == (first, 0.9)
    text = as_text(found)
    assert text.startswith(f"weights: {schedule.kind}, from {first:g} to 0.9 zeros, 75 updates\n")
    assert sum(line.count("*") for line in text.splitlines()) == 60
    curve = ElementTree.fromstring(as_svg(found)).findall("{*}polyline")[-1].get("points").split()
    heights = [float(point.split(",")[1]) for point in curve]
    assert heights[0] == pytest.approx(320 - 48 - 224 * first)
    assert heights[-1] == pytest.approx(320 - 48 - 224 * 0.9, abs=0.1)
    assert heights == sorted(heights, reverse=True)


def test_the_command_needs_no_torch(tmp_path):
    code = (
        "import sys; from sparsify.cli.main import main\n"
        f"sys.argv = ['sparsify', 'recipes', 'plot', {str(RECIPES / 'gmp90.yaml')!r}, "
        f"'--out', {str(tmp_path / 'x.svg')!r}, '--json']\n"
        "try:\n    main()\nfinally:\n    sys.stderr.write(str('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False"
    (found,) = json.loads(done.stdout)["schedules"]
    assert found["updates"][0] == [0, 0.0] and found["updates"][-1] == [7500, 0.9]
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


def test_recipes_without_zeros_are_not_drawn():
    with pytest.raises(SparsifyError, match="no rule of gcn prunes"):
        schedules(recipe.load(RECIPES / "gcn.yaml"))
