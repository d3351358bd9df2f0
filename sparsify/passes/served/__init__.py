"""Captured models in files: graphs, calls and regions as JSON, and a sparse model without the source class.

In: a `SparseModule` with graphs. Out: `described(module)`, a document of plain values, with the tensors named in the
document; `restored(document, tensors, ...)`, a `ServedModule` with equal results.

Read in this order: `values` (plain values), `graphs` (fx graphs), `regions` (calls of kernels and their operands),
`kinds` (kinds of calls per graph), `describe`, `restore`, `served_module`. Reading a file executes nothing but
operators of torch and functions of this package, by name.
"""
