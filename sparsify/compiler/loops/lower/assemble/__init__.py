"""Assembly of results with unknown patterns: workspaces, bounds, positions and coordinates."""
