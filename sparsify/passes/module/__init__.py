"""`SparseModule`: the sparse model returned by `apply`, with a variant per mode and input structure.

In: a source model and a call. Out: the outputs of a sparse graph. Read `sparse_module.py`, `capture_call.py`,
`variant.py`, `verify.py`, then the emulation of the source model: `facade.py`, `hooks.py`, and `shell.py` of
`capture/`.
"""
