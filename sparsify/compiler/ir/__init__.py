"""Common parts of all intermediate representations: nodes, rewrite rules, dtypes, a bounded memo."""
