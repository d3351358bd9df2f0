"""Overlap: rows without neighbours in other parts are computed while the halo travels.

In: a part, and the graph of a model over its rows, as of `scale.place`. Out: a graph that begins each exchange,
computes the inner half of the part, ends the exchange, and computes the boundary half; backward passes do the same.

Read `halves.py` (the division of a part), `exchange.py` (an exchange in two steps, as operators of torch), `merge.py`
(one graph for both halves), `choose.py` (the cost model's decision, with measured rates of the network).
"""
