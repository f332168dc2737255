"""Events: marks in a stream that can be waited for and timed."""

import time

from ..device import usable


class DeviceEvent:
    """A mark in a stream. On the CPU it is complete as soon as it is recorded."""

    def __init__(self, enable_timing=False, device=None):
        self._device = usable(device)
        self._enable_timing = bool(enable_timing)
        self._recorded_at = None

    @property
    def device(self):
        """The device it belongs to."""
        return self._device

    @property
    def enable_timing(self):
        """Whether `elapsed_time` is allowed."""
        return self._enable_timing

    @property
    def is_recorded(self):
        """Whether `record` was called."""
        return self._recorded_at is not None

    def record(self, stream=None):
        """Mark the current point of the stream."""
        self._recorded_at = time.perf_counter()

    def synchronize(self):
        """Wait until everything before the mark has ended."""

    def query(self):
        """Whether everything before the mark has ended."""
        return True

    def wait(self, stream=None):
        """Let the stream wait for the mark."""

    def elapsed_time(self, other):
        """Milliseconds from this event to `other`. Raises RuntimeError without timing or records."""
        for name, event in (("this event", self), ("`other`", other)):
            if not event._enable_timing:
                raise RuntimeError(f"{name} was made without `enable_timing=True`")
            if event._recorded_at is None:
                raise RuntimeError(f"{name} has not been recorded, call `.record()` first")
        return (other._recorded_at - self._recorded_at) * 1e3

    def __repr__(self):
        return f"DeviceEvent(device={self._device}, recorded={self.is_recorded}, enable_timing={self._enable_timing})"
