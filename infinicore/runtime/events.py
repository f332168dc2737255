"""Events: marks in a stream that can be waited for and timed."""

from ..device import usable


class DeviceEvent:
    """A mark in a stream. On the CPU it is complete as soon as it is recorded."""

    def __init__(self, enable_timing=False, device=None):
        self._device = usable(device)
        self._enable_timing = bool(enable_timing)
        self._mark = self._device.backend.event(self._enable_timing)
        self._recorded = False

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
        return self._recorded

    def _handle(self, stream):
        return self._device.backend.stream if stream is None else stream.handle

    def record(self, stream=None):
        """Mark the current point of a stream (None: the current one)."""
        self._mark.record(self._handle(stream))
        self._recorded = True

    def synchronize(self):
        """Wait until everything before the mark has ended."""
        if self._recorded:
            self._mark.synchronize()

    def query(self):
        """Whether everything before the mark has ended."""
        return not self._recorded or self._mark.query()

    def wait(self, stream=None):
        """Let a stream (None: the current one) wait for the mark."""
        if self._recorded:
            self._mark.wait(self._handle(stream))

    def elapsed_time(self, other):
        """Milliseconds from this event to `other`. Raises RuntimeError without timing or records."""
        for name, event in (("this event", self), ("`other`", other)):
            if not event._enable_timing:
                raise RuntimeError(f"{name} was made without `enable_timing=True`")
            if not event._recorded:
                raise RuntimeError(f"{name} has not been recorded, call `.record()` first")
        return self._mark.elapsed(other._mark)

    def __repr__(self):
        return f"DeviceEvent(device={self._device}, recorded={self.is_recorded}, enable_timing={self._enable_timing})"
