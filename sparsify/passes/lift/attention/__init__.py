"""Attention for rules: recognised in a graph, and restricted to the pattern of a rule.

In: a softmax between two products, or torch's operator. Out: the same with the mask of a pattern in its scores; the
general front end makes a region, by rewrite rules on statements (`rewrite/attention.py`). Read `find.py`, `spell.py`,
`mask.py`, then `windows.py`, `cached_keys.py`, `relative_bias.py`.
"""
