"""What matrix products share: what to launch for a layout (the kernel, and its argument block but for the addresses),
checks, and products that are added to a gradient.
"""

import functools
import itertools
import struct
from dataclasses import dataclass, field

from .. import kernel
from ..cpu.gemm import blocking
from ..table.registry import INTEGERS

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
    constants: tuple[tuple[str, int | str], ...] = ()
    joined: int = 0  # rows that a second launch adds up from parts of k
    compiled: dict[int, int] = field(default_factory=dict)  # activation -> address of the kernel


def run(call, launch, dtype, addresses, alpha, keep, activation=0, residual=0):
    """Launch a product of `dtype` (a name): `addresses` of A, B, C and the bias (0: none), `alpha` as bits."""
    a, b, *others = addresses
    args = [b, a, *others, alpha, *launch.rest] if launch.swapped else [a, b, *others, alpha, *launch.rest]
    if launch.scratch:
        scratch = call.scratch(launch.scratch)
        args[blocking.SCRATCH] = scratch.address
        keep = (*keep, scratch)
    args[blocking.RESIDUAL] = residual
    compiled = launch.compiled.get(activation)
    if compiled is None:
        types = {"T": dtype} if dtype in INTEGERS else {"T": dtype, "ACT": activation, **dict(launch.constants)}
        compiled = launch.compiled[activation] = kernel(launch.kernel, **types)
    call.launch_at(compiled, None, args, launch.items, launch.grain, keep)
    if launch.joined:
        types, grain = {"T": dtype, "ACT": activation, **dict(launch.constants)}, 1 + (1 << 20) // (args[5] * args[6])
        call.launch_at("gemm.blocked.join_parts", types, args, launch.joined, grain, keep)


def know(call, launch, y, operands, activation=0):
    """Let calls of `operands` (A, B and a bias that may be None), with nothing else, go straight to `launch`."""
    if launch.joined or y.numel() == 0:
        return
    args = [0, 0, 0, 0, alpha_bits(call, "", 1, y.dtype), *launch.rest]
    args[blocking.RESIDUAL] = 0
    places = {int(launch.swapped): 0, int(not launch.swapped): 1, 2: call.RESULT}
    if len(operands) > 2 and operands[2] is not None:
        places[3] = 2
    if launch.scratch:
        places[blocking.SCRATCH] = call.SCRATCH
    compiled = launch.compiled[activation]
    call.know(operands, y, compiled, args, places, launch.items, launch.grain, launch.scratch)


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
def launch_for(
    dtype, m, n, k, a_stride, a_k, b_k, b_stride, batch, threads, panel=0, plain=True, result=None, add=False
):
    """The `Launch` of a layout. Strides are in elements, C is row-major and contiguous.

    `batch` holds (size, strides of A, of B, of C), outermost first; `panel` is the size of a panel when B is packed;
    `plain` says that there is nothing to add or apply to the product; `result` is the dtype of C, if it is another
    than that of A and B; `add` says that the product is added to C.
    """
    result = result or dtype
    own_sums = add or result in ("float16", "bfloat16")
    m, a_stride, batch = fold(m, a_stride, batch)
    matrices = 1
    for size, *_ in batch:
        matrices *= size
    if dtype in INTEGERS:
        rest = _rest((m, n, k, a_stride, a_k, b_k, b_stride, n), batch)
        return Launch("gemm.blocked.integer_rows", False, rest, m * matrices, 1 + (1 << 17) // (n * k + 1))
    length = blocking.split_length(m, n, k) if matrices == 1 and not panel else 0
    if length:
        return _split(dtype, m, n, k, length, (a_stride, a_k, b_k, b_stride), threads, result)
    if not panel and result == dtype:
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
    plan = blocking.plan(m, n, k, matrices, threads, dtype, panel != 0, own_sums)
    blocks = (*plan.grid, *plan.tile, plan.mc, plan.kc, plan.nc, 0, plan.slice_bytes, plan.items_per_slice)
    values = (m, n, k, a_stride, a_k, b_k, b_stride, n, *blocks, panel, plan.b_offset, plan.part_offset)
    scratch, constants = plan.slices * plan.slice_bytes, (("R", result),)
    return Launch("gemm.blocked.matmul", False, _rest(values, batch), plan.items, plan.grain, scratch, constants)


def _split(dtype, m, n, k, length, strides, threads, result):
    """A small C with a long k, which is cut into parts; their sums are added up by a second launch."""
    splits = -(-k // length)
    plan = blocking.plan(m, n, length, splits, threads, dtype)  # parts are to a plan what matrices of a batch are
    parts = plan.slices * plan.slice_bytes
    blocks = (*plan.grid, *plan.tile, plan.mc, plan.kc, plan.nc, 0, plan.slice_bytes, plan.items_per_slice)
    values = (m, n, k, *strides, n, *blocks, 0, plan.b_offset, plan.part_offset, 0, splits, length, parts)
    scratch = parts + splits * m * n * (8 if dtype == "float64" else 4) + 64
    rest, constants = _rest(values, ()), (("R", result),)
    return Launch("gemm.blocked.matmul", False, rest, plan.items, plan.grain, scratch, constants, joined=m)


def _dot_rows(dtype, rows, tokens, k, w_stride, x_stride, strides, batch, matrices, swapped):
    """Rows of the large matrix times a few rows; `strides` of the result along both."""
    rest = _rest((rows, tokens, k, w_stride, x_stride, *strides), batch)
    grain = 1 + _GRAIN_BYTES // (k * (8 if dtype == "float64" else 4) * (8 + tokens) + 64)
    return Launch("gemm.gemv.dot_rows", swapped, rest, -(-rows // 8) * matrices, grain)


def _few_rows(dtype, m, n, k, strides, width, batch, matrices, threads):
    """2 to 128 rows of x times the rows of a weight; `strides` of the weight, of x along both, of the result.

    `width` rows of x are a panel of lanes; 0: dot products.
    """
    pair, size, lanes = 2 if blocking.pairs(dtype) else 1, blocking.panel_bytes(dtype), blocking.lanes(dtype)
    if width:
        kernel, rows = "gemm.skinny.lane_panels", blocking.ROWS
        constants = ("VECTORS", blocking.VECTORS), ("COUNT", width // blocking.VECTORS)
    else:
        width = 2 if m == 2 else 4
        kernel, rows, constants = "gemm.skinny.dot_panels", blocking.DOT_TILES[width], (("TOKENS", width),)
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
    return Launch("gemm.gemv.add_rows", swapped, rest, -(-columns // chunk) * matrices, grain)


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
    return Launch("gemm.int8.matmul", False, rest, items, grain, min(threads, items) * slice_bytes)


# ---- calls ----------------------------------------------------------------------------------------

_ONE = struct.unpack("q", struct.pack("d", 1.0))[0]
known = {}  # key of a call's layouts -> (shape of the result, its dtype, Launch)


def remember(key, *what):
    """Keep what a call of these layouts needs: the shape (and dtype) of its result, and what to launch."""
    if len(known) >= KEPT:
        known.clear()
    known[key] = what


def run_tensors(call, launch, a, b, y, bias, alpha, activation=0, residual=None):
    """Fill in the addresses and launch."""
    addresses = a.address, b.address, y.address, 0 if bias is None else bias.address
    added = 0 if residual is None else residual.address
    run(call, launch, a.dtype.name, addresses, alpha, (a, b, y, bias, residual), activation, added)


# 16-bit results round once; before, a sum of k products rounds as sqrt(k) float32 additions.
TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-12), "bfloat16": (1e-2, 4e-2), "float16": (2e-3, 4e-3)}


def check(name, dtypes, first, *others):
    """Refuse operands that are no tensors, or of a dtype that `name` does not take, or of several dtypes."""
    for label, x in (first, *others):
        if x is not None and not hasattr(x, "address"):
            raise TypeError(f"`{label}` of `{name}` must be a tensor, got {type(x).__name__}")
    dtype = first[1].dtype
    if dtype.name not in dtypes:
        raise TypeError(f"`{name}` takes {', '.join(dtypes)}, got {dtype.name}; cast it with `.to()`")
    for label, x in others:
        if x is not None and x.dtype is not dtype:
            raise TypeError(
                f"`{name}` needs one dtype, got {dtype.name} for `{first[0]}` and {x.dtype.name} for `{label}`; "
                "cast one of them with `.to()`"
            )


def alpha_bits(call, name, alpha, dtype):
    """`alpha` for the argument block."""
    if dtype.is_floating_point:
        return _ONE if alpha == 1.0 else call.float_bits(float(alpha))
    if alpha != int(alpha) or abs(alpha) >= 2**63:
        raise ValueError(f"`alpha` of `{name}` must be a whole number of 64 bits for {dtype.name}, got {alpha}")
    return int(alpha)


def foldable(x):
    """Whether all dims of `x` but the last merge into one of rows."""
    rows = [(size, stride) for size, stride in zip(x.shape[:-1], x.strides[:-1]) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(rows))


class Layout:
    """What a derivative needs of an operand whose elements it does not: its shape and dtype."""

    __slots__ = ("dtype", "shape_")

    def __init__(self, shape, dtype):
        self.shape_, self.dtype = shape, dtype

    @property
    def ndim(self):
        return len(self.shape_)

    def unsqueeze(self, dim):
        return Layout((*self.shape_[:dim], 1, *self.shape_[dim:]), self.dtype)


def save_operands(call, **operands):
    """Keep of two operands of a product only the layout where the other one wants no gradient."""
    for (name, x), other in zip(operands.items(), reversed(operands.values())):
        if not call.wants(other):
            call.save(**{name: Layout(x.shape_, x.dtype)})


def product(f, a, b, alpha, place, shape=None):
    """`alpha a @ b`, viewed as `shape`; in or added to `place`, a pair (tensor, accumulate), if that is given and fits.

    The result is then the tensor itself.
    """
    target, accumulate = place or (None, False)
    if target is None or (target.dtype is not a.dtype and (target.dtype.name != "float32" or a.dtype.itemsize != 2)):
        y = f.matmul(a, b, alpha=alpha)
        return y if shape is None else y.reshape(shape)
    y = target if shape is None else target.view(a.shape_[0], b.shape_[1])
    f.matmul(a, b, alpha=alpha, out=y, out_dtype=target.dtype, accumulate=accumulate)
    return target
