"""Entry of `python -m experiments.coverage`."""

import sys

from experiments.coverage.command import main

if __name__ == "__main__":
    sys.exit(main())
