"""The application `sparsify` and its entry point.

In: the arguments of the command line. Out: an exit status.
"""

import typer

app = typer.Typer(
    name="sparsify",
    help="Sparse tensors in PyTorch models: recipes, kernels, measurements.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options() -> None:
    """Sparse tensors in PyTorch models: recipes, kernels, measurements."""


def main() -> None:
    """Runs the command line of this process."""
    app()
