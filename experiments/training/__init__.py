"""Training of sparse models, measured: `python -m experiments.training` for the times of steps."""
