"""What the host knows of a kernel for a GPU when it launches it."""

from . import Block

# `entry` comes first: the host function that launches, which the core calls. `launcher` is the driver's, `stream_at`
# where the current stream stands, `error_at` the word that errors are written to, with the `number` of the kernel.
# An item goes to a thread, `per` items at a time, or to a whole block (`per` = 0). `words` are those of its parameters
# (0: as many as the block has), `most` the largest grid.
KERNEL = Block("| entry launcher function stream_at error_at number threads per shared words most")
