"""The memory that the workers of a process and those who launch share: what is where, in words of 8 bytes."""

LINE = 8  # words of a line of the caches: what different threads write to lies in different ones
SLICES = 512  # of a launch at most, and threads: a bit each in a line
JOBS = 8  # launches at the same time

# How a launch is split is one number, `parts`: its threads, and `SHARED` times how many slices each of them has (0: 1).
# Threads that end early then do slices of late ones. With 16 threads, of which some were twice as fast as others, a
# model of 2.2 GB wrote a token in 26.6 ms with one slice for each and in 20.8 with four; products of 2048 in float32
# did 1,204 and 1,323 GFLOP/s with four and 1,367 and 1,420 with 16. A thread begins with its own slices, which stay in
# its cache: 23 MB are read again at 770 GB/s, at 200 where the whole part of a worker that wakes late goes to another.
SHARE = 16  # slices of a thread, at most
SHARED = 1 << 16


def share(n, grain, threads):
    """How many slices of at least `grain` items each thread of a launch of n items has, where it may have several."""
    return max(1, min(SHARE, SLICES // threads, n // (grain * threads)))


FUTEX = 0  # the number of that call of the system; 0: there is none, and workers sleep in turns
AHEAD_BYTES = 1  # how much a thread asks for of what it reads next
FIRST_JOB = LINE

# words of a job: the bits of the slices that nobody has begun, then
KERNEL, ARGS, N, PARTS, STATUS, EACH, THREADS = range(LINE, LINE + 7)  # `EACH`: slices of a thread
DONE = 2 * LINE  # slices
TAKEN = 3 * LINE  # 1 while this is somebody's job
AHEAD, AHEAD_STEP, AHEAD_END = range(TAKEN + 1, TAKEN + 4)  # what its threads read next (`blocks/driver.py`)
JOB = 4 * LINE

FIRST_BOX = FIRST_JOB + JOBS * JOB  # of workers, a line each
WORDS = FIRST_BOX + SLICES * LINE
