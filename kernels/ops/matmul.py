"""Matrix products: `matmul`, and `matmul_int8`.

A product C[M, N] = residual + activation(alpha A[M, K] B[K, N] + bias[N]) goes to one of a few kernels: blocked
(`cpu/gemm.py`), or, where A or B is skinny, one that reads the other matrix exactly once (`cpu/gemv.py`,
`cpu/skinny.py`). The choice and the argument block, but for addresses, depend on the layout alone and are kept.
"""

import math

import numpy as np

from ..cpu.gemm import blocking
from ..table.registry import FLOATS, INTEGERS, op
from ._products import (
    FEW,
    SKINNY,
    TOLERANCE,
    alpha_bits,
    byte_launch,
    check,
    foldable,
    know,
    known,
    launch_for,
    product,
    remember,
    run_tensors,
    save_operands,
)

_NUMBERS = (*FLOATS, *INTEGERS)
_WORTH_COPYING = 1 << 16  # elements of the larger matrix


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


def _matmul_ref(input, other, alpha=1.0):
    return alpha * np.matmul(input, other)


@op(dtypes=_NUMBERS, ref=_matmul_ref, samples=_samples, tolerance=TOLERANCE, amp="lower")
def matmul(call, input, other, *, alpha=1.0, out_dtype=None, accumulate=False):
    """Matrix product `alpha * input @ other` of [..., M, K] and [..., K, N] -> [..., M, N].

    Batch dims broadcast; a 1-dim `input` is a row and a 1-dim `other` a column, whose dim the result
    lacks. 16-bit floats are summed in float32 and rounded once, or not at all with `out_dtype` float32; integers wrap
    around. `accumulate` adds the product to what `out` holds, without a derivative for that. Raises
    ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    try:
        layouts = input.dtype, input.shape_, input.strides_, other.dtype, other.shape_, other.strides_
        shape, result, launch = known[*layouts, call.threads, out_dtype, accumulate]
    except (AttributeError, KeyError, TypeError):
        y = _matmul(call, input, other, alpha, out_dtype, accumulate)
    else:
        y = call.out(shape, result)
        residual = _addend(call, y) if accumulate else None
        run_tensors(call, launch, input, other, y, None, alpha_bits(call, "matmul", alpha, result), 0, residual)
    if call.training:
        save_operands(call, input=input, other=other)
    return y


def _matmul(call, input, other, alpha, out_dtype, accumulate):
    """The body of `matmul`; it remembers what there is to launch for operands that are used as they are."""
    check("matmul", _NUMBERS, ("input", input), ("other", other))
    shape_a, shape_b = tuple(input.shape), tuple(other.shape)
    if not shape_a or not shape_b:
        raise ValueError(f"`matmul` needs tensors of at least one dim, got shapes {shape_a} and {shape_b}; use `mul`")
    m, k = (shape_a if len(shape_a) > 1 else (1, *shape_a))[-2:]
    n = shape_b[-1] if len(shape_b) > 1 else 1
    if k != (shape_b[-2] if len(shape_b) > 1 else shape_b[0]):
        raise ValueError(f"`matmul` needs matching inner sizes, got {shape_a} and {shape_b}")
    batch = _broadcast(shape_a, shape_b)
    name = _result_dtype(call, input.dtype, out_dtype, accumulate)
    y = call.out(batch + shape_a[-2:-1] + (shape_b[-1:] if len(shape_b) > 1 else ()), name)
    bits = alpha_bits(call, "matmul", alpha, input.dtype)
    if y.numel() == 0:
        return y
    residual = _addend(call, y) if accumulate else None
    given = input, other
    input, other = _prepared(input, other, m, n, k)
    a_stride, a_k = (0, *input.strides)[-2:]
    b_k, b_stride = other.strides[-2:] if len(shape_b) > 1 else (other.strides[0], 1)
    dims = _batch(batch, input, other, m * n) if batch else ()
    layout = m, n, k, a_stride, a_k, b_k, b_stride, dims, call.threads
    launch = launch_for(input.dtype.name, *layout, plain=not accumulate, result=name, add=accumulate)
    as_given = input is given[0] and other is given[1]
    if as_given:
        layouts = input.dtype, input.shape_, input.strides_, other.dtype, other.shape_, other.strides_
        remember((*layouts, call.threads, out_dtype, accumulate), y.shape_, y.dtype, launch)
    run_tensors(call, launch, input, other, y, None, bits, 0, residual)
    if as_given and y.dtype is input.dtype and not accumulate:
        know(call, launch, y, given)
    return y


@matmul.grad("input", "other")
def _(f, g, input, other, alpha, need, into, create_graph):
    """dA = alpha g B^T and dB = alpha A^T g, each summed over the batch dims that broadcasting gave it."""
    place = (lambda name: None) if create_graph else into
    g = g if g.dtype is input.dtype else f.cast(g, input.dtype)
    a = input if input.ndim > 1 else input.unsqueeze(0)
    b = other if other.ndim > 1 else other.unsqueeze(1)
    g = g if other.ndim > 1 else g.unsqueeze(-1)
    g = g if input.ndim > 1 else g.unsqueeze(-2)
    da = db = None
    if "input" in need:
        da = _summed(f, g, b.transpose(-1, -2), a.shape_, alpha, place("input"))
        da = da if input.ndim > 1 else da.reshape(input.shape_)  # `place` itself, where it was written to
    if "other" in need and b.ndim == 2:  # rows of all matrices are rows of one
        count = math.prod(g.shape[:-1])
        rows = a.expand(*g.shape[:-2], *a.shape[-2:]).reshape(count, a.shape[-1])
        columns = g.reshape(count, g.shape[-1])
        db = product(f, rows.T, columns, alpha, place("other") if other.ndim == 2 else None)
    elif "other" in need:
        db = _summed(f, a.transpose(-1, -2), g, b.shape_, alpha, place("other"))
    return da, db if db is None or other.ndim > 1 else db.reshape(other.shape_)


def _summed(f, a, b, shape, alpha, place):
    """`alpha a @ b` summed over the batch dims that `shape` lacks."""
    batch = _broadcast(tuple(a.shape), tuple(b.shape))
    if (*batch, a.shape[-2], b.shape[-1]) == tuple(shape):
        fits = place is not None and tuple(place[0].shape) == tuple(shape)
        return product(f, a, b, alpha, place if fits else None)
    y = f.matmul(a, b, alpha=alpha)
    added = y.ndim - len(shape)
    dims = [*range(added), *(d + added for d, size in enumerate(shape) if size == 1 and y.shape[d + added] != 1)]
    return f.sum(y, dims).reshape(shape)


def _result_dtype(call, dtype, out_dtype, accumulate):
    """The name of the dtype of a product of operands of `dtype`."""
    name = dtype.name if out_dtype is None else getattr(out_dtype, "name", out_dtype)
    if name != dtype.name and (name != "float32" or not dtype.is_floating_point or dtype.itemsize != 2):
        raise TypeError(
            f"`out_dtype` of `matmul` must be {dtype.name}, or float32 for operands of 16-bit floats, got {name}"
        )
    if accumulate and not dtype.is_floating_point:
        raise TypeError(f"`accumulate` of `matmul` needs floats, got {dtype.name}; add the product with `add_`")
    if accumulate and call.given.get("out") is None:
        raise ValueError("`accumulate` of `matmul` adds to `out`, which is missing; pass `out=`")
    return name


def _addend(call, y):
    """What `accumulate` adds to: the caller's `out`, row-major."""
    given = call.given["out"]
    return y if given is y else given.contiguous()


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
    if b.ndim <= 2 < a.ndim and not foldable(a):
        a = a.contiguous()
    return a, b


# ---- products of int8 --------------------------------------------------------------------------


def _byte_samples(rng):
    for a, b in [((33, 70), (70, 65)), ((3, 1, 17, 20), (2, 20, 9)), ((5, 257), (257, 40))]:
        yield (rng.integers(-128, 128, a, dtype=np.int8), rng.integers(-128, 128, b, dtype=np.int8)), {}


def _byte_ref(input, other):
    return np.matmul(input.astype(np.int64), other.astype(np.int64)).astype(np.int32)


@op(dtypes=("int8",), ref=_byte_ref, samples=_byte_samples, gradient=None)
def matmul_int8(call, input, other):
    """Exact product of int8 matrices [..., M, K] and [..., K, N] -> int32 [..., M, N]; batch dims broadcast.

    Sums wrap around from K = 131072 on, where they can leave 32 bits. Raises TypeError for other dtypes and
    ValueError for sizes that do not match.
    """
    check("matmul_int8", ("int8",), ("input", input), ("other", other))
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
    call.launch_at(launch.kernel, {}, args, launch.items, launch.grain, (input, other, y, scratch))
    return y
