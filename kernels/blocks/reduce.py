"""Argument blocks of reductions, scans, sorting and sampling. Strides and steps are in elements."""

from . import Block

# Kept dims (outer, inner) and reduced ones (rows of `length`), merged to two each. Where a long reduction is cut, the
# outer kept dim counts chunks of `length` and the last one may be shorter: `whole` is the length of all. `count` is how
# many elements make up a result; parts of a state lie `plane` apart, in x if it holds states, in y if that does.
# `results`: how many there are, for blocks of a GPU that have several.
FOLD = Block("x y | inner outer_stride inner_stride rows length row_stride stride whole count:f64 plane=0 results=0")
# The same dims, one of them reduced. With `chunk_indices`, x holds one extreme for each chunk of `chunk` elements.
POSITION = Block("x values? indices chunk_indices? | inner outer_stride inner_stride length stride whole chunk=0")
# A running state along a dim of `size`, from the first element or (steps below 0) from the last one.
SCAN = Block("x y | size x_stride y_stride x_step y_step columns")
EXTREMES = Block("x values indices | size columns")  # running ones along a dim of `size` of row-major tensors
# `wanted` elements of each row; `infinity` has the bits of a float's, `mask` all ones for a descending order.
SORT = Block("x values? indices workspace? | stride rows size wanted slots=1 room=0 infinity mask digits")
# Of each sorted row of `size` elements, and where they were, the ones with `count` ranks, or with the same one of all.
PICK = Block("ordered order ranks? values indices | size count infinity=0 rank=0")
# The same of rows that are not sorted, of keys of so many `bits`. A slot has `room` bytes of the workspace.
RANKED = Block("x ranks? values indices workspace | stride rows size count slots room bits infinity=0 rank=0")
# Of sorted rows, and where their elements were, the most frequent one; rows in `parts` of `part` elements, and the best
# of each part as a word.
MODES = Block("ordered order values indices best? | size rows parts=1 part=0")
GREEDY = Block("x tokens | stride size")
# Options are arrays with a value per row, or by the contract of `random_sample` (`contract` = 1, tokens are int32) the
# numbers at the end. A slot works in a part of `workspace` of its own: six 4-byte numbers for each token of a row.
SAMPLE = Block(
    "x tokens workspace random? temperature? top_k? top_p? min_p? penalty? history? bias? | "
    "stride rows size slots history_stride=0 history_length=0 bias_stride=0 "
    "contract=0 own_random:f64=0.0 own_temperature:f64=0.0 own_top_k=0 own_top_p:f64=1.0"
)
