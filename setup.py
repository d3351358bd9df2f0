"""Packages: `sparsify/`, and `recipes/`, `models/` and what `sparsify reproduce` needs of `experiments/` inside it.

They lie beside the package, where people look for them. Everything else is in pyproject.toml.
"""

from setuptools import find_packages, setup

INSIDE = [
    "recipes",
    "models",
    "models.*",
    "experiments",
    "experiments.reproduce",
    "experiments.scorch",
    "experiments.sten",
]

setup(
    packages=[
        *find_packages(include=["sparsify", "sparsify.*"]),
        *(f"sparsify.{name}" for name in find_packages(include=INSIDE)),
    ],
    package_dir={f"sparsify.{name}": name for name in ("recipes", "models", "experiments")},
)
