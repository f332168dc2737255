"""Options of functions as Python numbers; what is none is a TypeError that names the argument."""

import numbers
import operator


def integer(value, name):
    """An integer, NumPy's too, as an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {value!r}") from None


def integers(values, name):
    """A list or tuple of integers as a tuple of ints."""
    if not isinstance(values, (tuple, list)):
        raise TypeError(f"`{name}` must be a list of integers, got {values!r}")
    return tuple([integer(value, name) for value in values])


def several(value, count, name):
    """An integer, NumPy's too, as `count` of them, or as many integers: a tuple of ints."""
    values = (value,) * count if isinstance(value, numbers.Integral) else tuple(value)
    if len(values) != count or not all(isinstance(v, numbers.Integral) for v in values):
        raise ValueError(f"`{name}` must be an integer or {count} of them, got {values}")
    return tuple([int(v) for v in values])


def number(value, name):
    """Refuse what is no real number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number, got {value!r}")
    return value
