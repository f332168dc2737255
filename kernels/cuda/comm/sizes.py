"""How the windows are laid out through which the GPUs of a host reach one another's elements. Plain Python."""

MOST_RANKS = 16
MOST_BYTES = 1 << 20  # of a tensor
PIECE_BYTES = 16 << 10  # that a block has of it
TOLD_BYTES = 4 << 10  # of few elements, whose every word says which round it is of; they take twice as many in a slot
PACKET_THREADS = 768
PACKET_BYTES = 12 * PACKET_THREADS  # of more of them, of which every 12 bytes say so: a packet of each thread
BLOCKS = -(-MOST_BYTES // PACKET_BYTES)  # at most

# Words of the record of a block: a flag of each rank for each of two meetings, the block's count of rounds, the round
# that a product has told (`told.py`). Behind the records of all blocks: whether some rank has given up.
GIVEN, REDUCED, COUNT, ROUND = 0, MOST_RANKS, 2 * MOST_RANKS, 2 * MOST_RANKS + 1
RECORD = 48
BROKEN = BLOCKS * RECORD
SLOTS = (BROKEN + 1) * 8 // 256 * 256 + 256  # bytes before the slots
TOLD = SLOTS + 4 * MOST_BYTES  # before the slots of few elements
TOLD_BLOCKS = 64
PACKETS = TOLD + 2 * TOLD_BLOCKS * 2 * TOLD_BYTES * MOST_RANKS  # before the slots of packets
# What a rank sends as packets to all others is no more than MOST_BYTES, so more ranks have fewer blocks.
WINDOW_BYTES = PACKETS + 2 * BLOCKS * 2 * (PACKET_BYTES // 12 * 16)

THREADS = 32 * MOST_RANKS  # a warp for each rank that a block waits for
GAVE_UP = 63  # the code of who finds that another rank has; 1 + r: it waited for rank r for too long; below `SECOND`

# What copy engines carry (`copies.py`) goes through windows of its own, in LANES that take turns: one copies while the
# other meets or adds. A round of a lane has up to LANE_BYTES of a tensor, a part of which belongs to each rank: 8 MB of
# two ranks are 21 us on NVLink at 390 GB/s, beside two meetings of some 5 us; half of that would leave NVLink idle
# while both lanes meet, twice as much would leave it idle for longer at the first push and the last pull of a tensor.
LANES = 2
LANE_BYTES = 16 << 20
SPLIT_BYTES = 4 << 20  # of a tensor from which on it goes by all lanes, in rounds that are as long as one another
# Words of a window: for each lane the number of the last meeting that each rank has come to, and whether one gave up.
MEETINGS, COPIES_BROKEN = 0, LANES * MOST_RANKS
COPIES_SLOTS = (COPIES_BROKEN + 1) * 8 // 256 * 256 + 256  # bytes before the lanes
COPIES_BYTES = COPIES_SLOTS + LANES * LANE_BYTES
# Warps that add up a part, for each multiprocessor. Free ones have eight at a time, with 1 KB of each on its way: a
# part of 8 MB, which is read twice and written twice, should take 20 us, less than the copies of the other lane.
JOIN_WARPS = 8
WHATS = ("all_reduce", "reduce_scatter", "all_gather")  # codes of the one number n are more by n * WHAT
WHAT = 2 * GAVE_UP


def part_bytes(size):
    """Bytes of a part of a round between so many ranks: any elements make it up, and rows of 16 bytes begin there."""
    return LANE_BYTES // size // 256 * 256
