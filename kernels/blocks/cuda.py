"""Argument blocks that only GPUs have, and what the host knows of a kernel when it launches it."""

from . import Block

# `entry` comes first: the host function that launches, which the core calls. `launcher` is the driver's, `stream_at`
# where the current stream stands, `error_at` the word that errors are written to, with the `number` of the kernel.
# An item goes to a thread, `per` items at a time, or to a whole block (`per` = 0). `words` are those of its parameters
# (0: as many as the block has), `most` the largest grid.
KERNEL = Block("| entry launcher function stream_at error_at number threads per shared words most")

# ---- copies: `kernels/cuda/array/copy.py`; strides in elements ----

COPY = Block("y x |")
STRIDED_COPY = Block("y x | ndim dims*")  # the sizes of the dims, their strides in y, in x
# `rows` x `columns` whose rows lie side by side in x and columns in y, in `tiles` of which `across` cover the columns;
# then the other dims, as above.
TRANSPOSE = Block("y x | rows columns y_stride x_stride across tiles ndim dims*")

# ---- products: `kernels/cuda/gemm`; c is row-major ----

# Tiles of c, `across` of them side by side, `tiles` in a matrix; `alpha` has a float64's bits, or is an integer. Then
# the dims of the batch: their sizes, their strides in a, in b, in c.
PRODUCT = Block(
    "a b c bias? residual? | rows columns k a_stride a_k b_k b_stride across tiles alpha ndim dims*",
)
PANELS = Block("w panels | rows k stride k_stride")

# ---- convolutions: `kernels/cuda/conv`; everything is row-major ----

_CONV = "| images c m groups x_h x_w y_h y_w kernel_h kernel_w stride_h stride_w pad_h pad_w gap_h gap_w"
CONV = Block(f"x weight y bias? {_CONV}")
CONV_WEIGHT = Block(f"x g dw {_CONV}")
