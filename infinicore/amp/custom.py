"""`custom_fwd` and `custom_bwd`: what mixed precision does inside of a `Function` of one's own."""

import functools

from ..core.tensor_cy import TensorBase
from ..dtype import dtype as to_dtype
from .autocast import autocast, get_autocast_dtype, is_autocast_enabled


def custom_fwd(fwd=None, *, device_type="cuda", cast_inputs=None):
    """A decorator for `forward` of a `Function` that is called inside of autocast.

    With `cast_inputs` (a dtype), floats come in it and ops run as they are; without, ops are cast as outside, and
    `custom_bwd` does the same in `backward`.
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx, *args, **kwargs):
        on = is_autocast_enabled(device_type)
        ctx.autocast_dtype = get_autocast_dtype(device_type) if on and cast_inputs is None else None
        if not on or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        kind = to_dtype(cast_inputs)

        def cast(x):
            narrow = isinstance(x, TensorBase) and x.dtype.is_floating_point and x.dtype.name != "float64"
            return x.to(kind) if narrow else x

        with autocast(enabled=False):
            return fwd(ctx, *map(cast, args), **{name: cast(x) for name, x in kwargs.items()})

    return forward


def custom_bwd(bwd=None, *, device_type="cuda"):
    """A decorator for `backward`, whose ops then run in mixed precision where those of `forward` did."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx, *gradients):
        with autocast(dtype=ctx.autocast_dtype, enabled=ctx.autocast_dtype is not None):
            return bwd(ctx, *gradients)

    return backward
