"""Functions for jitted code whose implementation depends on the types of their arguments."""

import functools

from numba.extending import overload


def by_type(choose):
    """Decorate `choose(*types)`, which returns an implementation (a function of the same parameters), or None.

    The result is the function that jitted code calls with values; Python cannot.
    """

    @functools.wraps(choose)
    def function(*args):
        raise NotImplementedError(f"`{choose.__name__}` is for jitted code")

    overload(function)(choose)
    return function
