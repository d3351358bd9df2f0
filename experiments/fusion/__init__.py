"""The rows "fusion" of the project's speed targets: `python -m experiments.fusion --out bench.json`."""
