"""The loops of scans, rendered with a rule each (`build/render.py: scan`): running states along a dim.

Backwards is a start at the last element and negative steps. A running state of floats is a float64 (the rule's
`STATE`), whatever the element type: the error of a float32 sum would grow with its length, and the loop waits for one
operation per element either way.
"""

from ...blocks.reduce import SCAN
from ...build import jit
from ...lang.shuffle import transpose_tile
from ...lang.simd import convert, fill, lane, load, ptr, stack, store, vload, vload_first, vstore, vstore_first
from .sizes import LANES

SQUARE_BYTES = LANES * LANES * 8


@jit.inline
def beside(source, x_stride, x_step, target, y_stride, y_step, size, join, start, T, STATE, RESULT):
    """LANES rows with neighbouring elements, one in each lane: squares of them are turned on the stack."""
    before, behind = ptr(stack(SQUARE_BYTES), T), ptr(stack(SQUARE_BYTES), RESULT)
    total = fill(start, STATE, LANES)
    for i in range(0, size, LANES):
        count = min(LANES, size - i)
        x = source + (i if x_step > 0 else 1 - i - count)  # backwards, the lowest address comes last
        y = target + (i if y_step > 0 else 1 - i - count)
        if count == LANES:
            transpose_tile(before, LANES, x, x_stride, LANES)
        else:
            for n in range(LANES):
                for k in range(count):
                    store(before, k * LANES + n, load(x, n * x_stride + k))
        for k in range(count):
            total = join(total, convert(vload(before, (k if x_step > 0 else count - 1 - k) * LANES, LANES), STATE))
            vstore(behind, (k if y_step > 0 else count - 1 - k) * LANES, convert(total, RESULT))
        if count == LANES:
            transpose_tile(y, y_stride, behind, LANES, LANES)
        else:
            for n in range(LANES):
                for k in range(count):
                    store(y, n * y_stride + k, load(behind, k * LANES + n))


@jit.inline
def rows(args, lo, hi, join, start, T, STATE, RESULT):
    """Rows [lo, hi): as many together as a register has lanes, so that a state does not wait for the one before it
    (1024 x 1024, one thread: `cumsum` 0.38 ms, one row after the other 0.82; `logcumsumexp` 9.4, 50).
    """
    x, y, size = ptr(load(args, SCAN.x), T), ptr(load(args, SCAN.y), RESULT), load(args, SCAN.size)
    x_stride, y_stride = load(args, SCAN.x_stride), load(args, SCAN.y_stride)
    x_step, y_step = load(args, SCAN.x_step), load(args, SCAN.y_step)
    first = lo
    while abs(x_step) == 1 and abs(y_step) == 1 and first + LANES <= hi:
        source, target = x + first * x_stride, y + first * y_stride
        beside(source, x_stride, x_step, target, y_stride, y_step, size, join, start, T, STATE, RESULT)
        first += LANES
    for row in range(first, hi):
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
