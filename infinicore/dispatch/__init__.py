"""From a call to launches: the public functions, raw calls, and derivatives of recorded ones."""

from .call import Call
from .elementwise import (
    cast,
    contiguous_copy,
    copy_into,
    elementwise,
    elementwise_kernel,
    known_launch,
    result_type,
)
from .tensors import (
    as_dtype,
    check_fits,
    empty,
    from_array,
    mirror,
    one_device,
    refuse_recording,
    scalar,
    set_tensor_class,
    to_device,
    view,
    wrap,
    writable,
)

__all__ = [
    "Call",
    "as_dtype",
    "cast",
    "check_fits",
    "contiguous_copy",
    "copy_into",
    "elementwise",
    "elementwise_kernel",
    "empty",
    "from_array",
    "known_launch",
    "mirror",
    "one_device",
    "refuse_recording",
    "result_type",
    "scalar",
    "set_tensor_class",
    "to_device",
    "view",
    "wrap",
    "writable",
]
