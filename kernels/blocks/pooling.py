"""The argument block of pooling, and of its gradients, over planes or volumes.

`x` are the planes or their gradient, `y` the results of each or theirs, `chosen` which elements of their windows, or of
their planes, the maxima are. Sizes and options are those of depth, height and width; the depth of planes is 1.
"""

from . import Block

POOL = Block(
    """
    x? y chosen? scratch? |
    size:3 out:3 window:3 stride:3 padding:3 dilation:3
    counted divisor           # whether padding counts in a mean; what it is divided by, or 0 for the size of the window
    vectors=0                 # of neighbouring results of a plane, or of elements of it, on GPUs
    thread_bytes=0            # of the scratch: a plane of sums for each thread
    """,
)
