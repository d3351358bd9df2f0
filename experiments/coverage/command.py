"""`python -m experiments.coverage [NAME ...]`: verifies models and prints the table of docs/models.md.

In: prefixes of names. Out: a table in Markdown on standard output; exit status 1 if a model is partly covered.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from experiments.coverage.catalogue import SUBJECTS
from experiments.coverage.verify import Coverage, verify
from sparsify import options

HEAD: Final = (
    "| model | attention | linear layers | given matrices | gates | tier | captured graphs | outputs and gradients |",
    "|---|---|---|---|---|---|---|---|",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.coverage", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names; all when not given")
    asked = parser.parse_args(argv)
    is_whole = True
    print(*HEAD, sep="\n")
    for name, subject in SUBJECTS.items():
        if asked.names and not name.startswith(tuple(asked.names)):
            continue
        if not subject.is_installed:
            print(f"{name}: {subject.package} is not installed", file=sys.stderr)
            continue
        with options.override(tune_seconds=0, compiler_flags=("-O0",)):
            found = verify(subject)
        is_whole = is_whole and found.is_whole
        print(row(name, found), flush=True)
    return 0 if is_whole else 1


def row(name: str, found: Coverage) -> str:
    """A line of the table."""
    counts = (found.attention, found.linear, found.given, found.gates)
    parts = [f"{count} of {total}" if total else "" for count, total in counts]
    verified = "as in float64" if found.is_whole else f"{found.outputs:.0e}, {found.gradients:.0e}"
    return f"| {' | '.join([name, *parts, str(found.tier), str(found.graphs), verified])} |"
