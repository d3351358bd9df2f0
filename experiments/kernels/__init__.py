"""The rows "kernels" of the project's speed targets: `python -m experiments.kernels --out bench.json`."""
