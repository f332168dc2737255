"""Matrix products: `matmul`, `linear`, and `linear_packed` with weights packed once.

A product C[M, N] = residual + activation(alpha A[M, K] B[K, N] + bias[N]) goes to one of a few kernels: blocked
(`cpu/gemm.py`), or, where A or B is skinny, one that reads the other matrix exactly once (`cpu/gemv.py`,
`cpu/skinny.py`). The choice and the argument block, but for addresses, depend on the layout alone and are kept.
"""

import itertools
import struct

import numpy as np

from ..cpu import blocking
from ..registry import FLOATS, INTEGERS, op
from ._products import FEW, KEPT, SKINNY, byte_launch, launch_for

_NUMBERS = (*FLOATS, *INTEGERS)
_WORTH_COPYING = 1 << 16  # elements of the larger matrix
_ACTIVATIONS = {None: 0, "relu": 1, "silu": 2, "gelu": 3, "gelu_tanh": 4}  # by the numbers of cpu/epilogue.py
_ONE = struct.unpack("q", struct.pack("d", 1.0))[0]


def _run(call, launch, dtype, a, b, y, bias, alpha, activation=0, residual=None):
    """Fill in the addresses and launch."""
    first, second = (b, a) if launch.swapped else (a, b)
    args = [first.address, second.address, y.address, bias.address if bias is not None else 0, alpha, *launch.rest]
    scratch = None
    if launch.scratch:
        scratch = call.scratch(launch.scratch)
        args[blocking.SCRATCH] = scratch.address
    if residual is not None:
        args[blocking.RESIDUAL] = residual.address
    types = {"T": dtype.name}
    if dtype.is_floating_point:
        types["ACT"] = activation
        types.update(launch.constants)
    keep = a, b, y, bias, residual, scratch
    call.launch(launch.kernel, types, args, launch.items, launch.grain, keep)
    if launch.joined:
        call.launch("gemm.join_parts", types, args, launch.joined, 1 + (1 << 20) // (y.numel() + 1), keep)


_known = {}  # key of a call's layouts -> (shape of the result, Launch)


def _remember(key, shape, launch):
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = shape, launch


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
        return _ONE if alpha == 1.0 else call.float_bits(float(alpha))
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
    try:
        key = input.dtype, input.shape_, input.strides_, other.dtype, other.shape_, other.strides_, call.threads
        shape, launch = _known[key]
    except (AttributeError, KeyError):
        return _matmul(call, input, other, alpha)
    y = call.out(shape, input.dtype)
    _run(call, launch, y.dtype, input, other, y, None, _alpha_bits(call, "matmul", alpha, y.dtype))
    return y


def _matmul(call, input, other, alpha):
    """The body of `matmul`; it remembers what there is to launch for operands that are used as they are."""
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
    given = input, other
    input, other = _prepared(input, other, m, n, k)
    a_stride, a_k = (0, *input.strides)[-2:]
    b_k, b_stride = other.strides[-2:] if len(shape_b) > 1 else (other.strides[0], 1)
    dims = _batch(batch, input, other, m * n) if batch else ()
    launch = launch_for(y.dtype.name, m, n, k, a_stride, a_k, b_k, b_stride, dims, call.threads)
    if input is given[0] and other is given[1]:
        layouts = input.dtype, input.shape_, input.strides_, other.dtype, other.shape_, other.strides_
        _remember((*layouts, call.threads), y.shape_, launch)
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
    yield (rng.standard_normal((3, 16)), rng.standard_normal((20, 16))), {"activation": "silu"}


def _silu(x):
    return x / (1.0 + np.exp(-x))


def _linear_ref(input, weight, bias=0.0, alpha=1.0, activation=None):
    y = alpha * np.matmul(input, weight.T) + (0.0 if bias is None else bias)
    return _silu(y) if activation == "silu" else y


def _residual(name, residual, shape, dtype):
    """The residual, row-major, of the shape and dtype of the result."""
    if not hasattr(residual, "address") or tuple(residual.shape) != shape or residual.dtype is not dtype:
        got = f"{tuple(residual.shape)} {residual.dtype}" if hasattr(residual, "address") else type(residual).__name__
        raise ValueError(f"`residual` of `{name}` must be a {dtype.name} tensor of shape {shape}, got {got}")
    return residual.contiguous()


def _activation(name, activation):
    """The number of an activation."""
    number = _ACTIVATIONS.get(activation)
    if number is None:
        known = ", ".join(f"{a!r}" for a in _ACTIVATIONS)
        raise ValueError(f"`activation` of `{name}` must be one of {known}, got {activation!r}")
    return number


def _linear(call, name, input, weight, weight_strides, bias, alpha, activation, residual, panel=0):
    """The body of `linear`: `weight` has an address, a shape, and strides unless it is packed."""
    shape, (n, k) = tuple(input.shape), weight.shape
    if not shape or shape[-1] != k:
        raise ValueError(f"`{name}` needs `input` [..., K] and `weight` [N, K], got {shape} and {tuple(weight.shape)}")
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `{name}` must have shape ({n},), got {tuple(bias.shape)}")
        bias = bias.contiguous()
    number = _activation(name, activation)
    if residual is not None:
        residual = _residual(name, residual, (*shape[:-1], n), input.dtype)
    y = call.out((*shape[:-1], n), input.dtype)
    count = y.numel()
    if count == 0:
        return y
    stride, given = k, input
    if not input.is_contiguous():
        if input.strides[-1] == 1 and _foldable(input):
            stride = next((step for size, step in zip(shape[-2::-1], input.strides[-2::-1]) if size != 1), k)
        else:
            input = input.contiguous()
    plain = bias is None and residual is None and not number
    layout = count // n, n, k, stride, 1, *weight_strides
    launch = launch_for(y.dtype.name, *layout, (), call.threads, panel, plain)
    if plain and not panel and input is given:
        key = input.dtype, input.shape_, input.strides_, weight.dtype, weight.shape_, weight.strides_, call.threads
        _remember(("linear", *key), y.shape_, launch)
    bits = _alpha_bits(call, name, alpha, y.dtype)
    _run(call, launch, y.dtype, input, weight, y, bias, bits, number, residual)
    return y


@op(ref=_linear_ref, samples=_linear_samples, tolerance=_TOLERANCE)
def linear(call, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    """`residual + activation(alpha * input @ weight.T + bias)` for input [..., K], weight [N, K] -> [..., N].

    `bias` is [N], `residual` has the shape of the result, and `activation` is None, "relu", "silu", "gelu" or
    "gelu_tanh"; all are applied before the sum is rounded once. Raises ValueError for sizes that do not match and
    for other activations, TypeError for dtypes that differ.
    """
    if bias is None and activation is None and residual is None:
        try:
            key = input.dtype, input.shape_, input.strides_, weight.dtype, weight.shape_, weight.strides_, call.threads
            shape, launch = _known["linear", *key]
        except (AttributeError, KeyError):
            pass
        else:
            y = call.out(shape, input.dtype)
            _run(call, launch, y.dtype, input, weight, y, None, _alpha_bits(call, "linear", alpha, y.dtype))
            return y
    if isinstance(weight, PackedWeight):
        raise TypeError("`weight` of `linear` must be a tensor, got a PackedWeight; use `linear_packed`")
    _check("linear", FLOATS, ("input", input), ("weight", weight), ("bias", bias))
    if weight.ndim != 2:
        shapes = f"{tuple(input.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"`linear` needs `input` [..., K] and `weight` [N, K], got {shapes}")
    return _linear(call, "linear", input, weight, weight.strides[::-1], bias, alpha, activation, residual)


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
def linear_packed(call, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    """As `linear`, with the `PackedWeight` that `pack_weight` made of the weight [N, K]."""
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"`weight` must come from `pack_weight`, got {type(weight).__name__}; use `linear` for tensors")
    _check("linear_packed", FLOATS, ("input", input), ("weight", weight), ("bias", bias))
    return _linear(call, "linear_packed", input, weight, (0, 0), bias, alpha, activation, residual, weight.panel)


# ---- products of int8 --------------------------------------------------------------------------


def _byte_samples(rng):
    for a, b in [((33, 70), (70, 65)), ((3, 1, 17, 20), (2, 20, 9)), ((5, 257), (257, 40))]:
        yield (rng.integers(-128, 128, a, dtype=np.int8), rng.integers(-128, 128, b, dtype=np.int8)), {}


def _byte_ref(input, other):
    return np.matmul(input.astype(np.int64), other.astype(np.int64)).astype(np.int32)


@op(dtypes=("int8",), ref=_byte_ref, samples=_byte_samples)
def matmul_int8(call, input, other):
    """Exact product of int8 matrices [..., M, K] and [..., K, N] -> int32 [..., M, N]; batch dims broadcast.

    Sums wrap around from K = 131072 on, where they can leave 32 bits. Raises TypeError for other dtypes and
    ValueError for sizes that do not match.
    """
    _check("matmul_int8", ("int8",), ("input", input), ("other", other))
    shape_a, shape_b = tuple(input.shape), tuple(other.shape)
    if len(shape_a) < 2 or len(shape_b) < 2 or shape_a[-1] != shape_b[-2]:
        raise ValueError(f"`matmul_int8` needs [..., M, K] and [..., K, N], got {shape_a} and {shape_b}")
    (m, k), n = shape_a[-2:], shape_b[-1]
    batch = _broadcast(shape_a, shape_b)
    y = call.out((*batch, m, n), "int32")
    if y.numel() == 0:
        return y
    dims = _batch(batch, input, other, m * n) if batch else ()
    launch = byte_launch(m, n, k, *input.strides[-2:], *other.strides[-2:], dims, call.threads)
    args = [input.address, other.address, y.address, 0, 0, *launch.rest]
    scratch = call.scratch(launch.scratch)
    args[blocking.SCRATCH] = scratch.address
    call.launch(launch.kernel, {}, args, launch.items, launch.grain, (input, other, y, scratch))
    return y
