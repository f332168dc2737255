"""From a call to launches: the public functions, raw calls, and derivatives of recorded ones."""

from .call import (
    Call,
    as_dtype,
    cast,
    contiguous_copy,
    copy_into,
    elementwise,
    elementwise_kernel,
    empty,
    raise_for,
    refuse_recording,
    scalar,
    set_tensor_class,
    view,
    wrap,
    writable,
)

__all__ = [
    "Call",
    "as_dtype",
    "cast",
    "contiguous_copy",
    "copy_into",
    "elementwise",
    "elementwise_kernel",
    "empty",
    "raise_for",
    "refuse_recording",
    "scalar",
    "set_tensor_class",
    "view",
    "wrap",
    "writable",
]
