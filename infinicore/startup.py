"""What programs do with Python's garbage collector and its stack while they start."""

import contextlib
import gc
import importlib

_frozen = False  # whether this process has frozen what it began with: to count that takes 1.4 ms


@contextlib.contextmanager
def collecting_later():
    """Collect nothing inside the block: what is loaded there stays, and the collector would walk over it once and again
    (10 ms of 150 ms of imports).

    Behind it, what is there counts as old, or the first collection would walk over all of it (7 ms).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not _frozen and not gc.get_freeze_count():  # what a program has frozen itself stays so
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()


@contextlib.contextmanager
def without_collection():
    """The same for a whole program, which is never to look at what the block has made: modules and models stay until
    the end, and a walk over them is a pause of some 20 ms now and then, which a stream shows.
    """
    global _frozen
    with collecting_later():
        yield
        gc.freeze()
        _frozen = True


def with_room(function, *args):
    """`function(*args)`, where Python's stack has room for all that it calls.

    CPython takes memory for frames in pieces of 16 KB, and gives one back as soon as the frame that began it returns.
    So who calls at the end of a piece has memory mapped and unmapped for each call (5 us). Imports nest a hundred
    frames deep: between 20 and 1,800 calls of a start were of this kind, depending on nothing but how deep the program
    was, and took up to 9 ms. A frame that asks for as much as this one has a piece that is twice as large.
    """
    return function(*args)


_WORDS = 18 * 1024  # more than 128 KB, so that the piece has 256; more than what is left in it, for one inside another
with_room.__code__ = with_room.__code__.replace(co_stacksize=_WORDS)


def load(name, package=None):
    """The module `name`, with all that it imports, as a program should while it starts."""
    with collecting_later():
        return with_room(importlib.import_module, name, package)
