"""What all intermediate representations share: nodes, rewrite rules, dtypes, a bounded memo."""
