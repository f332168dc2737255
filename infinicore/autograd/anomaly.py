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
