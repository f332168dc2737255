"""Argument blocks of what moves, repeats, masks and numbers elements. Strides are in elements."""

from . import Block

# ---- copies: `kernels/cpu/array/copy.py` ----

# Rows of `length` elements in `units` pieces of `step`; for transpositions, strides and size of the dim that is
# contiguous in the source; then `num_dims` outer dims: their sizes, their strides in y, and in x.
COPY = Block("y x | length y_stride x_stride units step other_y_stride other_x_stride other num_dims dims*")

JOINED = Block("y | numel width itemsize pieces[]")  # rows of `width` elements, one piece from each tensor
PIECE = Block("x | start length")

# ---- new elements ----

FILLED = Block("y | value")  # the bits of an element
FILLED_PAIRS = Block("y | low high")  # those of an element of 16 bytes
TRIANGLE = Block("x y | rows columns x_stride diagonal upper")
ONE_HOT = Block("index y | classes")
COUNT_NONZERO = Block("x counts | numel step")  # of chunks of `step` elements
NONZERO = Block("x y counts | numel step ndim sizes*")  # `counts` of one chunk are made, of more they are there
REPEATED = Block("counts ends? y | size total")  # `ends`: running sums of the counts, unless these are few

# ---- elements whose number their values say: `kernels/cpu/array/chosen.py` ----

# In chunks of `step` elements, of which `counts` says how many are chosen: as for NONZERO.
SELECTED = Block("x mask y counts | numel step")
# `lasts`: where the last run of each chunk begins, or -1; the run of each element, and the elements of each run
RUNS = Block("x y counts lasts inverse? lengths? | numel step")
ALIKE = Block("x y alike | numel step start")  # int64, which becomes 0 where elements from `start` on differ

# The mask is true `counts` times in each chunk of `step`; the source has `count`.
MASKED = Block("x mask counts source y | numel step count")

FREXP = Block("x mantissa exponent")

DROPOUT = Block("x y | numel seed limit scale:f64")  # of 2^32 words, those below `limit` drop an element
DROPOUT_GROUP = 64  # elements that take their words from 16 neighbouring blocks of Philox
# `scale` times a number, and `shift`; uniform ones that would be `high` or more are `shift`
DRAWS = Block("y | numel seed first:f64 second:f64")

SILU_AND_MUL_BACKWARD = Block("g x dx | size g_stride x_stride")  # the size of a half, strides of rows

# ---- elements and rows by index ----

# `wrap` is added to negative indices; then `first` to `end` - 1 are valid; `zeros`: others give rows of zeros.
GATHER_ROWS = Block("y x index | step indices length row_stride outer_stride first end zeros=0 wrap=0")

# The indexed dim (k) and the innermost kept dim (j) with sizes and strides in t, index and v, each in blocks; then
# `num_dims` other kept dims: their sizes, their strides in t, in the index, in v.
ELEMENTS = Block(
    "t index v | bound count t_k i_k v_k length t_j i_j v_j j_step j_blocks k_step k_blocks num_dims dims*",
)

# The place of each of `count` elements of x for each row of a sorted sequence of `size`; `right`: behind equal ones.
SEARCH = Block("sequence x y | size count right")

# How many of x lie in each of the `bins` equal intervals from `low` to `high`, by parts of `step` elements: y [parts,
# bins]; on GPUs, `copies` of each count lie side by side in shared memory. Then the sums of the parts.
BIN_COUNTS = Block("x y | size step bins copies low:f64 high:f64")
SUM_OF_BINS = Block("parts y | count bins")

CHAIN = Block("index first following | step indices rows")  # int32 [rows] and [indices]; -1 ends
ADD_ROWS = Block("t v index first following | step indices rows length blocks scale")  # `scale`: bits, or an integer

OFFSETS = Block("y | num_tensors num_dims sizes* tensors[]")  # sizes of the broadcast indices; of each one:
INDEX = Block("x | size step strides*")  # size and stride of the dim that it indexes, and its own strides
PUT_ROWS = Block("t v index | count length t_outer v_outer v_row v_step columns blocks")
