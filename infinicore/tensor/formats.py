"""The names of PyTorch for orders of elements in memory. New tensors here are row-major, whatever their dims mean."""


class memory_format:
    """An order of the dims in memory: one of the four below."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"infinicore.{self.name}"

    def __reduce__(self):
        return self.name


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")


def row_major(wanted):
    """Refuse a `memory_format` other than the one that there is, and `preserve_format`, which names none."""
    if wanted not in (contiguous_format, preserve_format):
        raise NotImplementedError(f"`memory_format` must be infinicore.contiguous_format, got {wanted!r}: leave it out")
