"""`docs/scorch.md` names tests and files that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scorch.md").read_text(encoding="utf-8")


def test_tests_exist():
    found = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(found) > 40
    for file, name in found:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, f"{file} has no {name}"


def test_files_exist():
    for file in re.findall(r"`((?:compiler|experiments|sparsify)/[\w/]+(?:\.py|/))`", PAGE):
        assert (ROOT / file).exists() or (ROOT / "sparsify" / file).exists(), file
