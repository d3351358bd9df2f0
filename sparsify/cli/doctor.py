"""`sparsify doctor`: working and missing parts of the installation, with remedies."""

from dataclasses import asdict

import typer

from sparsify.cli.printing import Json, print_json
from sparsify.errors import ENVIRONMENT


def doctor(as_json: Json = False) -> None:
    """Check compiler, cache and packages, and compile and check one kernel."""
    from sparsify.doctor import diagnose, is_healthy
    from sparsify.report_text import UNLIMITED, terminal_width, wrapped

    findings = diagnose()
    if as_json:
        print_json({"healthy": is_healthy(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            typer.echo(wrapped(str(finding), terminal_width(UNLIMITED), " " * 8))
    if not is_healthy(findings):
        raise typer.Exit(ENVIRONMENT)
