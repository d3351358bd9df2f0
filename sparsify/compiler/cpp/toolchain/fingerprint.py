"""Fingerprint of the compiler: a digest that changes with every change of the package's files.

In: nothing. Out: `"5f2c..."`. Keys of kernels on disk are made from the requests, before the C++ exists, so
a changed compiler must not find kernels of the previous one.
"""

import hashlib
import os
from functools import cache
from pathlib import Path

import sparsify


@cache
def fingerprint() -> str:
    """A digest over names, sizes and dates of the package's Python and C++ files."""
    root = Path(sparsify.__file__).parent
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            if name.endswith((".py", ".cpp")):
                facts = os.stat(os.path.join(folder, name))  # noqa: PTH118
                found.append((folder, name, facts.st_size, facts.st_mtime_ns))
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:16]


@cache
def code_digest() -> str:
    """A digest of the texts of the compiler's files, equal for equal installations on different machines."""
    root = Path(sparsify.__file__).parent / "compiler"
    found = hashlib.sha256(sparsify.__version__.encode())
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.cpp"))):
        found.update(f"{path.relative_to(root)} ".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:32]
