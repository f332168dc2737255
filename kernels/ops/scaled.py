"""Products of int8 matrices with scales for rows, as InfiniCore has them: sums of integers are exact. And of float8."""

import math

import numpy as np

from ..problems.gemm import Product
from ..table.registry import op
from ._layout import check

_NARROW = ("float32", "bfloat16", "float16")
_HALF = ("float16", "bfloat16")


def _w8a8i8_ref(input, weight_packed, weight_scale, bias=None):
    x = input.astype(np.float32)
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    rounded = np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0))
    y = rounded.astype(np.float64) @ weight_packed.T.astype(np.float64) * scale * weight_scale[:, 0]
    return y if bias is None else y + bias


def _w8a8i8_samples(rng):
    for shape, n in (((3, 17), 5), ((2, 3, 64), 33), ((40,), 4)):
        x, weight = rng.standard_normal(shape), rng.integers(-127, 128, (n, shape[-1]), np.int8)
        yield (x, weight, rng.uniform(0.01, 0.1, (n, 1)).astype(np.float32), rng.standard_normal(n)), {}
    zeros = np.zeros((2, 8)), np.ones((3, 8), np.int8), np.ones((3, 1), np.float32)
    yield zeros, {}


def _operands(call, dtype, **given):
    for name, (x, shape) in given.items():
        if not hasattr(x, "strides_") or x.dtype.name != dtype or x.shape_ != shape:
            got = f"{x.dtype.name} {x.shape_}" if hasattr(x, "strides_") else type(x).__name__
            raise ValueError(f"`{name}` of `{call.op.name}` must be {dtype} of shape {shape}, got {got}")


def _product(call, a, b, a_scales, b_scales, bias, shape, dtype):
    """`(a @ b) * a_scales * b_scales + bias` of matrices [M, K] and [K, N]; scales for each row and column, or for all.

    Sums are scaled as float32 and rounded once.
    """
    out = call.out(shape, dtype)
    if not out.numel_:
        return out
    bias = None if bias is None else bias.to(dtype=dtype).contiguous()
    if not a.shape_[1]:
        out.zero_()
        return out if bias is None else out.add_(bias)
    scales = [x.to(dtype="float32").reshape(-1).contiguous() for x in (a_scales, b_scales)]
    problem = Product(
        a.dtype.name, a.shape_, a.strides_, b.shape_, b.strides_, out.dtype.name, bias=bias is not None,
        scales=tuple(int(x.numel_ > 1) for x in scales),
    )  # fmt: skip
    call.run(problem, a=a, b=b, c=out, bias=bias, a_scales=scales[0], b_scales=scales[1])
    return out


@op(
    dtypes=_NARROW, ref=_w8a8i8_ref, samples=_w8a8i8_samples, gradient="missing",
    tolerance={"float32": (1e-5, 1e-4)},
)  # fmt: skip
def linear_w8a8i8(call, input, weight_packed, weight_scale, bias=None):
    """`input @ W.T + bias` in int8: [..., K] -> [..., N], W being `weight_packed` [N, K] times `weight_scale` [N, 1].

    Each row of `input` is divided by its largest magnitude / 127 and rounded to nearest even. `bias` [N].
    """
    check(call, input, "input")
    k = input.shape_[-1] if input.shape_ else 0
    n = weight_packed.shape_[0] if weight_packed.shape_ else 0
    _operands(call, "int8", weight_packed=(weight_packed, (n, k)))
    if not hasattr(weight_scale, "strides_") or weight_scale.shape_ != (n, 1):
        raise ValueError(f"`weight_scale` of `linear_w8a8i8` must be a tensor [{n}, 1], got {weight_scale!r:.80}")
    if bias is not None and bias.shape_ != (n,):
        raise ValueError(f"`bias` of `linear_w8a8i8` must have shape ({n},), got {bias.shape_}")
    shape = (*input.shape_[:-1], n)
    x = input.to(dtype="float32").reshape(math.prod(shape[:-1]), k)
    if not x.numel_:
        return call.out(shape, input.dtype).zero_().add_(0 if bias is None else bias)
    scale = call.elementwise("div", call.elementwise("abs", x).amax(-1, True), 127.0)
    divisor = call.elementwise("where", call.elementwise("gt", scale, 0), scale, 1.0)
    rounded = call.elementwise("round", call.elementwise("div", x, divisor)).to(dtype="int8")
    return _product(call, rounded, weight_packed.transpose(0, 1), scale, weight_scale, bias, shape, input.dtype)


def _scaled_ref(a, b, a_scales, b_scales, bias=None, trans_weight=True):
    y = a.astype(np.float64) @ (b.T if trans_weight else b).astype(np.float64) * a_scales * b_scales[:, 0]
    return (y if bias is None else y + bias).astype(np.float16)


def _scaled_samples(rng):
    for m, n, k in ((3, 6, 8), (33, 40, 70)):
        for trans in (True, False):
            a, b = (
                rng.integers(-127, 128, (m, k), np.int8),
                rng.integers(-127, 128, (n, k) if trans else (k, n), np.int8),
            )
            scales = (rng.uniform(1e-4, 1e-3, (rows, 1)).astype(np.float32) for rows in (m, n))
            yield (a, b, *scales, rng.standard_normal(n).astype(np.float16), trans), {}


def _scaled(call, a, b, a_scales, b_scales, bias):
    """The product of checked int8 matrices [M, K] and [K, N]."""
    (m, k), n = a.shape_, b.shape_[-1]
    _operands(call, "int8", b=(b, (k, n)))
    _operands(call, "float32", a_scales=(a_scales, (m, 1)), b_scales=(b_scales, (n, 1)))
    given = call.given.get("out") if call.given else None
    dtype = getattr(bias if given is None else given, "dtype", None)
    dtype = "float16" if dtype is None else dtype.name
    if dtype not in _HALF or (bias is not None and (bias.shape_ != (n,) or bias.dtype.name != dtype)):
        raise TypeError(
            f"`bias` and the result of `{call.op.name}` must be float16 or bfloat16, of one dtype, bias [{n}]"
        )
    return _product(call, a, b, a_scales, b_scales, bias, (m, n), dtype)


def _matrices(call, a, b):
    for name, x in (("a", a), ("b", b)):
        check(call, x, name)
        if len(x.shape_) != 2:
            raise ValueError(f"`{name}` of `{call.op.name}` must be a matrix, got shape {x.shape_}")


@op(dtypes=("int8",), ref=_scaled_ref, samples=_scaled_samples, gradient=None)
def scaled_mm_w8a8(call, a, b, a_scales, b_scales, bias=None, trans_weight=True):
    """`(a @ B) * a_scales * b_scales.T + bias`, with B = b.T of `b` [N, K] (`trans_weight`), or `b` [K, N]: [M, N].

    `a` int8 [M, K]; `a_scales` [M, 1] and `b_scales` [N, 1] float32. The result has the dtype of `out` or `bias` [N],
    float16 or bfloat16, else float16.
    """
    _matrices(call, a, b)
    return _scaled(call, a, b.transpose(0, 1) if trans_weight else b, a_scales, b_scales, bias)


def _nibbles(packed):
    low = ((packed & 15) ^ 8).astype(np.int8) - 8
    return np.stack([low, packed >> 4], -1).reshape(packed.shape[0], -1)


def _scaled4_ref(a, b, a_scales, b_scales, bias=None, trans_weight=False):
    return _scaled_ref(a, _nibbles(b), a_scales, b_scales, bias, trans_weight)


def _scaled4_samples(rng):
    for (a, b, a_scales, b_scales, bias, trans), options in _scaled_samples(rng):
        yield (a, b[:, : b.shape[1] // 2], a_scales, b_scales, bias, trans), options


@op(dtypes=("int8",), ref=_scaled4_ref, samples=_scaled4_samples, gradient=None)
def scaled_mm_w4a8(call, a, b, a_scales, b_scales, bias=None, trans_weight=False):
    """`scaled_mm_w8a8` with `b` in 4 bits, int8 [K, N / 2], or [N, K / 2] with `trans_weight`.

    A byte has two numbers from -8 to 7, the first in its low bits.
    """
    _matrices(call, a, b)
    wide = call.empty((b.shape_[0], 2 * b.shape_[1]), "int8")
    low = call.elementwise("bitwise_xor", call.elementwise("bitwise_and", b, 15), 8)
    wide[:, ::2].copy_(call.elementwise("sub", low, 8))
    wide[:, 1::2].copy_(call.elementwise("bitwise_right_shift", b, 4))
    return _scaled(call, a, wide.transpose(0, 1) if trans_weight else wide, a_scales, b_scales, bias)


# ---- float8 ------------------------------------------------------------------------------------


def _float8_ref(input, mat2, scale_a, scale_b, bias=None, out_dtype="bfloat16"):
    y = input.astype(np.float64) @ mat2.astype(np.float64) * scale_a * scale_b
    return y if bias is None else y + bias


def _float8_samples(rng):
    import ml_dtypes

    for m, n, k in ((3, 6, 8), (33, 40, 70), (150, 260, 300)):
        a, b = (rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((m, k), (k, n)))
        one, two = (rng.uniform(0.1, 1.0, shape).astype(np.float32) for shape in ((m, 1), (1, n)))
        yield (a, b, one, two), {"out_dtype": "float32"}
        yield (a, b, one[:1], two[0, 0]), {"out_dtype": "float32"}


@op(dtypes=("float8_e4m3",), ref=_float8_ref, samples=_float8_samples, gradient=None)
def scaled_mm(call, input, mat2, scale_a, scale_b, bias=None, *, out_dtype="bfloat16"):
    """`(input @ mat2) * scale_a * scale_b + bias` of float8_e4m3 matrices [M, K] and [K, N]: [M, N] of `out_dtype`.

    Scales are float32: `scale_a` one number or [M, 1], `scale_b` one number or [1, N]. `out_dtype` is bfloat16, float16
    or float32, `bias` [N] of that dtype. Sums are float32. Fastest where columns of `mat2` are contiguous.
    """
    _matrices(call, input, mat2)
    (m, k), n = input.shape_, mat2.shape_[1]
    _operands(call, "float8_e4m3", mat2=(mat2, (k, n)))
    dtype = getattr(out_dtype, "name", out_dtype)
    if dtype not in _NARROW:
        raise TypeError(f"`out_dtype` of `scaled_mm` must be one of {', '.join(_NARROW)}, got {dtype}")
    for name, scale, shape in (("scale_a", scale_a, (m, 1)), ("scale_b", scale_b, (1, n))):
        fits = hasattr(scale, "strides_") and scale.dtype.name == "float32"
        if not fits or (scale.numel_ != 1 and scale.shape_ != shape):
            got = f"{scale.dtype.name} {scale.shape_}" if hasattr(scale, "strides_") else type(scale).__name__
            raise ValueError(f"`{name}` of `scaled_mm` must be float32, one number or of shape {shape}, got {got}")
    if bias is not None:
        _operands(call, dtype, bias=(bias, (n,)))
    return _product(call, input, mat2, scale_a, scale_b, bias, (m, n), dtype)
