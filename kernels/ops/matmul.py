"""Matrix products: `matmul`, `linear`, and `linear_packed` with weights packed once.

A product C[M, N] = alpha A[M, K] B[K, N] + bias[N] goes to one of three kernels: blocked (`cpu/gemm.py`),
or, where A or B is skinny, one that reads the other matrix exactly once (`cpu/gemv.py`).
"""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from ..cpu import blocking
from ..registry import FLOATS, INTEGERS, op

SKINNY = 16  # rows of A (columns of B) up to which B (A) is read as it lies, by dot products
FEW = 4  # the same where B lies in rows of N, by sums of rows
_GRAIN_BYTES = 1 << 20  # of a matrix: some 30 us of reading
_WORTH_COPYING = 1 << 16  # elements of the larger matrix
_BATCH = 27  # where the batch dims begin in an argument block


@dataclass(slots=True)
class _Product:
    """Addresses, sizes and strides (in elements) of a product. `c` is row-major and contiguous."""

    dtype: str
    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    a_stride: int
    a_k: int
    b_k: int
    b_stride: int
    batch: list = field(default_factory=list)  # (size, strides of A, of B, of C), outermost first
    bias: int = 0
    alpha: int = 0  # bits of a float64; a plain integer for integers

    def fold(self):
        """Turn batch dims that share one B into more rows of A; drop dims of size 1."""
        self.batch = [d for d in self.batch if d[0] != 1]
        while self.batch:
            size, a, b, _ = self.batch[-1]
            if b != 0 or (a != self.m * self.a_stride and self.m != 1):
                break
            self.a_stride = a if self.m == 1 else self.a_stride
            self.m *= size
            self.batch.pop()

    def matrices(self):
        """How many products the batch holds."""
        count = 1
        for size, *_ in self.batch:
            count *= size
        return count

    def block(self, *values):
        """An argument block of `values`, with the batch at its place."""
        dims = [v for d in self.batch for v in d]
        return [*values, *[0] * (_BATCH - 1 - len(values)), len(self.batch), *dims]


def _run(call, p, keep):
    """Launch the product with the kernel that suits it."""
    if p.dtype in INTEGERS:
        args = p.block(p.a, p.b, p.c, 0, p.alpha, p.m, p.n, p.k, p.a_stride, p.a_k, p.b_k, p.b_stride, p.n)
        grain = 1 + (1 << 17) // (p.n * p.k + 1)
        call.launch("gemm.integer_rows", {"T": p.dtype}, args, n=p.m * p.matrices(), grain=grain, keep=keep)
    elif p.m <= SKINNY and p.a_k == 1 and p.b_k == 1:
        _dot_rows(call, p, keep)
    elif p.n <= SKINNY and p.a_k == 1 and p.b_k == 1:
        _dot_rows(call, p, keep, swapped=True)
    elif p.k and p.m <= FEW and p.b_stride == 1:
        _add_rows(call, p, keep)
    elif p.k and p.n <= FEW and p.a_stride == 1:
        _add_rows(call, p, keep, swapped=True)
    else:
        _blocked(call, p, keep)


def _swap(p):
    """The transposed product: B' A' with the roles of A and B exchanged."""
    return replace(
        p, a=p.b, b=p.a, m=p.n, n=p.m, a_stride=p.b_stride, a_k=p.b_k, b_k=p.a_k, b_stride=p.a_stride,
        batch=[(size, b, a, c) for size, a, b, c in p.batch],
    )  # fmt: skip


def _dot_rows(call, p, keep, swapped=False):
    along, step, bias = (1, p.n, (1, 0)) if not swapped else (p.n, 1, (0, 1))
    p = p if not swapped else _swap(p)
    q = replace(p, batch=[(size, b, a, c) for size, a, b, c in p.batch])
    args = q.block(p.b, p.a, p.c, p.bias, p.alpha, p.n, p.m, p.k, p.b_stride, p.a_stride, along, step, *bias)
    blocks = -(-p.n // 8)
    grain = 1 + _GRAIN_BYTES // (p.k * (8 if p.dtype == "float64" else 4) * (8 + p.m) + 64)
    call.launch("gemv.dot_rows", {"T": p.dtype}, args, n=blocks * p.matrices(), grain=grain, keep=keep)


def _add_rows(call, p, keep, swapped=False):
    along, step, bias = (1, p.n, (1, 0)) if not swapped else (p.n, 1, (0, 1))
    p = p if not swapped else _swap(p)
    widest = 512 if p.dtype == "float64" else 1024
    even = 2 * call.threads  # chunks per thread come out even
    chunk = min(widest, -(-p.n // (even * -(-p.n // (even * widest)))))
    chunk = max(64, -(-chunk // 64) * 64)
    args = p.block(p.a, p.b, p.c, p.bias, p.alpha, p.m, p.n, p.k, p.a_stride, p.a_k, p.b_k, along, step, chunk, *bias)
    chunks = -(-p.n // chunk)
    grain = 1 + _GRAIN_BYTES // (p.k * chunk * (8 if p.dtype == "float64" else 4) * (1 + p.m) // 2 + 64)
    call.launch("gemv.add_rows", {"T": p.dtype}, args, n=chunks * p.matrices(), grain=grain, keep=keep)


def _blocked(call, p, keep, panel=0):
    plan = blocking.plan(p.m, p.n, p.k, p.matrices(), call.threads, p.dtype, panel != 0)
    scratch = call.scratch(plan.slices * plan.slice_bytes)
    args = p.block(
        p.a, p.b, p.c, p.bias, p.alpha, p.m, p.n, p.k, p.a_stride, p.a_k, p.b_k, p.b_stride, p.n,
        *plan.grid, *plan.tile, plan.mc, plan.kc, plan.nc, scratch.address, plan.slice_bytes, plan.items_per_slice,
        panel, plan.b_offset, plan.part_offset,
    )  # fmt: skip
    call.launch("gemm.matmul", {"T": p.dtype}, args, n=plan.items, grain=plan.grain, keep=(*keep, scratch))


# ---- matmul ------------------------------------------------------------------------------------


def _check_dtypes(name, first, *others):
    for label, x in others:
        if x is not None and x.dtype is not first[1].dtype:
            raise TypeError(
                f"`{name}` needs one dtype, got {first[1].dtype.name} for `{first[0]}` and {x.dtype.name} for "
                f"`{label}`; cast one of them with `.to()`"
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
    for size, stride_a, stride_b in zip(batch[::-1], strides[0][::-1], strides[1][::-1]):
        dims.append((size, stride_a, stride_b, matrix))
        matrix *= size
    return dims[::-1]


def _samples(rng):
    for a, b in [((33, 70), (70, 65)), ((3, 1, 17, 20), (2, 20, 9)), ((50,), (50, 21)), ((4, 300), (300, 129))]:
        yield (rng.standard_normal(a), rng.standard_normal(b)), {}
    yield (rng.standard_normal((40, 64)), rng.standard_normal((48, 64)).T), {"alpha": 2.0}


# 16-bit results round once; before, a sum of k products rounds as sqrt(k) float32 additions.
_TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-12), "bfloat16": (1e-2, 4e-2), "float16": (2e-3, 4e-3)}


def _matmul_ref(input, other, alpha=1.0):
    return alpha * np.matmul(input, other)


@op(dtypes=(*FLOATS, *INTEGERS), ref=_matmul_ref, samples=_samples, tolerance=_TOLERANCE)
def matmul(call, input, other, *, alpha=1.0):
    """Matrix product `alpha * input @ other` of [..., M, K] and [..., K, N] -> [..., M, N].

    Batch dims broadcast; a 1-dim `input` is a row and a 1-dim `other` a column, whose dim the result
    lacks. 16-bit floats are summed in float32 and rounded once; integers wrap around. Raises
    ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    _check_dtypes("matmul", ("input", input), ("other", other))
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
    p = _Product(
        input.dtype.name, input.address, other.address, y.address, m, n, k, a_stride, a_k, b_k, b_stride,
        batch=_batch(batch, input, other, m * n) if batch else [], alpha=bits,
    )  # fmt: skip
    p.fold()
    _run(call, p, (input, other, y))
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


def _linear_product(call, name, input, bias, n, k, alpha):
    """(result, product without its weight, tensors to keep) of a linear layer; None for an empty result."""
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `{name}` must have shape ({n},), got {tuple(bias.shape)}")
        bias = bias if bias.strides[0] == 1 else bias.contiguous()
    y = call.out((*input.shape[:-1], n), input.dtype)
    if y.numel() == 0:
        return y, None, ()
    x = input
    if not (x.is_contiguous() or (x.strides[-1] == 1 and _foldable(x))):
        x = x.contiguous()
    stride = k
    if not x.is_contiguous():
        stride = next((step for size, step in zip(x.shape[-2::-1], x.strides[-2::-1]) if size != 1), k)
    p = _Product(
        input.dtype.name, x.address, 0, y.address, y.numel() // n, n, k, stride, 1, 1, k,
        bias=0 if bias is None else bias.address, alpha=call.float_bits(float(alpha)),
    )  # fmt: skip
    return y, p, (x, bias, y)


@op(ref=_linear_ref, samples=_linear_samples, tolerance=_TOLERANCE)
def linear(call, input, weight, bias=None, *, alpha=1.0):
    """`alpha * input @ weight.T + bias` for input [..., K], weight [N, K] and bias [N] -> [..., N].

    Raises ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    _check_dtypes("linear", ("input", input), ("weight", weight), ("bias", bias))
    if weight.ndim != 2 or not input.ndim or input.shape[-1] != weight.shape[1]:
        shapes = f"{tuple(input.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"`linear` needs `input` [..., K] and `weight` [N, K], got {shapes}")
    y, p, keep = _linear_product(call, "linear", input, bias, *weight.shape, alpha)
    if p is not None:
        p.b, (p.b_stride, p.b_k) = weight.address, weight.strides
        _run(call, p, (*keep, weight))
    return y


class PackedWeight:
    """The weight [N, K] of a linear layer, in the order in which the blocked product reads it."""

    def __init__(self, data, shape, dtype, panel):
        self.data = data  # uint8 tensor
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
    if weight.ndim != 2 or not weight.dtype.is_floating_point:
        raise ValueError(f"`weight` must be a floating-point [N, K], got {weight.dtype.name} {tuple(weight.shape)}")
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
    _check_dtypes("linear_packed", ("input", input), ("weight", weight), ("bias", bias))
    if not input.ndim or input.shape[-1] != weight.shape[1]:
        shapes = f"{tuple(input.shape)} and {weight.shape}"
        raise ValueError(f"`linear_packed` needs `input` [..., K] and `weight` [N, K], got {shapes}")
    y, p, keep = _linear_product(call, "linear_packed", input, bias, *weight.shape, alpha)
    if p is not None:
        p.b = weight.data.address
        _blocked(call, p, (*keep, weight.data), weight.panel)
    return y
