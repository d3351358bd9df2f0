"""Captured models in files: graphs, calls and regions as JSON, and the sparse model that runs them without its class.

In: a `SparseModule` with graphs. Out: `described(module)`, a document of plain values and the tensors that it names;
`restored(document, tensors, ...)`, a `ServedModule` that computes the same.

Read in this order: `values` (plain values), `graphs` (fx graphs), `regions` (calls of kernels and what they read),
`kinds` (which calls a graph is for), `describe`, `restore`, `served_module`. Reading executes nothing of a file but
operators of torch and functions of this package, by their names.
"""
