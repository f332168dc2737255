"""Convolutions: phases and taps of both directions, register tiles, and the blocks of rows that fit a cache."""

import math

from ...blocks.conv import JOIN, PRODUCT, SUMS, VOLUMES, WEIGHT
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.conv import Convolution
from ..conv.sizes import SLACK, SLACK_COLUMNS, TILED_CHANNELS, TILED_PLACES, tiled_steps
from ..gemm import blocking

_BUFFER_BYTES = 384 << 10  # of the padded image: with a panel of the weight it fits the second-level cache of 1 MB
_SUM_BYTES = 32 << 20  # of the partial sums of the weight's gradient
_NEAR_BYTES = 256 << 10  # of sums that stay in the second-level cache
_TOGETHER_BYTES = 2 << 20  # of images that meet sums which do not
_PACKED, _JOINED = 1 << 14, 1 << 17  # elements that are worth a thread: packed of the weight, read of partial sums
_PARTS = 16  # fixed, so that the gradient does not depend on the number of threads
_PART_PLACES = 512  # of a part: its sums are written and read once more, which takes as long as some 100 products

# Register tiles by registers: 32, 16 with 8 lanes, 16 with 4 lanes. Few: each is a kernel of its own to compile.
_TILES = {14: ((8, 3), (4, 6), (1, 8)), 6: ((6, 2), (1, 4)), 4: ((4, 2), (1, 4))}  # channels, vectors of positions
_LANE_TILES = {14: ((14, 2), (7, 4)), 6: ((4, 3),), 4: ((4, 2),)}  # places, vectors of channels
# The first ones are taken where both would take as long: with 256 channels of 1024 places they do 155 GFLOP/s, the
# second ones 114 to 158 from one process to the next, by where the image comes to lie (one core of Emerald Rapids).
_LANES_COST = 1.1
# Of the weight's gradient: elements of a patch, vectors of channels
_TAP_TILES = {14: ((9, 2), (9, 1)), 6: ((6, 2), (3, 2)), 4: ((4, 2), (3, 2))}
_DOTS = (9, 4)  # elements of a patch at once, by dot products


# Channels of the image and of the result, from which tile registers are faster than pairs in vectors: 16 of 32 leave
# half of each tile idle, which is eight times as fast as these.
_LEAST_TILED_C, _LEAST_TILED_M = 16, 8
_END_BYTES = 2 * TILED_CHANNELS * TILED_PLACES  # of what the end of a row of the image is copied to


def _ceil(a, b):
    return -(-a // b)


def _lines(nbytes):
    """Bytes of whole cache lines."""
    return _ceil(nbytes, 64) * 64


# ---- the grid ----------------------------------------------------------------------------------


def _forward_axis(p, d):
    """[(results, their first place, [(phase of the input, offset in it, index in the kernel)])] of one axis."""
    w, s = p.window, p.window.stride[d]
    places = [(k * w.dilation[d] - w.padding[d], k) for k in range(w.kernel[d])]
    return [(p.y[d], 0, [(at % s, at // s, k) for at, k in places])]


def _backward_axis(p, d):
    """The same for the gradient of x: place s * i + u is a result of phase u."""
    w, s, phases = p.window, p.window.stride[d], []
    for u in range(min(s, p.x[d])):
        places = [(u + w.padding[d] - k * w.dilation[d], k) for k in range(w.kernel[d])]
        phases.append((_ceil(p.x[d] - u, s), u, [(0, at // s, k) for at, k in places if at % s == 0]))
    return phases


class Grid:
    """Phases and taps of a convolution (`back`: of its transpose), and the block of rows that a buffer holds.

    `even`: rows have an even number of elements.
    """

    def __init__(self, p, back, channels, item, even=False):
        axis = _backward_axis if back else _forward_axis
        rows, columns = axis(p, 0), axis(p, 1)
        every = [[tap for phase in phases for tap in phase[2]] or [(0, 0, 0)] for phases in (rows, columns)]
        self.first = [min(t[1] for t in taps) for taps in every]
        self.reach = [max(t[1] for t in taps) - low for taps, low in zip(every, self.first)]
        self.step = (1, 1) if back else p.window.stride
        inputs = [sorted({t[0] for t in taps}) for taps in every]
        self.inputs = [(h, w) for h in inputs[0] for w in inputs[1]]
        most = max(phase[0] for phase in rows)
        self.pitch = max(phase[0] for phase in columns) + self.reach[1]
        self.pitch += self.pitch % 2 if even else 0
        row_bytes = channels * len(self.inputs) * self.pitch * item
        self.block_rows = max(1, min(most, _BUFFER_BYTES // max(1, row_bytes) - self.reach[0]))
        self.blocks = _ceil(most, self.block_rows)
        self.block_rows = _ceil(most, self.blocks)
        self.num_rows = self.block_rows + self.reach[0]
        self.plane = self.num_rows * self.pitch
        # Channels an odd number of lines apart: those a power of two apart evict each other from the first-level cache.
        lines = _ceil(len(self.inputs) * self.plane * item, 64)
        self.channel = (lines | 1) * 64 // item
        self.buffer_bytes = _lines((channels * self.channel + SLACK_COLUMNS) * item)
        self._add_results(rows, columns, p.x[1] if back else p.y[1], p.window.kernel[1])

    def _add_results(self, rows, columns, width, kernel_width):
        """`outputs`: (taps, rows, columns, first place) of each phase; `taps`: (offset, index) of all of them."""
        self.outputs, self.taps = [], []
        for num_rows, h, h_taps in rows:
            for num_columns, w, w_taps in columns:
                self.outputs.append((len(h_taps) * len(w_taps), num_rows, num_columns, h * width + w))
                for h_phase, h_at, h_index in h_taps:
                    for w_phase, w_at, w_index in w_taps:
                        phase = self.inputs.index((h_phase, w_phase))
                        at = (h_at - self.first[0]) * self.pitch + w_at - self.first[1]
                        self.taps.append((phase * self.plane + at, h_index * kernel_width + w_index))

    def numbers(self, sizes, x_image):
        """Fields of `IMAGE` that follow from the grid; `sizes` of the image, `x_image` elements of one."""
        h, w = sizes
        return {
            "x_image": x_image, "x_channel": h * w, "h": h, "w": w,
            "stride_h": self.step[0], "stride_w": self.step[1], "first_h": self.first[0], "first_w": self.first[1],
            "block_rows": self.block_rows, "blocks": self.blocks, "plane_rows": self.num_rows,
            "pitch": self.pitch, "channel": self.channel, "plane": self.plane, "phases": len(self.inputs),
        }  # fmt: skip


def _flat(*lists):
    return [value for rows in lists for row in rows for value in row]


def _grain(work):
    """Units of `work` multiply-adds x 2 that are worth a thread."""
    return _ceil(blocking.PARALLEL_WORK, max(1, work))


def _tile(m, k, grid, lanes):
    """(whether channels lie along the lanes, rows, vectors) of the register tile that is done first, in cycles.

    A step takes a cycle for each product of a row and a vector, and two more; a tile takes its stores, and to be
    transposed where channels lie along the lanes.
    """
    columns = grid.outputs[0][2]
    best = None
    flat, end = columns == grid.pitch, (grid.block_rows - 1) * grid.pitch + columns
    for rows, vectors in _TILES[blocking.ROWS]:
        tiles = _ceil(m, rows) * _ceil(end, vectors * lanes)
        cost = tiles * (k * (rows * vectors + 2) + 60 + 4 * rows * vectors)
        best = min(best or (cost + 1,), (cost, False, rows, vectors))
    for rows, vectors in _LANE_TILES[blocking.ROWS]:
        across = _ceil(end, rows) if flat else grid.block_rows * _ceil(columns, rows)
        tiles = _ceil(m, vectors * lanes) * across
        cost = tiles * (k * (rows * vectors + 2) + 60 + 12 * lanes * vectors)
        best = min(best, (cost * _LANES_COST, True, rows, vectors))
    return best[1:]


def _run(grid, pair, channels):
    """Elements of a column of a packed panel that are neighbours in the weight: all taps of `channels`, in order."""
    ordered = len(grid.outputs) == 1 and [tap[1] for tap in grid.taps] == list(range(len(grid.taps)))
    return channels * len(grid.taps) if ordered and pair == 1 else 0


def _operand(dtype, c, m):
    """(whether tile registers multiply so many channels, the type of operands, elements in one of a panel)."""
    tiled = blocking.tiles(dtype) and c >= _LEAST_TILED_C and m >= _LEAST_TILED_M
    operand = blocking.operand(dtype) if tiled else blocking.in_vectors(dtype)
    return tiled, operand, 2 if tiled or blocking.pairs(operand) else 1


# ---- plans -------------------------------------------------------------------------------------


def product(p, threads):
    """A convolution, or the gradient of its input: the weight is packed, then multiplied with images as they lie."""
    back = p.gradient == "input"
    item, lanes = blocking.panel_bytes(p.dtype), blocking.lanes(p.dtype)
    c, m = p.c // p.groups, p.m // p.groups
    taps = p.window.kernel[0] * p.window.kernel[1]
    w_strides = {"group_stride": m * c * taps, "m_stride": c * taps, "c_stride": taps}
    sizes_in, sizes_out = p.x, p.y
    if back:
        c, m, sizes_in, sizes_out = m, c, sizes_out, sizes_in
        w_strides |= {"m_stride": w_strides["c_stride"], "c_stride": w_strides["m_stride"]}
    tiled, operand, pair = _operand(p.dtype, c, m)
    channels = _ceil(c, TILED_CHANNELS) * TILED_CHANNELS // 2 if tiled else _ceil(c, pair)
    grid = Grid(p, back, channels, item)
    if tiled:
        width, types, packing, name = blocking.TILE_ROWS, {}, "conv.tiled.pack_weight", "conv.tiled.correlate"
    else:
        along, rows, vectors = _tile(m, channels * taps // len(grid.outputs), grid, lanes)
        width, types, packing = (
            vectors * lanes if along else rows,
            {"R": rows, "V": vectors},
            "conv.forward.pack_weight",
        )
        name = "conv.forward.correlate_lanes" if along else "conv.forward.correlate"
    panels = _ceil(m, width)
    units = p.n * p.groups * grid.blocks
    shares = min(panels, _ceil(4 * threads, max(1, units))) if units < 4 * threads else 1
    per_share = _ceil(panels, shares)
    shares = _ceil(panels, per_share)
    items, offsets = units * shares, grid.buffer_bytes
    thread_bytes = offsets + _lines(channels * len(grid.taps) * 8) + 64
    shared = {"m": m, "c": c, "group_panels": panels, "taps": taps}
    panel = channels * taps * width
    pack = launch(
        kernel(packing, T=operand), WEIGHT, panels * p.groups, 1 + _PACKED // (panel + 1),
        phases=len(grid.outputs), width=width, run=_run(grid, pair, c if w_strides["c_stride"] == taps else 1),
        table=[phase[0] for phase in grid.outputs] + [tap[1] for tap in grid.taps], **shared, **w_strides,
    )  # fmt: skip
    pixels, step = sizes_out[0] * sizes_out[1], p.window.stride if back else (1, 1)
    work = 2 * m * c * len(grid.taps) * grid.block_rows * grid.pitch * per_share * width // (m * len(grid.outputs))
    multiply = launch(
        kernel(name, thread=True, T=operand, **types), PRODUCT, items, _grain(work // 8 if tiled else work),
        thread_bytes=thread_bytes, groups=p.groups, shares=shares, offsets=offsets,
        y_image=p.groups * m * pixels, y_channel=pixels, y_row=sizes_out[1] * step[0], y_column=step[1],
        unit_panels=per_share, results=len(grid.outputs), patch=channels * taps, **shared,
        **grid.numbers(sizes_in, p.groups * c * sizes_in[0] * sizes_in[1]),
        table=_flat(grid.inputs, grid.outputs, grid.taps),
    )  # fmt: skip
    packed = max(64, panel * panels * p.groups * item)
    return Plan((pack, multiply), (("panels", packed), ("scratch", min(threads, items) * thread_bytes)))


def _cut(p, grid, m, across, sums_bytes):
    """(channels of a unit of the weight's gradient, parts of the images): some 16 units, by the sizes alone.

    A unit of channels copies the images for itself, which is little beside 256 products an element; parts have sums of
    their own.
    """
    taps, total = p.window.kernel[0] * p.window.kernel[1], p.n * p.y[0] * p.y[1]
    width = _ceil(m, across) * across
    parts = max(1, min(p.n * grid.blocks, _PARTS, total // _PART_PLACES, _SUM_BYTES // sums_bytes))
    least = _ceil(256, taps * across) * across
    channels = max(least, _ceil(_ceil(m, _ceil(_PARTS, parts * p.groups)), across) * across)
    return min(width, channels, _ceil(256, across) * across), parts  # their block of g stays in a cache


def weight_sums(p, threads):
    """The gradient of the weight: sums of parts of the images, which the sizes alone determine, are joined in order."""
    lanes, panel_item = blocking.lanes(p.dtype), blocking.panel_bytes(p.dtype)
    c, m, taps = p.c // p.groups, p.m // p.groups, p.window.kernel[0] * p.window.kernel[1]
    k, (tiled, operand, pair) = c * taps, _operand(p.dtype, c, m)
    item = 2 if pair == 2 else panel_item
    planes = _ceil(c, TILED_CHANNELS) * TILED_CHANNELS if tiled else c
    grid = Grid(p, False, planes, item, even=tiled)
    if tiled:
        across, padded, types = blocking.TILE_ROWS, planes * taps, {}
        name, behind = "conv.tiled.weight_sums", grid.block_rows * _END_BYTES
    elif pair == 1 and 2 * m * _ceil(p.y[1], lanes) <= p.y[1]:
        return _weight_dots(p, operand, grid, panel_item, threads)
    else:
        rows, vectors = min(_TAP_TILES[blocking.ROWS], key=lambda tile: _tap_cost(tile, k, m, lanes))
        across, padded, types = vectors * lanes, _ceil(k, rows) * rows, {"R": rows, "V": vectors}
        name, behind = "conv.grad.weight_sums", _lines(padded * 8)
    width = _ceil(m, across) * across
    sums_bytes = p.groups * padded * width * panel_item
    channels, parts = _cut(p, grid, m, across, sums_bytes)
    shares, places = _ceil(m, channels), p.n * grid.blocks
    items = parts * p.groups * shares
    image, result = grid.buffer_bytes, p.y[0] * p.y[1]
    steps = grid.block_rows * _ceil(p.y[1], pair)
    if tiled:
        steps = tiled_steps(grid.block_rows * grid.pitch) * TILED_PLACES // 2
    block = (channels * steps + SLACK) * panel_item
    together = max(1, min(_ceil(places, parts), _TOGETHER_BYTES // (image + block))) if sums_bytes > _NEAR_BYTES else 1
    packed = together * image
    offsets = packed + _lines(together * block)
    thread_bytes = offsets + behind + _lines(2 * together)
    shared = {"m": m, "groups": p.groups, "parts": parts, "patch": k, "columns": width}
    work = 2 * _ceil(places, parts) * grid.block_rows * p.y[1] * padded * channels
    sums = launch(
        kernel(name, thread=True, T=operand, **types), SUMS, items, _grain(work // 8 if tiled else work),
        thread_bytes=thread_bytes, c=c,
        shares=shares, offsets=offsets, packed=packed, g_image=p.m * result, g_channel=result, g_h=p.y[0], g_w=p.y[1],
        images=p.n, unit_channels=channels, together=together, image_bytes=image, **shared,
        **grid.numbers(p.x, p.c * p.x[0] * p.x[1]), table=_flat(grid.inputs, grid.taps),
    )  # fmt: skip
    join = launch(
        kernel("conv.grad.join_parts", T=p.dtype), JOIN, p.groups * _ceil(m, lanes),
        1 + _JOINED // (parts * k * lanes + 1), padded=padded, **shared,
    )  # fmt: skip
    return Plan((sums, join), (("sums", parts * sums_bytes), ("scratch", min(threads, items) * thread_bytes)))


def _tap_cost(tile, k, m, lanes):
    rows, vectors = tile
    return _ceil(k, rows) * _ceil(m, vectors * lanes) * (rows * vectors + 2)


def _weight_dots(p, operand, grid, item, threads):
    """The same for groups of few channels of the result: places lie along the lanes, so a row should fill some."""
    c, m, result = p.c // p.groups, p.m // p.groups, p.y[0] * p.y[1]
    k, places = c * p.window.kernel[0] * p.window.kernel[1], p.n * grid.blocks
    rows = min(_DOTS, key=lambda rows: (_ceil(k, rows) * (rows + 2), rows))
    padded, parts = _ceil(k, rows) * rows, min(places, _ceil(_PARTS, p.groups))
    items, offsets = parts * p.groups, grid.buffer_bytes
    thread_bytes = offsets + _lines(padded * 8)
    shared = {"m": m, "groups": p.groups, "parts": parts, "patch": k}
    sums = launch(
        kernel("conv.grad.weight_dots", thread=True, T=operand, R=rows), SUMS, items,
        _grain(4 * _ceil(places, parts) * grid.block_rows * p.y[1] * m * padded),
        thread_bytes=thread_bytes, c=c, shares=1, offsets=offsets, packed=0, unit_channels=m,
        columns=padded, together=1, image_bytes=offsets, g_image=p.m * result, g_channel=result, g_h=p.y[0],
        g_w=p.y[1], images=p.n, **shared,
        **grid.numbers(p.x, p.c * p.x[0] * p.x[1]), table=_flat(grid.inputs, grid.taps),
    )  # fmt: skip
    join = launch(
        kernel("conv.grad.join_rows", T=p.dtype), JOIN, p.m, 1 + _JOINED // (parts * k + 1), padded=padded,
        columns=padded, **shared,
    )  # fmt: skip
    return Plan((sums, join), (("sums", parts * p.m * padded * item), ("scratch", min(threads, items) * thread_bytes)))


# ---- volumes -----------------------------------------------------------------------------------


def _three(values, other=1):
    """Numbers of depth, height and width."""
    return (other,) * (3 - len(values)) + tuple(values)


def turned(window):
    """The window by which the gradient of an input meets that of the result, where steps are 1."""
    return window._replace(padding=tuple(-p for p in window.padding), dilation=tuple(-d for d in window.dilation))


def numbers_of(p):
    """The fields of the block of VOLUMES, in three dims, of a convolution of any dims or the gradient of its input."""
    c, m, taps, window = p.c // p.groups, p.m // p.groups, math.prod(p.window.kernel), p.window
    found = {"inputs": c, "outputs": m, "groups": p.groups, "of_group": m * c * taps}
    found |= {"of_output": c * taps, "of_input": taps}
    size, out, step, apart = p.x, p.y, window.stride, (1,) * len(p.x)
    if p.gradient == "input":
        size, out, step, apart, window = out, size, apart, step, turned(window)
        found |= {"inputs": m, "outputs": c, "of_output": taps, "of_input": c * taps}
    fields = {"size": size, "out": out, "kernel": window.kernel, "stride": step, "gap": window.dilation, "apart": apart}
    return found | {name: _three(values) for name, values in fields.items()} | {"pad": _three(window.padding, 0)}


def volumes(p):
    """One launch, an item of which is an element."""
    numbers = numbers_of(p)
    each = numbers["inputs"] * math.prod(p.window.kernel)
    n = p.n * p.groups * numbers["outputs"] * math.prod(numbers["out"])
    handle = kernel("conv.volumes.sums", T=p.dtype, A="float64" if p.dtype == "float64" else "float32")
    return Plan((launch(handle, VOLUMES, n, _grain(each), {} if p.bias else {"bias": None}, **numbers),))


def plan(p, threads):
    if len(p.x) == 3:
        return volumes(p)
    return (weight_sums if p.gradient == "weight" else product)(p, threads)


PLANNERS = {Convolution: plan}
