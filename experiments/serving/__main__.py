"""Entry of `python -m experiments.serving`: pins the threads, then loads everything else."""

import sys

from sparsify.bench.environment import pin_threads

if __name__ == "__main__":
    pin_threads(1 if "--cpu-time" in sys.argv else None)
    from experiments.serving.command import main

    sys.exit(main())
