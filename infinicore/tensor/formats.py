"""The names of PyTorch for orders of elements in memory. New tensors here are row-major unless a call names another."""


class _Named:
    """What has a name of this package."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"infinicore.{self.name}"

    def __reduce__(self):
        return self.name


class memory_format(_Named):
    """An order of the dims in memory: one of the four below."""

    __slots__ = ()


class layout(_Named):
    """How elements are stored: `strided`, as there are dense tensors alone."""

    __slots__ = ()


strided = layout("strided")
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")
_ORDERS = {channels_last: (0, 2, 3, 1), channels_last_3d: (0, 2, 3, 4, 1)}


def order_of(wanted, ndim):
    """The dims as `wanted` has them in memory, the outermost first; None for row-major.

    TypeError for what is no memory format, ValueError for one of another number of dims.
    """
    if wanted in (contiguous_format, preserve_format, None):
        return None
    order = _ORDERS.get(wanted)
    if order is None:
        raise TypeError(f"`memory_format` must be a memory format such as infinicore.channels_last, got {wanted!r}")
    if len(order) != ndim:
        raise ValueError(f"`memory_format` {wanted!r} is for {len(order)} dims, got {ndim}")
    return order


def rank_of(wanted):
    """The number of dims that a memory format is for; None of one that is for any."""
    return len(_ORDERS[wanted]) if wanted in _ORDERS else None


def in_order(x, order, function):
    """`function` of `x` with its dims in an order, and back: what it makes row-major is so in that order."""
    if order is None:
        return function(x)
    return function(x.permute(order)).permute(sorted(range(len(order)), key=order.__getitem__))


def order_like(x):
    """The order of the dims of `x` in memory, where it is dense in another than the row-major one; else None."""
    if x.contiguous_:
        return None
    order = sorted(range(len(x.shape_)), key=lambda d: -x.strides_[d])
    step = 1
    for d in reversed(order):
        if x.shape_[d] != 1:
            if x.strides_[d] != step:
                return None
            step *= x.shape_[d]
    return order
