"""Argument blocks of matrix products: out = residual + activation(alpha * product + bias). Strides are in elements.

At the end of most lie the dims of the batch: how many (`batch`), and of each, outermost first, its size and its
strides in the first three tensors. Each thread of a launch has `thread_bytes` of the scratch.
"""

from . import Block

# C[rows, columns] = A[rows, k] B[k, columns] in tiles, of which a grid covers each matrix; blocks of mc x kc of A and
# of kc x nc of B are packed. `panel` is the size of a panel of a B that is packed already (0: it is not), `b_offset`
# where the block of B lies in a thread's scratch, `part_offset` where sums of a tile do (0: in C). `splits` parts
# of k (0: it is whole) are `split_k` long, with their sums at `parts` of the scratch. `a_group` is the size of a group
# of rows of an A that is packed already (0: it is not; -1: nor need it be, tile registers read it as it lies).
BLOCKED = Block(
    """a b c bias? residual? scratch |
    rows columns k a_stride a_k b_k b_stride c_stride grid_m grid_n tile_m tile_n mc kc nc panel b_offset part_offset
    thread_bytes splits=0 split_k=0 parts=0 a_group=0 alpha:f64 batch=0 dims*"""
)
INTEGER = Block("a b c | rows columns k a_stride a_k b_k b_stride c_stride alpha batch dims*")

# int32 sums of products of bytes: tiles of `width` columns, `height` rows of A packed at a time
BYTES = Block(
    """a b c scratch |
    rows columns k a_stride a_k b_k b_stride c_stride width height thread_bytes batch dims*"""
)

# `rows` rows of a large matrix w times `tokens` rows of x; the result's strides along both
DOT_ROWS = Block(
    """w x out bias? residual? |
    rows tokens k w_stride x_stride row_step token_step item_bytes alpha:f64 batch=0 dims*""",
    streamed="w",
)

# `tokens` rows of x times the `columns` of b, in chunks
ADD_ROWS = Block(
    """x b out bias? residual? |
    tokens columns k x_stride x_k b_k column_step token_step chunk alpha:f64 batch dims*"""
)

# `rows` rows of a weight times `tokens` rows of x, which are packed: by each thread, or before, for all of them, where
# `thread_bytes` is 0; `piece` elements of k have a sum of their own (0: as the kernel likes)
PANELS = Block(
    """w x out bias? residual? scratch |
    rows tokens k w_stride x_stride x_k out_stride thread_bytes item_bytes piece=0 alpha:f64 batch dims*""",
    streamed="w",
)

# sums of operands of 8 bits times their scales, which are `a_step` and `b_step` elements apart (0: one for all)
SCALED = Block("sums a_scales b_scales c bias? | columns a_step b_step alpha:f64")

LONG_DOT = Block("a b c parts | k")  # two vectors of k elements; `parts`: the sums of chunks

PACK = Block("w panels | rows k stride k_stride")  # a weight into panels, or rows of A into groups

# out = g * the slope at `before`, and the sums of columns in chunks of rows: those of a chunk are `step` apart
ACTIVATION_GRAD = Block("g before out sums | rows columns stride chunk_rows step")

# ---- the loss of a last layer (kernels/cpu/loss/linear.py) ------------------------------------------

TARGETS = Block("target factor | count classes ignored mean")
LOGITS = Block("logits target losses factor? | classes row ignored gradients")  # `row`: elements from row to row
LOSS = Block("losses factor y | count")
