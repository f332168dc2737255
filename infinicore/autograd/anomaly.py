"""Finding the operation that makes a NaN."""

from ..core.node_cy import state


class detect_anomaly:
    """Inside, every node notes where it was made, and backward stops at the first NaN with the op, file and line.

    With `check_nan=False` it does not stop.
    """

    _mode = True

    def __init__(self, check_nan=True):
        self._check = check_nan

    def __enter__(self):
        self._before = state.trace, state.check_nan
        state.trace, state.check_nan = self._mode, self._check
        return self

    def __exit__(self, *error):
        state.trace, state.check_nan = self._before


class set_detect_anomaly(detect_anomaly):
    """`detect_anomaly` from now on, or with `mode=False` no longer; a `with` block puts back what was before."""

    def __init__(self, mode, check_nan=True):
        super().__init__(check_nan)
        self._mode = mode
        self.__enter__()

    def __enter__(self):
        if not hasattr(self, "_before"):
            super().__enter__()
        return self


def is_anomaly_enabled():
    """Whether nodes note where they were made."""
    return bool(state.trace)


def is_anomaly_check_nan_enabled():
    """Whether backward looks for NaN, where nodes note where they were made."""
    return state.check_nan


def set_anomaly_enabled(mode, check_nan=True):
    """`set_detect_anomaly` as a plain function."""
    set_detect_anomaly(mode, check_nan)
