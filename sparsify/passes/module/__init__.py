"""`SparseModule`: the sparse model that `apply` returns, with a variant for each mode and input structure.

In: a source model and a call. Out: the outputs of a sparse graph. Read `sparse_module.py`, `capture_call.py`,
`variant.py`, `verify.py`, then what makes it act as the source model: `facade.py`, `hooks.py`, and `shell.py` of
`capture/`.
"""
