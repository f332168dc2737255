"""What to launch for a matrix product of a layout: the kernel, and its argument block but for the addresses."""

import functools
import itertools
from dataclasses import dataclass

from ..cpu import blocking
from ..registry import INTEGERS

SKINNY = 16  # rows of A (columns of B) up to which B (A) is read as it lies, by dot products
FEW = 4  # the same where B lies in rows of N, by sums of rows
KEPT = 4096  # layouts
_WIDE = 64  # rows of a weight from which it is worth packing x
_GRAIN_BYTES = 1 << 19  # of a matrix: some 10 us of reading


@dataclass(frozen=True, slots=True)
class Launch:
    """What to launch for a layout; `rest` is the argument block behind the addresses."""

    kernel: str
    swapped: bool  # B comes first
    rest: tuple[int, ...]
    items: int
    grain: int
    scratch: int = 0
    constants: tuple[tuple[str, int], ...] = ()
    joined: int = 0  # rows that a second launch adds up from parts of k


def _rest(values, batch):
    """`values`, padded, and the dims of the batch at their place."""
    padding = (0,) * (blocking.BATCH - blocking.ADDRESSES - len(values))
    return (*values, *padding, len(batch), *itertools.chain.from_iterable(batch))


def fold(m, a_stride, batch):
    """(m, a_stride, batch) with dims that share one B turned into rows of A, and without dims of size 1."""
    batch = [dim for dim in batch if dim[0] != 1]
    while batch:
        size, a, b, _ = batch[-1]
        if b != 0 or (a != m * a_stride and m != 1):
            break
        a_stride = a if m == 1 else a_stride
        m *= size
        batch.pop()
    return m, a_stride, batch


@functools.lru_cache(maxsize=KEPT)
def launch_for(dtype, m, n, k, a_stride, a_k, b_k, b_stride, batch, threads, panel=0, plain=True):
    """The `Launch` of a layout. Strides are in elements, C is row-major and contiguous.

    `batch` holds (size, strides of A, of B, of C), outermost first; `panel` is the size of a panel when B is packed;
    `plain` says that there is nothing to add or apply to the product.
    """
    m, a_stride, batch = fold(m, a_stride, batch)
    matrices = 1
    for size, *_ in batch:
        matrices *= size
    if dtype in INTEGERS:
        rest = _rest((m, n, k, a_stride, a_k, b_k, b_stride, n), batch)
        return Launch("gemm.integer_rows", False, rest, m * matrices, 1 + (1 << 17) // (n * k + 1))
    length = blocking.split_length(m, n, k) if matrices == 1 and not panel else 0
    if length:
        return _split(dtype, m, n, k, length, (a_stride, a_k, b_k, b_stride), threads)
    if not panel:
        swapped_batch = [(size, b, a, c) for size, a, b, c in batch]
        if b_k == 1 and k and m > 1 and n >= _WIDE:
            width = blocking.lane_width(m, dtype)
            if width or (a_k == 1 and m <= blocking.MOST_DOTS):
                strides = b_stride, a_stride, a_k, n
                return _few_rows(dtype, m, n, k, strides, width, swapped_batch, matrices, threads)
        if a_k == 1 and b_k == 1:
            if m <= SKINNY:
                return _dot_rows(dtype, n, m, k, b_stride, a_stride, (1, n), swapped_batch, matrices, True)
            if n <= SKINNY and plain:
                return _dot_rows(dtype, m, n, k, a_stride, b_stride, (n, 1), batch, matrices, False)
        if k and m <= FEW and b_stride == 1:
            return _add_rows(dtype, m, n, k, a_stride, a_k, b_k, (1, n), batch, matrices, threads, False)
        if k and n <= FEW and a_stride == 1 and plain:
            return _add_rows(dtype, n, m, k, b_stride, b_k, a_k, (n, 1), swapped_batch, matrices, threads, True)
    plan = blocking.plan(m, n, k, matrices, threads, dtype, panel != 0)
    blocks = (*plan.grid, *plan.tile, plan.mc, plan.kc, plan.nc, 0, plan.slice_bytes, plan.items_per_slice)
    values = (m, n, k, a_stride, a_k, b_k, b_stride, n, *blocks, panel, plan.b_offset, plan.part_offset)
    return Launch("gemm.matmul", False, _rest(values, batch), plan.items, plan.grain, plan.slices * plan.slice_bytes)


def _split(dtype, m, n, k, length, strides, threads):
    """A small C with a long k, which is cut into parts; their sums are added up by a second launch."""
    splits = -(-k // length)
    plan = blocking.plan(m, n, length, splits, threads, dtype)  # parts are to a plan what matrices of a batch are
    parts = plan.slices * plan.slice_bytes
    blocks = (*plan.grid, *plan.tile, plan.mc, plan.kc, plan.nc, 0, plan.slice_bytes, plan.items_per_slice)
    values = (m, n, k, *strides, n, *blocks, 0, plan.b_offset, plan.part_offset, 0, splits, length, parts)
    scratch = parts + splits * m * n * (8 if dtype == "float64" else 4) + 64
    return Launch("gemm.matmul", False, _rest(values, ()), plan.items, plan.grain, scratch, joined=m)


def _dot_rows(dtype, rows, tokens, k, w_stride, x_stride, strides, batch, matrices, swapped):
    """Rows of the large matrix times a few rows; `strides` of the result along both."""
    rest = _rest((rows, tokens, k, w_stride, x_stride, *strides), batch)
    grain = 1 + _GRAIN_BYTES // (k * (8 if dtype == "float64" else 4) * (8 + tokens) + 64)
    return Launch("gemv.dot_rows", swapped, rest, -(-rows // 8) * matrices, grain)


def _few_rows(dtype, m, n, k, strides, width, batch, matrices, threads):
    """2 to 128 rows of x times the rows of a weight; `strides` of the weight, of x along both, of the result.

    `width` rows of x are a panel of lanes; 0: dot products.
    """
    pair, size, lanes = 2 if blocking.pairs(dtype) else 1, blocking.panel_bytes(dtype), blocking.lanes(dtype)
    if width:
        kernel, rows = "skinny.lane_panels", blocking.ROWS
        constants = ("VECTORS", blocking.VECTORS), ("COUNT", width // blocking.VECTORS)
    else:
        width = 2 if m == 2 else 4
        kernel, rows, constants = "skinny.dot_panels", blocking.DOT_TILES[width], (("TOKENS", width),)
    # panels end in whole lines (and whole vectors), and packing fills up the last vector behind them
    step = max(lanes, blocking.LINE // size)
    panel = -(-k // (pair * step)) * step * width * size
    slice_bytes = -(-(-(-m // width) * panel) // 64) * 64 + 64
    items = -(-n // rows) * matrices
    slices, work = min(threads, items), 2 * m * rows * k * (2 if dtype == "float64" else 1) // pair
    values = (n, m, k, *strides, *(0,) * (blocking.SLICE_BYTES - 12), slice_bytes, -(-items // threads))
    grain = -(-blocking.PARALLEL_WORK // max(1, work))
    scratch = slices * slice_bytes
    return Launch(kernel, True, _rest(values, batch), items, grain, scratch, (("ROWS", rows), *constants))


def _add_rows(dtype, tokens, columns, k, x_stride, x_k, b_k, strides, batch, matrices, threads, swapped):
    """A few rows times a matrix whose columns are neighbours, in chunks of columns that come out even."""
    item, widest = (8, 512) if dtype == "float64" else (4, 1024)
    even = 2 * threads
    chunk = min(widest, -(-columns // (even * -(-columns // (even * widest)))))
    chunk = max(64, -(-chunk // 64) * 64)
    rest = _rest((tokens, columns, k, x_stride, x_k, b_k, *strides, chunk), batch)
    grain = 1 + _GRAIN_BYTES // (k * chunk * item * (1 + tokens) // 2 + 64)
    return Launch("gemv.add_rows", swapped, rest, -(-columns // chunk) * matrices, grain)


@functools.lru_cache(maxsize=KEPT)
def byte_launch(m, n, k, a_stride, a_k, b_k, b_stride, batch, threads):
    """The `Launch` of a product of int8 matrices."""
    m, a_stride, batch = fold(m, a_stride, batch)
    matrices = 1
    for size, *_ in batch:
        matrices *= size
    across, steps = blocking.across("float32"), -(-k // 4)
    most = max(1, (1 << 20) // (4 * steps * across + 1)) * across  # columns whose panels stay in a cache
    tiles = -(-n // min(most, -(-n // (threads * across)) * across)) if matrices < threads else -(-n // most)
    tiles = -(-tiles // threads) * threads if matrices < threads else tiles
    columns = -(-n // (tiles * across)) * across
    rows = min(-(-m // blocking.ROWS), max(1, (1 << 18) // (4 * steps * blocking.ROWS + 1))) * blocking.ROWS
    slice_bytes = -(-4 * (steps * (columns + rows) + columns + blocking.LANES) // 64) * 64
    items = -(-n // columns) * matrices
    values = (m, n, k, a_stride, a_k, b_k, b_stride, n, columns, rows, *(0,) * (blocking.SLICE_BYTES - 15))
    rest = _rest((*values, slice_bytes, -(-items // threads)), batch)
    grain = -(-4 * blocking.PARALLEL_WORK // (2 * m * columns * k + 1))
    return Launch("int8.matmul", False, rest, items, grain, min(threads, items) * slice_bytes)
