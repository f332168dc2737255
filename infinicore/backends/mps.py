"""Apple's GPUs, which have no kernels here."""


def is_available():
    """Whether Apple's GPUs can be used: no."""
    return False


def is_built():
    """Whether there are kernels for them: no."""
    return False
