"""The rows "foundation" of the project's speed targets: `python -m experiments.foundation --out bench.json`."""
