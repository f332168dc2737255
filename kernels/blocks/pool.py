"""The memory that the workers of a process and those who launch share: what is where, in words of 8 bytes."""

LINE = 8  # words of a line of the caches: what different threads write to lies in different ones
SLICES = 512  # of a launch at most, and threads: a bit each in a line
JOBS = 8  # launches at the same time

# How a launch is split is one number, `parts`: its threads, and `SHARED` where each of them has `SHARE` slices. Threads
# that end early then do slices of late ones: with 16 of them a model of 2.2 GB writes a token in 20.8 ms, before in
# 26.6. A thread begins with its own slices, which stay in its cache: 23 MB are read again at 770 GB/s, at 200 where the
# whole part of a worker that wakes late goes to another one.
SHARE = 4
SHARED = 1 << 16


def grain_of(n, parts):
    """The grain with which a launch of n items is split so by as many threads; 0: not at all."""
    threads = parts % SHARED
    return 0 if threads < 2 else n // threads if parts < SHARED else -(n // (threads * SHARE))


FUTEX = 0  # the number of that call of the system; 0: there is none, and workers sleep in turns
FIRST_JOB = LINE

# words of a job: the bits of the slices that nobody has begun, then
KERNEL, ARGS, N, PARTS, STATUS, EACH = range(LINE, LINE + 6)  # `EACH`: slices of a thread
DONE = 2 * LINE  # slices
TAKEN = 3 * LINE  # 1 while this is somebody's job
JOB = 4 * LINE

FIRST_BOX = FIRST_JOB + JOBS * JOB  # of workers, a line each
WORDS = FIRST_BOX + SLICES * LINE
