"""Argument blocks of quantised weights.

`weight` is a packed weight [n, k] whose groups have the shift `shift` (`kernels/lang/formats.py`). Strides and steps
are in elements.
"""

from . import Block

# ---- packing: n rows of k elements ----

PACK = Block("x weight | n k stride shift first=0")  # floats, to the rows of `weight` from `first` on
VALUES = Block("weight order? y | n k shift")  # and back: y [n, k]
# Contiguous layouts of checkpoints. The scale of a row and a record is `row_step` and `record_step` from those of the
# next ones, and belongs to `rows_each` rows; `added` is added to the zeros.
LAYOUT = Block("source weight scales zeros? order? | n k shift row_step record_step rows_each=1 added=0")
UNPACK = Block("weight values scales | n k shift")  # back to such a layout

# ---- raw blocks of GGUF files: `count` rows of `length` elements; row i of the result is row index[i] ----

GGUF_VALUES = Block("raw index? y | length block_bytes count")
GGUF_PACK = Block("raw index? weight | length block_bytes count")

# ---- products: y [rows, columns] = x [rows, k] weight [columns, k]^T + bias ----

# Activations in tiles of rows: integers with scales and corrections, or floats.
TILES = Block("x tiles scales? fixes? order? | stride rows k units")
PANELS = Block("x panels | stride rows k panel_bytes")  # or as panels of the blocked product
REORDER = Block("x order y | k")  # y[row, i] = x[row, order[i]]
# `scratch` and the numbers that have defaults are those of the product that expands the weight: bytes of a panel of x,
# and of the scratch of each thread.
PRODUCT = Block(
    """x scales? fixes? weight y bias? scratch? |
    rows columns k units panel_bytes shift y_stride item_bytes=0 x_bytes=0 thread_bytes=0""",
    streamed="weight",
)
