"""Plans: the fusion groups of a program, and the preparation of each statement for lowering to loops."""
