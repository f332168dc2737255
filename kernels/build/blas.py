"""NumPy's import, in which OpenBLAS starts its threads."""

import contextlib
import os
import sys

_PATIENCE = "OPENBLAS_THREAD_TIMEOUT"  # binary logarithm of the cycles; OpenBLAS reads it while it is loaded


@contextlib.contextmanager
def _impatient():
    """Threads of an OpenBLAS that is loaded here wait for work for 2**20 cycles (0.4 ms) before they sleep.

    By default they do for 2**26 (some 30 ms), spinning, from the beginning and after each product: where anything else
    runs, that is taken from what a program does next. On two CPUs of which another program had one, NumPy's import took
    117 ms, and 61 like this. Products and decompositions that follow one another keep their threads awake.
    """
    if _PATIENCE in os.environ or "numpy" in sys.modules:
        yield
        return
    os.environ[_PATIENCE] = "20"
    try:
        yield
    finally:
        del os.environ[_PATIENCE]  # programs that this one starts decide for themselves


def import_numpy():
    """To be called before anything imports NumPy."""
    with _impatient():
        import numpy  # noqa: F401
