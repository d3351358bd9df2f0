"""Attention for rules: found in a graph, and under the pattern of a rule.

In: a softmax between two products, or torch's operator. Out: the same with the mask of a pattern among its scores; the
general road makes a region of it, by laws on statements (`rewrite/attention.py`).
Read `find.py`, `spell.py`, `mask.py`, then `windows.py`, `cached_keys.py`, `relative_bias.py`.
"""
