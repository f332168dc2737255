"""Finding the operation that makes a NaN."""

from ..core.node import state


class detect_anomaly:
    """Inside, every node notes where it was made, and backward stops at the first NaN with the op, file and line."""

    def __init__(self, mode=True):
        self._mode = mode

    def __enter__(self):
        self._before, state.trace = state.trace, self._mode
        return self

    def __exit__(self, *error):
        state.trace = self._before


class set_detect_anomaly(detect_anomaly):
    """`detect_anomaly(mode)` from now on; a `with` block puts back what was before."""

    def __init__(self, mode=True):
        super().__init__(mode)
        self.__enter__()

    def __enter__(self):
        if not hasattr(self, "_before"):
            super().__enter__()
        return self


def is_anomaly_enabled():
    """Whether nodes note where they were made."""
    return bool(state.trace)


def set_anomaly_enabled(mode, check_nan=True):
    """`set_detect_anomaly`; a NaN is always looked for."""
    set_detect_anomaly(mode)
