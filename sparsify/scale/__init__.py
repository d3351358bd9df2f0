"""Graphs past one machine: partitions on disk, exchanges of halos, models whose rows are on several processes.

In: a file of edges, `partition(graph, 4, "stream", "parts/")`. Out: a folder with rows, edges and halo of each part;
`shard(model, graph="parts/")` runs a model on them, one process for each part.

Read in this order: `edge_list` reads files in chunks; `adjacency` sorts them into rows on disk; `multilevel` and
`partition` give each node a part; `parts` writes and reads folders; `cost` predicts times. `halo` has the operators
that exchange rows; `placement` says how a tensor lies, `place` has a rule for each operator; `shard` captures a model,
places its graph and runs it; `processes` and `failures` are about the group of processes.
"""
