"""Operators left to torch, as nodes between regions, with reasons."""

from sparsify.passes.program.table.row import opaque

opaque(
    "an order of entries is no function of an entry",
    "sort",
    "topk",
    "argsort",
    "kthvalue",
    "median",
    "unique",
)
opaque(
    "windows at the border have fewer entries", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "max_pool2d_with_indices_backward", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d",
)  # fmt: skip
opaque(
    "each entry depends on all before it: a product with a triangle costs n squared",
    "cumsum",
    "cumprod",
    "logcumsumexp",
)
opaque(
    "draws random numbers", "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli",
    "multinomial", "native_dropout", "normal",
)  # fmt: skip
opaque("the data decides the shape", "nonzero", "masked_select", "repeat_interleave", "bincount")
opaque(
    "it is a number, not a tensor",
    "_local_scalar_dense",
    "item",
    "sym_size",
    "sym_numel",
    "sym_stride",
    "sym_storage_offset",
    "sym_is_contiguous",
)
opaque("its entries have no values yet", "empty", "empty_strided", "empty_like", "new_empty")
opaque("strides of memory are no index variables", "as_strided", "resize_", "resize")
opaque("a transform in n log n steps", "_fft_c2r", "_fft_r2c", "_fft_c2c")
opaque(
    "reads at rounded or interpolated coordinates", "grid_sampler_2d", "upsample_bilinear2d", "upsample_nearest2d",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
)  # fmt: skip
opaque(
    "padding by mirrored or repeated entries", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d",
)  # fmt: skip
opaque("it fills places one after the other", "masked_scatter")
opaque("groups of channels join modes", "native_group_norm", "group_norm")
opaque("statistics of a batch change buffers", "_native_batch_norm_legit")
opaque("pairs of rows are counted by one number", "_pdist_forward")
opaque(
    "the adjoint of its program is the gradient", "convolution_backward", "native_layer_norm_backward",
    "native_group_norm_backward", "avg_pool2d_backward", "embedding_dense_backward",
)  # fmt: skip
opaque("overlapping windows are added up: the adjoint of `unfold`", "col2im")
opaque("captured graphs have `embedding_bag` in its place", "_embedding_bag")
opaque("it joins modes of both matrices", "kron")
opaque("which one of several writes to a place counts is not defined", "scatter")
