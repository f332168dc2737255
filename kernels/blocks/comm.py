"""Argument blocks of collectives, and how the memory that the ranks of a node share is laid out.

Every address here is a number: what the ranks share is no tensor's memory.
"""

from . import Block

# What waits for others needs: rounds of spinning before it gives the CPU away, nanoseconds before it gives up, where
# it reports what it waited for, and the process numbers of the ranks (0: cannot be asked).
WAITING = Block("| spin timeout report pids size rank broken")

# `control`: a record for each rank; `slots`: SLOTS slots of `slot_bytes` for each rank.
SHARED = Block("| control slots slot_bytes signature", after=WAITING)

# An all-reduce or a reduce-scatter. Elements [starts[r], starts[r + 1]) of x are reduced by rank r.
REDUCE = Block("| x y combine item mode heap segment offset starts*", after=SHARED)

# Messages between pairs of ranks. `moves` are (kind, peer, address, bytes) each; `state` has 2 numbers for each.
TRANSFER = Block("| mail mail_bytes state resume count moves*", after=WAITING)

# The same by MPI: addresses of its functions, its handles, and memory for requests.
MESSAGES = Block("| isend irecv testall comm byte tag requests request_bytes statuses count moves*", after=WAITING)

# What each rank has of the same elements: rank r at rows + r * stride bytes, and `rank` itself at `own`.
ROWS = Block("rows own y | stride size rank")

# Places (int64) in the record of a rank.
READY = 0  # the number of the last operation for which this rank has published what it gives
SIGNATURES = 1  # of that operation and the one before, by parity
OFFSETS = 3  # where its tensor lies in its segment of the heap, by parity
DONE = 8  # on a line of its own: the last round for which it has published results
COUNT = 16  # its own count of rounds
RECORD = 32

SLOTS = 4  # of a rank: two that it gives, two of its results

# Places in the record of a pair of ranks, in front of its LETTERS slots.
SENT = 0
TAKEN = 8
SIZES = 16  # of the message of which each slot has a part
LETTERS = 8
PAIR = 24  # int64

SCATTER, TWO_PHASES, ONE_PHASE, IN_PLACE = range(4)  # modes of REDUCE
SEND, RECEIVE = range(2)  # kinds of moves
SUM, PROD, MIN, MAX, AVG = range(5)
LATE, GONE, BROKEN, DISAGREE, NOT_DONE, MPI_ERROR = range(1, 7)  # codes
