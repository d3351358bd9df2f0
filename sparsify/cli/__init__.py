"""The command `sparsify`: one module per verb, to call the library and print the result.

In: `sparsify recipes ls`. Out: results on standard output, progress and logs on standard error, an exit status
(0 fine, 1 a negative result, 2 usage, 3 environment). torch is imported only by verbs that need it.
"""
