"""Models past one machine: partitions of graphs on disk, exchanges of halos, rows and weights on several processes.

In: a file of edges, `partition(graph, 4, "stream", "parts/")`. Out: a folder with rows, edges and halo of each part;
`shard(model, graph="parts/")` runs a model on the parts, one process for each part.

Read in this order: `edge_list` reads files in chunks; `adjacency` sorts edges into rows on disk; `multilevel` and
`partition` give each node a part; `parts` writes and reads folders; `cost` predicts times. `halo` has the operators
for exchanges of rows; `placement` describes the distribution of a tensor, `place` has a rule for each operator;
`capture_rows` captures a model for any number of rows; `shard` places the graph and runs it, `in_turns` without other
processes; `hoist` makes exchanges determined by edges alone only once; `kernels` applies a recipe between exchanges;
`checkpoint` saves a training; `processes` forms the process group; `tensor_parallel` divides linear layers.
"""
