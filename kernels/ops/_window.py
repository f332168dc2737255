"""Windows over 1 to 3 dims of space, of convolutions and pools: their options, and how many of them there are."""

import operator

from ..problems.window import Window

_MOST = 2**31 - 1  # of an option: places in a window are 32-bit integers, and no product of two overflows


def integers(call, value, name, dims, least):
    """An option that is one integer for all dims, or one for each, as a tuple."""
    try:
        values = (operator.index(value),) * dims
    except TypeError:
        try:
            values = tuple(operator.index(v) for v in value)
        except TypeError:
            values = ()
    if len(values) == 1:
        values *= dims
    if len(values) != dims or min(values) < least or max(values) > _MOST:
        several = f", or {dims} of them" if dims > 1 else ""
        limit = " below 2**31" if values and max(values) > _MOST else ""
        raise ValueError(
            f"`{name}` of `{call.op.name}` must be an integer of at least {least}{limit}{several}, got {value!r}"
        )
    return values


def read_window(call, dims, kernel_size, stride, padding, dilation=1):
    """The `Window` that options describe; a stride of None, or of no integers, is the kernel's size."""
    kernel = integers(call, kernel_size, "kernel_size", dims, 1)
    empty = isinstance(stride, (tuple, list)) and not stride
    stride = kernel if stride is None or empty else integers(call, stride, "stride", dims, 1)
    padding = integers(call, padding, "padding", dims, 0)
    return Window(kernel, stride, padding, integers(call, dilation, "dilation", dims, 1))


def count_windows(call, size, window, behind=None, ceil_mode=False):
    """How many windows there are along each dim; `behind` is the padding there, if it is another one than before.

    With `ceil_mode`, there is also one that reaches beyond the padding, if it begins before it.
    """
    found = []
    for n, k, s, p, d, q in zip(size, *window, window.padding if behind is None else behind):
        room = n + p + q - d * (k - 1) - 1
        count = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        if count < 1:
            raise ValueError(
                f"`{call.op.name}` needs an input, with its padding, as large as the kernel with its dilation, got "
                f"size {tuple(size)}, kernel {window.kernel}, padding {window.padding}, dilation {window.dilation}"
            )
        found.append(count)
    return tuple(found)
