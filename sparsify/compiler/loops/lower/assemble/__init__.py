"""Results whose pattern the kernel finds: workspaces, bounds, positions and coordinates."""
