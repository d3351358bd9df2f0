"""Assembly of results with unknown patterns: workspaces, and the phases that count and write their entries."""
