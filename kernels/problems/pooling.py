"""Problems of pooling."""

from typing import NamedTuple

from .window import Window


class Pool(NamedTuple):
    """The maxima or means of windows of `planes` contiguous planes of size `x`, which give results of size `y`.

    `what` is "max", "mean", or "positions" (of maxima in their planes, from their places in windows), or the gradient
    of the planes: "max_backward" by places, "mean_backward", "positions_backward" by positions. `window` is None where
    the results share out the plane. `places` is the dtype of places or positions. With `counted` a mean counts the
    padding, and `divisor`, unless it is 0, is what it divides by.
    """

    what: str
    dtype: str
    places: str | None
    planes: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    window: Window | None = None
    counted: bool = False
    divisor: int = 0
