"""`sparsify env`: versions, processor, compiler and cache, for bug reports and measurements."""

from sparsify.cli.printing import Json, print_json, print_rows


def env(as_json: Json = False) -> None:
    """Print versions, processor, vector width, compiler and kernel cache."""
    from sparsify.doctor import environment

    found = environment()
    if as_json:
        print_json(found)
    else:
        print_rows((name.replace("_", " "), str(value) or "-") for name, value in found.items())
