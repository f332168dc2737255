"""Matrix products: `matmul`, `linear`, and `linear_packed` with weights packed once.

A product C[M, N] = alpha A[M, K] B[K, N] + bias[N] goes to one of three kernels: blocked (`cpu/gemm.py`),
or, where A or B is skinny, one that reads the other matrix exactly once (`cpu/gemv.py`). The choice and
the argument block, but for addresses, depend on the layout alone and are kept.
"""

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from ..cpu import blocking
from ..registry import FLOATS, INTEGERS, op

SKINNY = 16  # rows of A (columns of B) up to which B (A) is read as it lies, by dot products
FEW = 4  # the same where B lies in rows of N, by sums of rows
_NUMBERS = (*FLOATS, *INTEGERS)
_WORTH_COPYING = 1 << 16  # elements of the larger matrix
_GRAIN_BYTES = 1 << 20  # of a matrix: some 30 us of reading


@dataclass(frozen=True, slots=True)
class _Launch:
    """What to launch for a layout; `rest` is the argument block behind the addresses."""

    kernel: str
    swapped: bool  # B comes first
    rest: tuple[int, ...]
    items: int
    grain: int
    scratch: int = 0


def _rest(values, batch):
    """`values`, padded, and the dims of the batch at their place."""
    padding = (0,) * (blocking.BATCH - blocking.ADDRESSES - len(values))
    return (*values, *padding, len(batch), *itertools.chain.from_iterable(batch))


def _fold(m, a_stride, batch):
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


@functools.lru_cache(maxsize=4096)
def _launch_for(dtype, m, n, k, a_stride, a_k, b_k, b_stride, batch, threads, panel=0):
    """The `_Launch` of a layout. Strides are in elements, C is row-major and contiguous.

    `batch` holds (size, strides of A, of B, of C), outermost first; `panel` is the size of a panel when B is packed.
    """
    m, a_stride, batch = _fold(m, a_stride, batch)
    matrices = 1
    for size, *_ in batch:
        matrices *= size
    if dtype in INTEGERS:
        rest = _rest((m, n, k, a_stride, a_k, b_k, b_stride, n), batch)
        return _Launch("gemm.integer_rows", False, rest, m * matrices, 1 + (1 << 17) // (n * k + 1))
    if not panel:
        swapped_batch = [(size, b, a, c) for size, a, b, c in batch]
        if a_k == 1 and b_k == 1:
            if m <= SKINNY:
                return _dot_rows(dtype, n, m, k, b_stride, a_stride, (1, n, 1, 0), swapped_batch, matrices, True)
            if n <= SKINNY:
                return _dot_rows(dtype, m, n, k, a_stride, b_stride, (n, 1, 0, 1), batch, matrices, False)
        if k and m <= FEW and b_stride == 1:
            return _add_rows(dtype, m, n, k, a_stride, a_k, b_k, (1, n), (1, 0), batch, matrices, threads, False)
        if k and n <= FEW and a_stride == 1:
            return _add_rows(dtype, n, m, k, b_stride, b_k, a_k, (n, 1), (0, 1), swapped_batch, matrices, threads, True)
    plan = blocking.plan(m, n, k, matrices, threads, dtype, panel != 0)
    blocks = (*plan.grid, *plan.tile, plan.mc, plan.kc, plan.nc, 0, plan.slice_bytes, plan.items_per_slice)
    values = (m, n, k, a_stride, a_k, b_k, b_stride, n, *blocks, panel, plan.b_offset, plan.part_offset)
    return _Launch("gemm.matmul", False, _rest(values, batch), plan.items, plan.grain, plan.slices * plan.slice_bytes)


def _dot_rows(dtype, rows, tokens, k, w_stride, x_stride, strides, batch, matrices, swapped):
    """Rows of the large matrix times a few rows; `strides` of the result and of the bias along both."""
    rest = _rest((rows, tokens, k, w_stride, x_stride, *strides), batch)
    grain = 1 + _GRAIN_BYTES // (k * (8 if dtype == "float64" else 4) * (8 + tokens) + 64)
    return _Launch("gemv.dot_rows", swapped, rest, -(-rows // 8) * matrices, grain)


def _add_rows(dtype, tokens, columns, k, x_stride, x_k, b_k, strides, bias, batch, matrices, threads, swapped):
    """A few rows times a matrix whose columns are neighbours, in chunks of columns that come out even."""
    item, widest = (8, 512) if dtype == "float64" else (4, 1024)
    even = 2 * threads
    chunk = min(widest, -(-columns // (even * -(-columns // (even * widest)))))
    chunk = max(64, -(-chunk // 64) * 64)
    rest = _rest((tokens, columns, k, x_stride, x_k, b_k, *strides, chunk, *bias), batch)
    grain = 1 + _GRAIN_BYTES // (k * chunk * item * (1 + tokens) // 2 + 64)
    return _Launch("gemv.add_rows", swapped, rest, -(-columns // chunk) * matrices, grain)


def _run(call, launch, dtype, a, b, y, bias, alpha):
    """Fill in the addresses and launch."""
    first, second = (b, a) if launch.swapped else (a, b)
    args = [first.address, second.address, y.address, bias.address if bias is not None else 0, alpha, *launch.rest]
    scratch = None
    if launch.scratch:
        scratch = call.scratch(launch.scratch)
        args[blocking.SCRATCH] = scratch.address
    keep = (a, b, y, bias, scratch)
    call.launch(launch.kernel, {"T": dtype.name}, args, n=launch.items, grain=launch.grain, keep=keep)


# ---- matmul ------------------------------------------------------------------------------------


def _check(name, dtypes, first, *others):
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


def _alpha_bits(call, name, alpha, dtype):
    """`alpha` for the argument block."""
    if dtype.is_floating_point:
        return call.float_bits(float(alpha))
    if alpha != int(alpha) or abs(alpha) >= 2**63:
        raise ValueError(f"`alpha` of `{name}` must be a whole number of 64 bits for {dtype.name}, got {alpha}")
    return int(alpha)


def _broadcast(shape_a, shape_b):
    """The common batch dims of two shapes."""
    a, b = shape_a[:-2], shape_b[:-2]
    if a == b or not b:
        return a
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(s != t and s != 1 and t != 1 for s, t in zip(a, b)):
        raise ValueError(f"`matmul` needs batch sizes that broadcast, got {shape_a} and {shape_b}")
    return tuple(t if s == 1 else s for s, t in zip(a, b))


def _batch(batch, a, b, matrix):
    """(size, strides of A, B, C) of each batch dim; stride 0 where A or B is broadcast."""
    strides = []
    for x in (a, b):
        own = [0 if size == 1 else stride for size, stride in zip(x.shape[:-2], x.strides[:-2])]
        strides.append([0] * (len(batch) - len(own)) + own)
    dims = []
    for size, stride_a, stride_b in zip(reversed(batch), reversed(strides[0]), reversed(strides[1])):
        dims.append((size, stride_a, stride_b, matrix))
        matrix *= size
    return tuple(dims[::-1])


def _samples(rng):
    for a, b in [((33, 70), (70, 65)), ((3, 1, 17, 20), (2, 20, 9)), ((50,), (50, 21)), ((4, 300), (300, 129))]:
        yield (rng.standard_normal(a), rng.standard_normal(b)), {}
    yield (rng.standard_normal((40, 64)), rng.standard_normal((48, 64)).T), {"alpha": 2.0}


# 16-bit results round once; before, a sum of k products rounds as sqrt(k) float32 additions.
_TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-12), "bfloat16": (1e-2, 4e-2), "float16": (2e-3, 4e-3)}


def _matmul_ref(input, other, alpha=1.0):
    return alpha * np.matmul(input, other)


@op(dtypes=_NUMBERS, ref=_matmul_ref, samples=_samples, tolerance=_TOLERANCE)
def matmul(call, input, other, *, alpha=1.0):
    """Matrix product `alpha * input @ other` of [..., M, K] and [..., K, N] -> [..., M, N].

    Batch dims broadcast; a 1-dim `input` is a row and a 1-dim `other` a column, whose dim the result
    lacks. 16-bit floats are summed in float32 and rounded once; integers wrap around. Raises
    ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    _check("matmul", _NUMBERS, ("input", input), ("other", other))
    shape_a, shape_b = tuple(input.shape), tuple(other.shape)
    if not shape_a or not shape_b:
        raise ValueError(f"`matmul` needs tensors of at least one dim, got shapes {shape_a} and {shape_b}; use `mul`")
    m, k = (shape_a if len(shape_a) > 1 else (1, *shape_a))[-2:]
    n = shape_b[-1] if len(shape_b) > 1 else 1
    if k != (shape_b[-2] if len(shape_b) > 1 else shape_b[0]):
        raise ValueError(f"`matmul` needs matching inner sizes, got {shape_a} and {shape_b}")
    batch = _broadcast(shape_a, shape_b)
    y = call.out(batch + shape_a[-2:-1] + (shape_b[-1:] if len(shape_b) > 1 else ()), input.dtype)
    bits = _alpha_bits(call, "matmul", alpha, input.dtype)
    if y.numel() == 0:
        return y
    input, other = _prepared(input, other, m, n, k)
    a_stride, a_k = (0, *input.strides)[-2:]
    b_k, b_stride = other.strides[-2:] if len(shape_b) > 1 else (other.strides[0], 1)
    dims = _batch(batch, input, other, m * n) if batch else ()
    launch = _launch_for(y.dtype.name, m, n, k, a_stride, a_k, b_k, b_stride, dims, call.threads)
    _run(call, launch, y.dtype, input, other, y, None, bits)
    return y


def _prepared(a, b, m, n, k):
    """A and B, copied where a copy of the smaller one lets the product read the larger one once."""
    large = k * max(m, n) >= _WORTH_COPYING
    if large and m <= SKINNY and a.strides[-1] != 1:
        a = a.contiguous()
    if large and m > FEW and n <= SKINNY and a.strides[-1] == 1:
        if b.ndim == 1:
            b = b.contiguous()
        elif b.strides[-2] != 1:
            b = b.transpose(-1, -2).contiguous().transpose(-1, -2)
    if b.ndim <= 2 < a.ndim and not _foldable(a):
        a = a.contiguous()
    return a, b


def _foldable(x):
    """Whether all dims of `x` but the last merge into one of rows."""
    rows = [(size, stride) for size, stride in zip(x.shape[:-1], x.strides[:-1]) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(rows))


# ---- linear ------------------------------------------------------------------------------------


def _linear_samples(rng):
    for rows, k, n in [((5,), 48, 33), ((2, 20), 64, 40), ((), 31, 50), ((1,), 257, 5), ((40,), 30, 3)]:
        yield (rng.standard_normal((*rows, k)), rng.standard_normal((n, k)), rng.standard_normal(n)), {}
    yield (rng.standard_normal((30, 16)), rng.standard_normal((20, 16))), {"alpha": 2.0}


def _linear_ref(input, weight, bias=0.0, alpha=1.0):
    return alpha * np.matmul(input, weight.T) + (0.0 if bias is None else bias)


def _linear(call, name, input, weight, weight_strides, bias, alpha, panel=0):
    """The body of `linear`: `weight` has an address, a shape, and strides unless it is packed."""
    shape, (n, k) = tuple(input.shape), weight.shape
    if not shape or shape[-1] != k:
        raise ValueError(f"`{name}` needs `input` [..., K] and `weight` [N, K], got {shape} and {tuple(weight.shape)}")
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `{name}` must have shape ({n},), got {tuple(bias.shape)}")
        bias = bias.contiguous()
    y = call.out((*shape[:-1], n), input.dtype)
    count = y.numel()
    if count == 0:
        return y
    stride = k
    if not input.is_contiguous():
        if input.strides[-1] == 1 and _foldable(input):
            stride = next((step for size, step in zip(shape[-2::-1], input.strides[-2::-1]) if size != 1), k)
        else:
            input = input.contiguous()
    launch = _launch_for(y.dtype.name, count // n, n, k, stride, 1, *weight_strides, (), call.threads, panel)
    _run(call, launch, y.dtype, input, weight, y, bias, call.float_bits(float(alpha)))
    return y


@op(ref=_linear_ref, samples=_linear_samples, tolerance=_TOLERANCE)
def linear(call, input, weight, bias=None, *, alpha=1.0):
    """`alpha * input @ weight.T + bias` for input [..., K], weight [N, K] and bias [N] -> [..., N].

    Raises ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    if isinstance(weight, PackedWeight):
        raise TypeError("`weight` of `linear` must be a tensor, got a PackedWeight; use `linear_packed`")
    _check("linear", FLOATS, ("input", input), ("weight", weight), ("bias", bias))
    if weight.ndim != 2:
        shapes = f"{tuple(input.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"`linear` needs `input` [..., K] and `weight` [N, K], got {shapes}")
    return _linear(call, "linear", input, weight, weight.strides[::-1], bias, alpha)


class PackedWeight:
    """The weight [N, K] of a linear layer, in the order in which the blocked product reads it."""

    def __init__(self, data, shape, dtype, panel):
        self.data = data  # uint8 tensor
        self.address = data.address
        self.shape = shape
        self.dtype = dtype
        self.panel = panel  # elements of one panel

    def __repr__(self):
        return f"PackedWeight({self.shape}, {self.dtype.name})"


@op()
def pack_weight(call, weight):
    """The `PackedWeight` of a weight [N, K], for `linear_packed`; `weight` itself is no longer needed.

    It saves packing in each call of many rows and reads as fast in calls of few. float16, and bfloat16 on
    CPUs without its dot product, are widened to float32: twice the memory.
    """
    _check("pack_weight", FLOATS, ("weight", weight))
    if weight.ndim != 2:
        raise ValueError(f"`weight` must be [N, K], got shape {tuple(weight.shape)}")
    n, k = weight.shape
    dtype = weight.dtype.name
    panel = -(-k // (2 if blocking.pairs(dtype) else 1)) * blocking.across(dtype)
    panels = -(-n // blocking.across(dtype))
    data = call.scratch(max(1, panels * panel * blocking.panel_bytes(dtype)))
    args, grain = [weight.address, data.address, n, k, *weight.strides], 1 + (1 << 18) // (panel + 1)
    call.launch("pack.pack_weight", {"T": dtype}, args, n=panels, grain=grain, keep=(weight, data))
    return PackedWeight(data, (n, k), weight.dtype, panel)


@op()
def linear_packed(call, input, weight, bias=None, *, alpha=1.0):
    """As `linear`, with the `PackedWeight` that `pack_weight` made of the weight [N, K]."""
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"`weight` must come from `pack_weight`, got {type(weight).__name__}; use `linear` for tensors")
    _check("linear_packed", FLOATS, ("input", input), ("weight", weight), ("bias", bias))
    return _linear(call, "linear_packed", input, weight, (0, 0), bias, alpha, weight.panel)
