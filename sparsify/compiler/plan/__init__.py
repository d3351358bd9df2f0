"""Plans: which statements of a program share a kernel, and how each is prepared for loops."""
