"""The argument block of pooling, and of its gradients, over planes or volumes [d, h, w] (`d` is 1 where there are two).

`x` are the planes or their gradient, `y` the results [out_d, out_h, out_w] of each or theirs, `chosen` which elements
of their windows, or of their planes, the maxima are. `counted` says that padding counts in a mean, `divisor` is that of
a mean, or 0 for the size of the window. A plane of sums for each thread lies in `scratch`: `slice_bytes` each, for
`slice_planes` planes.
"""

from . import Block

POOL = Block(
    """
    x? y chosen? scratch? | d h w out_d out_h out_w kernel_d kernel_h kernel_w stride_d stride_h stride_w
    pad_d pad_h pad_w dilation_d dilation_h dilation_w counted divisor slice_bytes=0 slice_planes=1
    """,
)
