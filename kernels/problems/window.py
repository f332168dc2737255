"""What convolutions and pools move over their input, and which elements of it they take."""

from typing import NamedTuple


class Window(NamedTuple):
    """A window in each dim of space: its size, its steps, the padding before the input, the gaps between elements."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
