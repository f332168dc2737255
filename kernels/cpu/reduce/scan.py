"""The loops of scans, rendered with a rule each (`build/render.py: scan`): running states along a dim.

Backwards is a start at the last element and negative steps. A running state of floats is a float64 (the rule's
`STATE`), whatever the element type: the error of a float32 sum would grow with its length, and the loop waits for one
operation per element either way.
"""

from ...blocks.reduce import SCAN
from ...build import jit
from ...lang.simd import convert, fill, lane, load, ptr, store, vload_first, vstore_first
from .sizes import LANES


@jit.inline
def rows(args, lo, hi, join, start, T, STATE, RESULT):
    """Rows [lo, hi)."""
    x, y, size = ptr(load(args, SCAN.x), T), ptr(load(args, SCAN.y), RESULT), load(args, SCAN.size)
    x_stride, y_stride = load(args, SCAN.x_stride), load(args, SCAN.y_stride)
    x_step, y_step = load(args, SCAN.x_step), load(args, SCAN.y_step)
    for row in range(lo, hi):
        source, target = x + row * x_stride, y + row * y_stride
        total = fill(start, STATE, 1)  # a vector of one, since rules choose by masks
        for i in range(size):
            total = join(total, fill(STATE(load(source, i * x_step)), STATE, 1))
            store(target, i * y_step, lane(total, 0))
    return 0


@jit.inline
def columns(args, lo, hi, join, start, T, STATE, RESULT):
    """Blocks [lo, hi) of LANES neighbouring columns."""
    x, y, size = ptr(load(args, SCAN.x), T), ptr(load(args, SCAN.y), RESULT), load(args, SCAN.size)
    x_stride, y_stride = load(args, SCAN.x_stride), load(args, SCAN.y_stride)
    x_step, y_step = load(args, SCAN.x_step), load(args, SCAN.y_step)
    count = load(args, SCAN.columns)
    blocks = (count + LANES - 1) // LANES
    for unit in range(lo, hi):
        outer = unit // blocks
        column = (unit - outer * blocks) * LANES
        left = count - column
        source, target = x + (outer * x_stride + column), y + (outer * y_stride + column)
        total = fill(start, STATE, LANES)
        for i in range(size):
            total = join(total, convert(vload_first(source, i * x_step, LANES, left), STATE))
            vstore_first(target, i * y_step, convert(total, RESULT), left)
    return 0
