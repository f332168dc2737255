"""Matrix products: `matmul`, and `matmul_int8`."""

import math

import numpy as np

from ..problems.gemm import FEW, SKINNY, Product, allows_tf32
from ..table.registry import FLOATS, INTEGERS, NUMERIC, op
from ._products import TOLERANCE, check, check_alpha, foldable, product, save_operands

_NUMBERS = (*FLOATS, *INTEGERS)
_WORTH_COPYING = 1 << 16  # elements of the larger matrix


def _shape(input, other):
    """The shape of the result."""
    a, b = input.shape_, other.shape_
    if len(a) == len(b) == 2 and a[1] == b[0]:  # nearly all calls: 0.3 us less of 8
        return a[0], b[1]
    if not a or not b:
        raise ValueError(f"`matmul` needs tensors of at least one dim, got shapes {a} and {b}; use `mul`")
    if a[-1] != b[-2 if len(b) > 1 else 0]:
        raise ValueError(f"`matmul` needs matching inner sizes, got {a} and {b}")
    return _broadcast(a, b) + a[-2:-1] + (b[-1:] if len(b) > 1 else ())


def _broadcast(shape_a, shape_b):
    """The common batch dims of two shapes."""
    a, b = shape_a[:-2], shape_b[:-2]
    if not b or a[-len(b) :] == b:
        return a
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(s != t and s != 1 and t != 1 for s, t in zip(a, b)):
        raise ValueError(f"`matmul` needs batch sizes that broadcast, got {shape_a} and {shape_b}")
    return tuple(t if s == 1 else s for s, t in zip(a, b))


def _samples(rng):
    for a, b in [((33, 70), (70, 65)), ((3, 1, 17, 20), (2, 20, 9)), ((50,), (50, 21)), ((4, 300), (300, 129))]:
        yield (rng.standard_normal(a), rng.standard_normal(b)), {}
    yield (rng.standard_normal((40, 64)), rng.standard_normal((48, 64)).T), {"alpha": 2.0}


def _matmul_ref(input, other, alpha=1.0):
    return alpha * np.matmul(input, other)


@op(dtypes=NUMERIC, ref=_matmul_ref, samples=_samples, tolerance=TOLERANCE, amp="lower")
def matmul(call, input, other, *, alpha: float = 1.0, out_dtype=None, accumulate=False):
    """Matrix product `alpha * input @ other` of [..., M, K] and [..., K, N] -> [..., M, N].

    Batch dims broadcast; a 1-dim `input` is a row and a 1-dim `other` a column, whose dim the result
    lacks. 16-bit floats are summed in float32 and rounded once, or not at all with `out_dtype` float32; integers wrap
    around. `accumulate` adds the product to what `out` holds, without a derivative for that. Raises
    ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    check(call, ("input", "other"), input, other)
    shape = _shape(input, other)
    result = input.dtype if out_dtype is None and not accumulate else _result_dtype(call, input, out_dtype, accumulate)
    if alpha != 1.0:
        alpha = check_alpha(call, alpha, input.dtype)
    y = call.out(shape, result)
    if call.training:
        save_operands(call, input=input, other=other)
    if not y.numel_:
        return y
    residual, a, b = _addend(call, y) if accumulate else None, input, other
    if not a.contiguous_ or a.numel_ >= _WORTH_COPYING or b.numel_ >= _WORTH_COPYING:
        a, b = _prepared(a, b)
    layouts, add = (a.shape_, a.strides_, b.shape_, b.strides_), residual is not None
    tf32 = allows_tf32(a.dtype.name)
    problem = Product(a.dtype.name, *layouts, y.dtype.name, alpha, False, None, add, add, tf32=tf32)
    call.run(problem, a=a, b=b, c=y, residual=residual)
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


def _result_dtype(call, input, out_dtype, accumulate):
    """The name of the dtype of the result."""
    dtype = input.dtype
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


def _prepared(a, b):
    """A and B, copied where a copy of the smaller one lets the product read the larger one once."""
    m, n, k = a.shape_[-2] if a.ndim > 1 else 1, b.shape_[-1] if b.ndim > 1 else 1, a.shape_[-1]
    if a.ndim == b.ndim == 1:
        return a.contiguous(), b.contiguous()
    if k * max(m, n) >= _WORTH_COPYING:
        if m <= SKINNY and a.strides_[-1] != 1:
            a = a.contiguous()
        if m > FEW and n <= SKINNY and a.strides_[-1] == 1:
            if b.ndim == 1:
                b = b.contiguous()
            elif b.strides_[-2] != 1:
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
    check(call, ("input", "other"), input, other)
    shape_a, shape_b = input.shape_, other.shape_
    if len(shape_a) < 2 or len(shape_b) < 2 or shape_a[-1] != shape_b[-2]:
        raise ValueError(f"`matmul_int8` needs [..., M, K] and [..., K, N], got {shape_a} and {shape_b}")
    y = call.out((*_broadcast(shape_a, shape_b), shape_a[-2], shape_b[-1]), "int32")
    if y.numel_:
        problem = Product("int8", shape_a, input.strides_, shape_b, other.strides_, "int32", 1)
        call.run(problem, a=input, b=other, c=y)
    return y
