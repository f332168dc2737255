"""Argument blocks that only GPUs have, and what the host knows of a kernel when it launches it."""

from . import Block
from .attention import ATTENTION, GRAD
from .conv import VOLUMES

# `entry` comes first: the host function that launches, which the core calls. `launcher` is the driver's, `gpu` the
# number of the GPU and `context` its context, which the driver's `set_context` makes that of the thread. `error_at` is
# the word that errors are written to, with the `number` of the kernel. An item goes to a thread, `per` items at a time,
# or to a whole block (`per` = 0), or `share` of them are worth a block. `words` are those of its parameters (0: as many
# as the block has), `skip` the words before them in the launch's buffer, `most` the largest grid.
KERNEL = Block(
    "| entry launcher function gpu context set_context error_at number threads per shared words skip most share"
)

# ---- copies: `kernels/cuda/array/copy.py`; strides in elements ----

COPY = Block("y x |")
# Rows of `length` that are contiguous in y, in so many `vectors` each; the dims before.
ROW_COPY = Block("y x | length vectors ndim dims*")
STEPPED_COPY = Block("y x | length parts y_step x_step ndim dims*")  # rows of elements `step` apart, in parts
STRIDED_COPY = Block("y x | ndim dims*")  # the sizes of the dims, their strides in y, in x
# `rows` x `columns` whose rows lie side by side in x and columns in y, in `tiles` of which `across` cover the columns;
# then the other dims, as above.
TRANSPOSE = Block("y x | rows columns y_stride x_stride across tiles ndim dims*")

# ---- products: `kernels/cuda/gemm`; c is row-major ----

# Tiles of c, `across` of them side by side, `tiles` in a matrix; `alpha` has a float64's bits, or is an integer. Of k
# there may be `splits` parts of `part` each, whose sums lie one after the other. `a_scales` and `b_scales` are `a_step`
# and `b_step` elements apart from row to row and from column to column. Then the dims of the batch: their sizes, their
# strides in a, in b, in c.
PRODUCT = Block(
    """a b c bias? residual? a_scales? b_scales? |
    rows columns k a_stride a_k b_k b_stride across tiles alpha splits=1 part=0 a_step=0 b_step=0 ndim dims*""",
)
PANELS = Block("w panels | rows k stride k_stride")

# The same on the matrix units, in tiles `across` and `down` a matrix; of k in `steps`, which `splits` parts share,
# `split_steps` each. `map_a` and `map_b` are the maps of tensors that the copy engine reads (128 bytes, at a multiple
# of 64 of the parameters), whose first words are the addresses of a and b. The batch has outer and `inner` dims, each
# with 0 or 1 for an operand that has it not or has it, and with its stride there.
WGMMA = Block(
    """c bias? residual? a_scales? b_scales? | alpha rows columns k across down splits inner steps
    a_step b_step split_steps a_stride a_k b_stride map_a:16 map_b:16 b_k a_outer a_inner b_outer b_inner
    a_outer_stride a_inner_stride b_outer_stride b_inner_stride"""
)
# `rows` of w times `tokens` rows of x, in `groups` of them; steps of both in the result. `aligned`: rows are multiples
# of 16 bytes apart; `bias_of_tokens`: the bias has an element for each of these.
ROWS = Block(
    "w x out bias? residual? | rows tokens groups k w_stride x_stride row_step token_step aligned bias_of_tokens alpha"
)
# The same where a block brings `share` rows of w to shared memory, in steps of `slabs` times 64 of k, of which `stages`
# fit, and up to `ahead` are on their way before x is there; `whole`: x comes at once. Maps as above. Where a gate
# follows, w has two halves of `half` rows, of each of which a block has the same share.
STREAM = Block("| share stages slabs ahead whole half=0 pad:6=0 map_w:16 map_x:16", after=ROWS)
# The same of up to three quantised weights with the same k, a `share` of panels at a time: the weights begin with these
# items and columns of y. `map_p` are the maps of parameters.
_PACKED = " ".join(f"map_w{i}:16 map_p{i}:16" for i in range(3))
PACKED_STREAM = Block(
    f"""x y bias? weight0 weight1 weight2 | tokens k y_stride share stages shift panel_bytes
    items1 items2 columns0 columns1 columns2 column1 column2 ahead whole pad:6=0 map_x:16 {_PACKED}"""
)
# Where x is made on the way (`cuda/made.py`), one of these follows the block of the product: ADD_RMS, or what y is made
# of where it is RULE(up, gate); strides of rows.
GATED = Block("up gate y | size up_stride gate_stride y_stride")
# Where y = RULE(up, gate) of the halves of the result follows, in this order or the other way round, this one.
GATING = Block("y | y_stride gate_first")
JOIN = Block("parts c bias? residual? a_scales? b_scales? | rows columns splits alpha a_step=0 b_step=0")

# ---- convolutions: `kernels/cuda/conv`; everything is row-major ----

_WINDOW = "x_h x_w y_h y_w kernel_h kernel_w stride_h stride_w pad_h pad_w gap_h gap_w"
CONV_WEIGHT = Block(f"x g dw | images c m groups vectors {_WINDOW}")
# Behind the block of volumes: bands are so many outputs as a block has, of which it brings `chunk` weights at a time.
# Results that lie `apart` meet every tap number `period`, whose places in x are `leap` from one another.
CONV_SUMS = Block("| images bands tiles chunk period:3 leap:3", after=VOLUMES)
# Columns y of x: rows of taps `row_step` apart, those of images `image_step`, in which an image has a `span` of places;
# `vectors` are those of a row.
COLUMNS = Block(f"x y | images vectors span row_step image_step x_image {_WINDOW}")
# `sums` are parts [images, kernel_h, splits, rows, channels, kernel_w]; dw is [rows, channels, kernel_h, kernel_w].
BANDS = Block("sums dw | images splits rows channels kernel_h kernel_w")
FOLDED = Block(f"x y | period_h period_w jump_h jump_w {_WINDOW}")
BIAS = Block("y bias | channels length")

# ---- attention on the matrix units: `kernels/cuda/attention/wgmma.py` ----

# Behind the block of attention: `tiles` of query rows for each head of each sequence (where sequences are packed: of
# all of them, for each head); with `pairs` a block takes a long and a short one together. The copy engine takes `box`
# keys at once, where rows lie as it can read them (not `gathered`), by maps of the tensors. `lse`: 0, or the address
# of [B, H, S]. `mask`: 0, or the address of one, with strides as in GRAD.
FLASH = Block(
    "| lse tiles pairs box gathered mask mask_strides:3=0 dropout:f64 seed pad:1=0 map_q:16 map_k:16 map_v:16",
    after=ATTENTION,
)
# On the matrix units of warps: `tiles` as above; `lines`: 0, or how many heads of sequences there are, whose tiles all
# run at once. `lse` and `mask`: 0, or addresses; strides as in GRAD.
ATTENTION_TILES = Block("| lse mask mask_strides:3=0 dropout:f64 seed tiles lines=0", after=ATTENTION)
# Few query rows: the keys of each are cut into `parts`, a block for each, whose warps have one of the `slots` each. The
# workspace has sums [rows, slots, size] and, from element `stats` on, [rows, slots, 2]. `heads` are those of queries.
DECODE = Block("| parts slots stats heads", after=ATTENTION)
# Its gradients: behind their block `tiles` of rows for each head, and maps as above.
FLASH_GRAD = Block("| tiles gathered pad:7=0 map_q:16 map_k:16 map_v:16 map_g:16", after=GRAD)
GRAD_TILES = Block("| tiles", after=GRAD)

# ---- scans: `kernels/cuda/reduce/scan.py` ----

# Row-major results of `rows` rows of `size`; rows of x are `x_stride` apart. Where a row is in `parts`, `words` has
# their states, and behind those of all rows those of groups. Or `columns` neighbours, in `strips`, have the dim.
# Extremes go to y, their places to `indices`.
SCAN = Block("x y indices? words? | rows size x_stride parts=1 columns=1 strips=1")

# ---- sums and gathers over GPUs of one host: `kernels/cuda/comm/peers.py` ----

# `count` elements in pieces of `piece`, a block for each. `own` is the window of this rank, `windows` those of all, in
# their order. Who waits for longer than `timeout` nanoseconds gives up. For a gather, behind the windows: how many
# elements each rank gives, and where they go here (0: nowhere); `count` is this rank's number of them.
PEERS = Block("x y | count piece rank own timeout windows*")
# What copy engines carry (`copies.py`): the next meeting, whose flags are at byte `flags` of all windows; `what` is
# added to codes. Then the part of this rank: `count` elements of x and, from the address `given` in the window on,
# `part` bytes apart, what the `others` have pushed there.
MEETING = Block("| flags what rank own timeout windows*")
JOINED_PART = Block("x y | count others rank given part")

# ---- sorting by digits: `kernels/cuda/reduce/radix.py`, of long rows `sweep.py` ----

# Rows of `size` elements, `stride` and the elements `step` apart, with their `order`, if they have one; the first
# `wanted` of each go to the results. Long rows are in `tiles`, of `room` elements where these are counted, and have
# `totals` [rows, digits, 256] and words `counts` [rows, tiles, 256]; `shift` is that of the digit. The rest is that of
# SORT.
RADIX = Block(
    """source order? to? order_to? counts? totals? values? indices? |
    size stride step=1 tiles=0 room=0 digits=0 shift=0 wanted=0 infinity mask"""
)
# Softmax along the dim of `size` of [outer, size, columns] (`kernels/cuda/norm/columns.py`), in `parts` of `step` rows,
# whose `states` are two planes of [parts, outer, columns]. On the way back, x is the result and g its gradient.
SOFTMAX_COLUMNS = Block("x y? g? states? | size columns outer stride g_stride=0 parts=1 step=0")
# Elements by rank (`kernels/cuda/reduce/select.py`): `count` ranks of each row; the rest is that of SORT.
SELECT = Block("source ranks? values indices | size stride count infinity rank=0")
# Extremes and where they are (`kernels/cuda/reduce/position.py`): the dims of POSITION; each row of `length` is in
# `parts` of `step` elements, whose extremes and their places, `found`, lie like results, of columns part by part.
PLACES = Block("x values? indices found? | inner outer_stride inner_stride length stride results parts=1 step=0")
# The first elements of runs, how many they are, and a word for each block, each warp of which has a `share` of the
# `chunks` of x, and a bit for 2^`shift` of them: `kernels/cuda/array/firsts.py`.
FIRSTS = Block("x y count words | size chunks share shift")

# ---- elements and rows by index: `kernels/cuda/array/elements.py` ----

# The index leads `t_k` elements further in t, for each of `bound`; `wrap` is added to negative ones. Then the dims of
# the index: their sizes, their strides in t (0 of the one that is indexed), in the index, in v. Of rows, of `length`
# elements each, those before.
PLACED = Block("t index v | bound t_k wrap length dims*")
# t[index * t_k] += v for indices `step` apart, counted in shared memory, where each cell has `copies` side by side.
COUNTED = Block("t index v | cells copies step t_k")
# t[o, key] += scale * v[o, place] for sorted keys, and where they were, or for keys as they stand, `step` apart; v has
# steps of `v_outer`, `v_row` and, in a row, `v_step` (1, or 0 for one number): `kernels/cuda/array/scatter.py`.
ADD_SORTED = Block("t v keys order parts | indices rows length outer windows scale step v_outer v_row v_step")
