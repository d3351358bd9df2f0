"""An hour of random programs, graphs, threads, faults, sanitizers, applies and shapes: `python -m tests.soak`."""
