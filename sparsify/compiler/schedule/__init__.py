"""Schedules: the decisions between concrete index notation and loops, as text that prints and parses back."""
