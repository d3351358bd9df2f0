"""Tensor-parallel linear layers: weights split among processes, in pairs: output rows, then input columns.

In: a model, a recipe with `shard: {linear: tensor}`, example inputs. Out: `TensorParallelModule`; each process has a
part of the weights, packed by the recipe; outputs equal the outputs of one process, with one all-reduce for each pair.

Read in this order: `collectives` has the operators; `split` selects the split products, by one rule for each
operator; `local` writes the graph of one process and cuts the weights; `module` applies the recipe and runs the graph.
Source: Shoeybi et al., Megatron-LM, 2019.
"""
