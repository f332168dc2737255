"""Problems of convolutions."""

from typing import NamedTuple

from .window import Window


class Convolution(NamedTuple):
    """A convolution of images x [n, c, *] with a weight [m, c / groups, *window.kernel] to y [n, m, *], or a gradient.

    `x` and `y` are (height, width) or (depth, height, width), of contiguous memory. `gradient` says what is computed:
    None for y, "input" for the gradient of x, "weight" for that of the weight, of planes only. `bias`: y has one.
    """

    gradient: str | None
    dtype: str
    n: int
    c: int
    m: int
    groups: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    window: Window
    bias: bool = False
