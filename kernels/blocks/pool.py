"""The memory that the workers of a process and those who launch share: what is where, in words of 8 bytes."""

LINE = 8  # words of a line of the caches: what different threads write to lies in different ones
SLICES = 512  # of a launch at most, and threads: a bit each in a line
JOBS = 8  # launches at the same time

FUTEX = 0  # the number of that call of the system; 0: there is none, and workers sleep in turns
FIRST_JOB = LINE

# words of a job: the bits of the slices that nobody has begun, then
KERNEL, ARGS, N, PARTS, STATUS = range(LINE, LINE + 5)
DONE = 2 * LINE  # slices
TAKEN = 3 * LINE  # 1 while this is somebody's job
JOB = 4 * LINE

FIRST_BOX = FIRST_JOB + JOBS * JOB  # of workers, a line each
WORDS = FIRST_BOX + SLICES * LINE
