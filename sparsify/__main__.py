"""`python -m sparsify`: the command line."""

from sparsify.cli.main import main

main()
