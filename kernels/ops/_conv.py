"""What to launch for a convolution of a shape: the phases and taps of both directions, blocks, and argument blocks."""

import functools
from dataclasses import dataclass

from ..cpu.gemm import blocking

_BUFFER_BYTES = 384 << 10  # of the padded image: with a panel of the weight it fits the second-level cache of 1 MB
_SUM_BYTES = 32 << 20  # of the partial sums of the weight's gradient
_NEAR_BYTES = 256 << 10  # of sums that stay in the second-level cache
_TOGETHER_BYTES = 2 << 20  # of images that meet sums which do not
_SLACK = 64  # SLACK of cpu/conv_grad.py
_PARTS = 16  # fixed, so that the gradient does not depend on the number of threads

# Register tiles by registers: 32, 16 with 8 lanes, 16 with 4 lanes. Few: each is a kernel of its own to compile.
_TILES = {14: ((8, 2), (1, 8)), 6: ((6, 2), (1, 4)), 4: ((4, 2), (1, 4))}  # channels, vectors of positions
_LANE_TILES = {14: ((14, 1), (10, 1)), 6: ((6, 2),), 4: ((4, 2),)}  # places, vectors of channels
# Of the weight's gradient: elements of a patch, vectors of channels
_TAP_TILES = {14: ((9, 1), (4, 1)), 6: ((6, 2), (3, 2)), 4: ((4, 2), (3, 2))}


def _ceil(a, b):
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a convolution; pairs are (height, width). `x` [N, C, H, W], `y` [N, M, OH, OW]."""

    n: int
    c: int
    m: int
    groups: int
    x: tuple[int, int]
    y: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]  # before the first row and column
    dilation: tuple[int, int]

    def forward_axis(self, d):
        """[(results, their first place, [(phase of the input, offset in it, index in the kernel)])] of one axis."""
        s, taps = self.stride[d], []
        for k in range(self.kernel[d]):
            at = k * self.dilation[d] - self.padding[d]
            taps.append((at % s, at // s, k))
        return [(self.y[d], 0, taps)]

    def backward_axis(self, d):
        """The same for the gradient of x: place s * i + u is a result of phase u."""
        s, phases = self.stride[d], []
        for u in range(min(s, self.x[d])):
            places = [(u + self.padding[d] - k * self.dilation[d], k) for k in range(self.kernel[d])]
            phases.append((_ceil(self.x[d] - u, s), u, [(0, at // s, k) for at, k in places if at % s == 0]))
        return phases


class Grid:
    """Phases and taps of a convolution (`back`: of its transpose), and the block of rows that a buffer holds."""

    def __init__(self, shape, back, channels, item):
        axis = shape.backward_axis if back else shape.forward_axis
        rows, columns = axis(0), axis(1)
        every = [[tap for phase in phases for tap in phase[2]] or [(0, 0, 0)] for phases in (rows, columns)]
        self.first = [min(t[1] for t in taps) for taps in every]
        self.reach = [max(t[1] for t in taps) - low for taps, low in zip(every, self.first)]
        self.step = (1, 1) if back else shape.stride
        inputs = [sorted({t[0] for t in taps}) for taps in every]
        self.inputs = [(h, w) for h in inputs[0] for w in inputs[1]]
        most = max(phase[0] for phase in rows)
        self.pitch = max(phase[0] for phase in columns) + self.reach[1]
        row_bytes = channels * len(self.inputs) * self.pitch * item
        self.block_rows = max(1, min(most, _BUFFER_BYTES // max(1, row_bytes) - self.reach[0]))
        self.blocks = _ceil(most, self.block_rows)
        self.block_rows = _ceil(most, self.blocks)
        self.num_rows = self.block_rows + self.reach[0]
        self.plane = self.num_rows * self.pitch
        # Channels an odd number of lines apart: those a power of two apart evict each other from the first-level cache.
        lines = _ceil(len(self.inputs) * self.plane * item, 64)
        self.channel = (lines | 1) * 64 // item
        self.outputs, self.taps = [], []
        width = shape.x[1] if back else shape.y[1]
        for num_rows, h, h_taps in rows:
            for num_columns, w, w_taps in columns:
                self.outputs.append((len(h_taps) * len(w_taps), num_rows, num_columns, h * width + w))
                for h_phase, h_at, h_index in h_taps:
                    for w_phase, w_at, w_index in w_taps:
                        phase = self.inputs.index((h_phase, w_phase))
                        at = (h_at - self.first[0]) * self.pitch + w_at - self.first[1]
                        self.taps.append((phase * self.plane + at, h_index * shape.kernel[1] + w_index))

    def buffer_bytes(self, channels, item):
        """Of a padded image, and what is read behind it."""
        return _ceil((channels * self.channel + self.pitch + 16 * blocking.LANES) * item, 64) * 64

    def tail(self):
        """The end of the argument block: phases and taps."""
        values = [v for phase in self.inputs for v in phase]
        values += [v for phase in self.outputs for v in phase]
        return [*values, *(v for tap in self.taps for v in tap)]


def _tile(m, k, grid, lanes):
    """(whether channels lie along the lanes, rows, vectors) of the register tile that is done first, in cycles.

    A step takes a cycle for each product of a row and a vector, and two more; a tile takes its stores, and to be
    transposed where channels lie along the lanes.
    """
    columns = grid.outputs[0][2]
    best = None
    for rows, vectors in _TILES[blocking.ROWS]:
        tiles = _ceil(m, rows) * _ceil(grid.block_rows * grid.pitch, vectors * lanes)
        cost = tiles * (k * (rows * vectors + 2) + 60 + 4 * rows * vectors)
        best = min(best or (cost + 1,), (cost, False, rows, vectors))
    for rows, vectors in _LANE_TILES[blocking.ROWS]:
        tiles = _ceil(m, vectors * lanes) * _ceil(grid.block_rows * columns, rows)
        cost = tiles * (k * (rows * vectors + 2) + 60 + 12 * lanes * vectors)
        best = min(best, (cost, True, rows, vectors))
    return best[1:]


@dataclass(frozen=True, slots=True)
class Product:
    """A launch of `conv.correlate` or its like, and one of `conv.pack_weight` before it; both without addresses."""

    kernel: str
    constants: dict
    weight_args: list
    panel_items: int
    panel_grain: int
    panel_bytes: int
    args: list
    items: int
    grain: int
    scratch: int


@functools.lru_cache(maxsize=1024)
def product(shape, back, threads, dtype):
    """The `Product` of a convolution, or of the gradient of its input."""
    pair, item = 2 if blocking.pairs(dtype) else 1, blocking.panel_bytes(dtype)
    c, m = shape.c // shape.groups, shape.m // shape.groups
    taps = shape.kernel[0] * shape.kernel[1]
    strides = m * c * taps, c * taps, taps  # of the weight: group, result's channel, channel
    sizes_in, sizes_out = shape.x, shape.y
    if back:
        c, m, strides = m, c, (strides[0], taps, strides[1])
        sizes_in, sizes_out = shape.y, shape.x
    channels = _ceil(c, pair)
    grid = Grid(shape, back, channels, item)
    lanes = blocking.lanes(dtype)
    along, rows, vectors = _tile(m, channels * taps // len(grid.outputs), grid, lanes)
    width = vectors * lanes if along else rows  # channels of a panel
    panels = _ceil(m, width)
    units = shape.n * shape.groups * grid.blocks
    shares = min(panels, _ceil(4 * threads, max(1, units))) if units < 4 * threads else 1
    per_share = _ceil(panels, shares)
    shares = _ceil(panels, per_share)
    items = units * shares
    offsets = grid.buffer_bytes(channels, item)
    most = grid.block_rows * max(phase[2] for phase in grid.outputs) + rows  # places of a phase
    slice_bytes = offsets + _ceil((channels * len(grid.taps) + most) * 8, 64) * 64 + 64
    pixels, result = sizes_in[0] * sizes_in[1], sizes_out[0] * sizes_out[1]
    out_step = shape.stride if back else (1, 1)
    args = [slice_bytes, _ceil(items, threads), m, c, shape.groups, shape.groups * c * pixels, pixels, *sizes_in]
    args += [shape.groups * m * result, result, sizes_out[1] * out_step[0], out_step[1], *grid.step, grid.block_rows]
    args += [grid.blocks, per_share, shares, grid.pitch, grid.channel, grid.plane, *grid.first, grid.num_rows]
    args += [len(grid.inputs), len(grid.outputs), taps, channels * taps, offsets, panels, 0, 0, *grid.tail()]
    work = (
        2 * m * c * len(grid.taps) * grid.block_rows * grid.pitch * per_share * width // max(1, m * len(grid.outputs))
    )
    own = [*strides, m, c, panels, len(grid.outputs), taps, width]
    own += [phase[0] for phase in grid.outputs] + [tap[1] for tap in grid.taps]
    panel = channels * taps * width
    return Product(
        kernel="conv.forward.correlate_lanes" if along else "conv.forward.correlate",
        constants={"R": rows, "V": vectors},
        weight_args=own,
        panel_items=panels * shape.groups,
        panel_grain=1 + (1 << 14) // (panel + 1),
        panel_bytes=max(64, panel * panels * shape.groups * item),
        args=args,
        items=items,
        grain=_ceil(blocking.PARALLEL_WORK, max(1, work)),
        scratch=_ceil(items, _ceil(items, threads)) * slice_bytes if items else 64,
    )


@dataclass(frozen=True, slots=True)
class WeightSums:
    """Launches of `conv_grad.weight_sums` and `conv_grad.join_parts`, without addresses."""

    constants: dict
    args: list
    items: int
    grain: int
    scratch: int
    sums_bytes: int
    join_args: list
    join_items: int
    join_grain: int


@functools.lru_cache(maxsize=1024)
def weight_sums(shape, threads, dtype):
    """The `WeightSums` of the gradient of a weight. Parts follow from the sizes alone."""
    pair = 2 if blocking.pairs(dtype) else 1
    item = 2 if pair == 2 else blocking.panel_bytes(dtype)
    lanes, panel_item = blocking.lanes(dtype), blocking.panel_bytes(dtype)
    c, m = shape.c // shape.groups, shape.m // shape.groups
    taps = shape.kernel[0] * shape.kernel[1]
    k = c * taps
    grid = Grid(shape, False, c, item)
    rows, vectors = min(_TAP_TILES[blocking.ROWS], key=lambda tile: _ceil(k, tile[0]) * (tile[0] + 2))
    across = vectors * lanes
    width, padded = _ceil(m, across) * across, _ceil(k, rows) * rows
    channels = min(width, _ceil(256, across) * across)  # of a unit: their block of g stays in a cache
    shares = _ceil(m, channels)
    places = shape.n * grid.blocks
    sums_bytes = shape.groups * padded * width * panel_item
    parts = max(1, min(places, _PARTS, _SUM_BYTES // sums_bytes))
    items = parts * shape.groups * shares
    pixels, result = shape.x[0] * shape.x[1], shape.y[0] * shape.y[1]
    image = grid.buffer_bytes(c, item)
    block = (channels * grid.block_rows * _ceil(shape.y[1], pair) + _SLACK) * panel_item
    together = max(1, min(_ceil(places, parts), _TOGETHER_BYTES // (image + block))) if sums_bytes > _NEAR_BYTES else 1
    packed = together * image
    offsets = packed + _ceil(together * block, 64) * 64
    slice_bytes = offsets + _ceil(padded * 8, 64) * 64
    args = [packed, 0, slice_bytes, _ceil(items, threads), m, c, shape.groups, shape.c * pixels, pixels, *shape.x]
    args += [shape.m * result, result, parts, shape.n, *grid.step, grid.block_rows, grid.blocks, channels, shares]
    args += [grid.pitch, grid.channel, grid.plane, *grid.first, grid.num_rows, len(grid.inputs), *shape.y]
    args += [k, offsets, width, together, image]
    args += [v for phase in grid.inputs for v in phase] + [v for tap in grid.taps for v in tap]
    work = 2 * _ceil(places, parts) * grid.block_rows * shape.y[1] * padded * channels
    return WeightSums(
        constants={"R": rows, "V": vectors},
        args=args,
        items=items,
        grain=_ceil(blocking.PARALLEL_WORK, max(1, work)),
        scratch=_ceil(items, _ceil(items, threads)) * slice_bytes if items else 64,
        sums_bytes=parts * sums_bytes,
        join_args=[parts, shape.groups, m, k, padded, width],
        join_items=shape.groups * _ceil(m, lanes),
        join_grain=1 + (1 << 17) // (parts * k * lanes + 1),
    )
