"""How the windows are laid out through which the GPUs of a host reach one another's elements. Plain Python."""

MOST_RANKS = 16
MOST_BYTES = 1 << 20  # of a tensor
PIECE_BYTES = 16 << 10  # that a block has of it
BLOCKS = MOST_BYTES // PIECE_BYTES

# Words of the record of a block: a flag of each rank for each of two meetings, the block's count of rounds. Behind the
# records of all blocks: whether some rank has given up.
GIVEN, REDUCED, COUNT = 0, MOST_RANKS, 2 * MOST_RANKS
RECORD = 48
BROKEN = BLOCKS * RECORD
SLOTS = (BROKEN + 1) * 8 // 256 * 256 + 256  # bytes before the slots
TOLD = SLOTS + 4 * MOST_BYTES  # before the slots of few elements, whose every word says which round it is of
TOLD_BYTES = 4 << 10  # that a block has of a tensor of few elements; they take twice as many in a slot
TOLD_BLOCKS = 64
WINDOW_BYTES = TOLD + 2 * TOLD_BLOCKS * 2 * TOLD_BYTES * MOST_RANKS

THREADS = 32 * MOST_RANKS  # a warp for each rank that a block waits for
GAVE_UP = 1000  # the code of who finds that another rank has; 1 + r: it waited for rank r for too long
