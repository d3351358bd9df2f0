"""Fusion across statements: programs whose statements share one kernel."""
