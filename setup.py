"""Packages: `sparsify/`, and `recipes/` and `models/` inside it.

The two lie beside the package, where people look for them. Everything else is in pyproject.toml.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["sparsify", "sparsify.*"]),
        *(f"sparsify.{name}" for name in find_packages(include=["recipes", "models", "models.*"])),
    ],
    package_dir={"sparsify.recipes": "recipes", "sparsify.models": "models"},
)
