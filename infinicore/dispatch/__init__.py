"""From a call to launches: the public functions, raw calls, and derivatives of recorded ones."""

from ..lazy import lazily
from .call import Call
from .elementwise import (
    cast,
    contiguous_copy,
    copy_into,
    elementwise,
    elementwise_kernel,
    known_launch,
    learning,
    result_type,
    unwatched,
)
from .tensors import (
    as_dtype,
    check_fits,
    empty,
    empty_beside,
    from_array,
    mirror,
    number_of,
    one_device,
    pinned,
    refuse_reading,
    refuse_recording,
    scalar,
    set_tensor_class,
    to_device,
    transfer,
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
    "empty_beside",
    "from_array",
    "known_launch",
    "learning",
    "mirror",
    "number_of",
    "one_device",
    "pinned",
    "refuse_reading",
    "refuse_recording",
    "result_type",
    "scalar",
    "set_tensor_class",
    "to_device",
    "transfer",
    "unwatched",
    "view",
    "wrap",
    "writable",
]

__getattr__, __dir__ = lazily(__name__, {})  # `batching` is for those who use `vmap`
