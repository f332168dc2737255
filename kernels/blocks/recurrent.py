"""Argument blocks of recurrences over time: the delta rule, selective scans, states in a pool. All row-major.

Sequence n holds the tokens from starts[n] to starts[n + 1], or, without `starts`, `length` tokens each. It begins with
the state `index[n]` of a pool of `slots`, or, without `index`, with state n; a negative index is padding.
"""

from . import Block

BAD_SLOT, BAD_START = 1, 2  # error codes

# `gates` factors of the state for each token and head: 1, or `size_k`. `local` has a copy of the state of each head.
DELTA = Block(
    "q k v decay beta state starts? index? out final local | "
    "heads key_heads size_k size_v gates sequences length tokens slots"
)
DELTA_ROOM = 64  # rows of `local` of a head beyond those of its state
# `history` has longest + 1 rows of `size_k` for each head, and `errors` as many numbers.
DELTA_GRAD = Block(
    "g g_final? q k v decay beta state starts? index? dq dk dv ddecay dbeta dstate history errors | "
    "heads key_heads size_k size_v gates sequences length tokens slots longest"
)

SELECTIVE = Block("x dt a b c state y final | tokens channels size")  # x [B, T, C], a [C, N], b [B, T, N]
# `history` has tokens + 1 rows for each block of SELECTIVE_CHANNELS channels, which add up their own `db` and `dc`.
SELECTIVE_GRAD = Block("g g_final? x dt a b c state dx ddt da db dc dstate history | tokens channels size")
SELECTIVE_CHANNELS = 32

PUT_STATES = Block("pool states index | count size slots")  # rows of `size` bytes, in the order of the index
