"""What programs do with Python's garbage collector while they start."""

import contextlib
import gc

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
