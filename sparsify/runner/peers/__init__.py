"""Peers of a run: libraries that execute the dense model, installed or named with how to get them."""
