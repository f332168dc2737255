"""Switches of cuDNN, which is not used."""

enabled = benchmark = deterministic = allow_tf32 = False


def is_available():
    """Whether cuDNN is used: no."""
    return False


def version():
    """Its version: None."""
