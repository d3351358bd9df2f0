"""Registrations of users: formats, operators, gradients, sparsifiers, and dispatch."""
