"""What programs do with Python's garbage collector while they start."""

import contextlib
import gc


@contextlib.contextmanager
def without_collection():
    """Collect nothing inside the block, and never look at what it has made: modules and models stay until the end.

    The collector would walk over them once and again: 10 ms of 150 ms of imports, and later a pause of some 20 ms now
    and then, which a stream shows.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
