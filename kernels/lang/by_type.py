"""Functions for jitted code whose implementation depends on the types of their arguments."""

import functools

from numba import types
from numba.extending import overload


def by_type(choose=None, **options):
    """Decorate `choose(*types)`, which returns an implementation (a function of the same parameters), or None.

    The result is the function that jitted code calls with values; Python cannot. `options` are those of Numba's
    `overload`: `@by_type(prefer_literal=True)` asks with the values of constants first.
    """
    if choose is None:
        return functools.partial(by_type, **options)

    @functools.wraps(choose)
    def function(*args):
        raise NotImplementedError(f"`{choose.__name__}` is for jitted code")

    overload(function, **options)(choose)
    return function


@by_type
def real(x):
    """The real part: the value itself, where it is no complex number."""
    return (lambda x: x.real) if isinstance(x, types.Complex) else (lambda x: x)
