"""The command `sparsify`: one module per verb, which asks the library and prints what it answers.

In: `sparsify recipes ls`. Out: results on standard output, progress and logs on standard error, an exit status
(0 fine, 1 a negative result, 2 usage, 3 environment). Nothing here imports torch before a verb needs it.
"""
