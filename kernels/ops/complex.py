"""Complex numbers from their parts, and the parts; what other ops mean of complex tensors, in terms of these.

Sums, products of matrices and everything else that is made of real sums runs on the real kernels: a complex tensor is
also one of real numbers, whose last dim of 2 has the parts (`view_as_real`).
"""

import math

import numpy as np

from ..lang import scalar_math as m
from ..table.composite import composite
from ..table.registry import ANY, COMPLEX, INEXACT, elementwise
from ._layout import check, check_dim, product
from ._products import check as check_operands
from ._rules import reduced_dims
from .activation_rules import softsign, tanhshrink
from .conv import conv1d, conv2d
from .conv_composed import conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from .decompositions import eye_of
from .elementwise import abs_
from .factors import triangular_solution
from .gather import embedding_backward, index_add, index_select_backward
from .indexing import index_backward, index_put, nonzero
from .matmul import matmul
from .pairs import logaddexp
from .reduce import all_, any_, mean, prod, sum_
from .scan import cumprod, cumsum
from .scatter import gather_backward, scatter_add
from .statistics import logsumexp, norm, std, std_mean, var, var_mean

_PAIRS = {"float32": "complex64", "float64": "complex128"}
_WIDE = tuple(_PAIRS)

# ---- making and taking apart ---------------------------------------------------------------------


@elementwise(ref=np.conjugate, dtypes=COMPLEX)
def conj_physical(input):
    """The conjugates of complex numbers; PyTorch's `conj`, which is a copy here, too, and leaves real tensors alone."""
    return m.conj(input)


@conj_physical.on("fiub")
def _(f, input):
    return f.rearrange(input)


@conj_physical.grad("input")
def _(g):
    return m.conj(g)


def _two(rng):
    yield (rng.standard_normal((3, 5)), rng.standard_normal((3, 5))), {}
    yield (rng.standard_normal((3, 1)), rng.standard_normal(5)), {}


def _parts(f, one, two, names):
    for x, name in ((one, names[0]), (two, names[1])):
        check(f, x, name)
    if one.dtype is not two.dtype:
        raise TypeError(f"`{names[1]}` of `{f.op.name}` must be {one.dtype.name} as `{names[0]}`, got {two.dtype.name}")


@composite(ref=lambda real, imag: real + 1j * imag, samples=None, dtypes=_WIDE)
def complex_(f, real, imag):
    """real + imag j: complex64 of two float32 tensors, complex128 of two float64 ones; shapes broadcast."""
    _parts(f, real, imag, ("real", "imag"))
    return f.view_as_complex(f.stack(f.broadcast_tensors(real, imag), -1))


@composite(ref=lambda abs, angle: abs * np.exp(1j * angle), samples=None, dtypes=_WIDE)
def polar(f, abs, angle):
    """Complex numbers of the magnitudes `abs` and the angles `angle`, in radians."""
    _parts(f, abs, angle, ("abs", "angle"))
    return f.complex(f.mul(abs, f.cos(angle)), f.mul(abs, f.sin(angle)))


# ---- magnitude and direction ---------------------------------------------------------------------


@elementwise(ref=np.hypot, dtypes=_WIDE, step=True)
def complex_abs(real, imag):
    """sqrt(real^2 + imag^2); its derivative at 0 is 0."""
    return m.hypot(real, imag)


@complex_abs.grad("real", "imag")
def _(g, real, out):
    return m.where(out == 0.0, 0.0, g * real / m.where(out == 0.0, 1.0, out))


@abs_.on("c")
def _(f, input):
    return f.complex_abs(f.real(input), f.imag(input))


@elementwise(ref=np.angle, dtypes=INEXACT, result="float")
def angle(input):
    """The angle of complex numbers in [-pi, pi]; of real ones, pi below 0, else 0."""
    return m.where(input < 0, 3.141592653589793, m.where(input == input, 0.0, input))


@angle.grad("input")
def _(g):
    return 0.0 * g


@angle.on("c")
def _(f, input):
    real, imag = f.real(input), f.imag(input)
    zero = f.logical_and(f.eq(real, 0.0), f.eq(imag, 0.0))
    y = f.atan2(imag, f.where(zero, 1.0, real))
    return f.where(zero, f.atan2(imag.detach(), real.detach()), y)


def _signs(rng):
    yield (rng.standard_normal((3, 5)),), {}


@composite(ref=np.sign, samples=_signs, dtypes=ANY)
def sgn(f, input):
    """As `sign`; of complex numbers, those of magnitude 1 in their direction, and 0 of 0."""
    check(f, input, "input")
    if input.dtype.kind != "c":
        return f.sign(input)
    size = f.abs(input)
    return f.div(input, f.where(f.eq(size, 0.0), 1.0, size))


# ---- sums and products ---------------------------------------------------------------------------


_FOLD = 16  # neighbours that are summed side by side: of columns of 2 numbers, a register would have 2 in use


def _folded_sum(f, x, dims, first, count, fold):
    """The sums over `dims`, which include all from `first` on, of contiguous x: [..., 2], without the dims."""
    flat, lead = f.view_as_real(x).reshape(*x.shape_[:first], count, 2), [d for d in dims if d < first]
    even = count - count % fold
    total = f.sum(flat.narrow(first, 0, even).reshape(*x.shape_[:first], -1, 2 * fold), [*lead, first])
    total = f.sum(total.reshape(*total.shape_[:-1], fold, 2), -2)
    return total if even == count else total + f.sum(flat.narrow(first, even, count - even), [*lead, first])


def _summed(name):
    def form(f, input, dim=None, keepdim=False, dtype=None):
        x = input if dtype is None else input.to(dtype=dtype)
        compute = getattr(f, name)
        if x.dtype.kind != "c":
            return compute(x, dim, keepdim)
        dims = reduced_dims(dim, len(x.shape_))
        if not x.shape_:
            return f.rearrange(x)
        first = next((d + 1 for d in reversed(range(x.ndim)) if d not in dims), 0)
        count = product(x.shape_[first:])
        fold = _FOLD if not first else math.gcd(count, _FOLD)
        if x.contiguous_ and fold > 1 and count >= 4 * fold:
            total = _folded_sum(f, x, dims, first, count, fold)
            shape = [1 if d in dims else n for d, n in enumerate(x.shape_) if keepdim or d not in dims]
            scale = 1 if name == "sum" else product([x.shape_[d] for d in dims])
            return f.view_as_complex((total if scale == 1 else total / scale).reshape(*shape, 2))
        return f.view_as_complex(f.rearrange(compute(f.view_as_real(x), dims, keepdim)))

    return form


sum_.on("c")(_summed("sum"))
mean.on("c")(_summed("mean"))


@cumsum.on("c")
def _(f, input, dim, dtype=None, reverse=False):
    x = input if dtype is None else input.to(dtype=dtype)
    dim = check_dim(dim, len(x.shape_))
    if x.dtype.kind != "c":
        return f.cumsum(x, dim, reverse=reverse)
    if not x.shape_:
        return f.rearrange(x)
    return f.view_as_complex(f.rearrange(f.cumsum(f.view_as_real(x), dim, reverse=reverse)))


@prod.on("c")
def _(f, input, dim=None, keepdim=False, dtype=None):
    """Half of the elements times the other half, and so on."""
    x = input if dtype is None else input.to(dtype=dtype)
    if x.dtype.kind != "c":
        return f.prod(x, dim, keepdim)
    dims = reduced_dims(dim, len(x.shape_))
    shape = [1 if d in dims else n for d, n in enumerate(x.shape_) if keepdim or d not in dims]
    kept = [d for d in range(len(x.shape_)) if d not in dims]
    x = x.permute([*dims, *kept]).reshape(math.prod(x.shape_[d] for d in dims), *[x.shape_[d] for d in kept])
    if not x.shape_[0]:
        return f.add(f.sum(x, 0), 1.0).reshape(shape)
    while x.shape_[0] > 1:
        half = x.shape_[0] // 2
        y = f.mul(x.narrow(0, 0, half), x.narrow(0, half, half))
        x = f.cat([y, x.narrow(0, 2 * half, 1)]) if x.shape_[0] % 2 else y
    return f.rearrange(x.reshape(shape))


@cumprod.on("c")
def _(f, input, dim, dtype=None, reverse=False):
    """By steps of 1, 2, 4, ... elements (Hillis and Steele, 1986)."""
    x = input if dtype is None else input.to(dtype=dtype)
    dim = check_dim(dim, len(x.shape_))
    if x.dtype.kind != "c":
        return f.cumprod(x, dim, reverse=reverse)
    x = f.flip(x, dim) if reverse and x.shape_ else f.rearrange(x)
    size, step = x.shape_[dim] if x.shape_ else 1, 1
    while step < size:
        later = f.mul(x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step))
        x = f.cat([x.narrow(dim, 0, step), later], dim)
        step *= 2
    return f.flip(x, dim) if reverse and x.shape_ else x


@matmul.on("c")
def _(f, input, other, *, alpha=1.0, out_dtype=None, accumulate=False):
    """One real product of twice the depth and width: rows of pairs (a, b) with pairs of rows (c, d), (-d, c)."""
    if accumulate or (out_dtype is not None and getattr(out_dtype, "name", out_dtype) != input.dtype.name):
        raise TypeError("`accumulate` and `out_dtype` of `matmul` need real tensors: leave them out")
    check_operands(_Named(matmul), ("input", "other"), input, other)
    if not input.shape_ or not other.shape_ or input.shape_[-1] != other.shape_[-2 if len(other.shape_) > 1 else 0]:
        raise ValueError(f"`matmul` needs matching inner sizes, got {input.shape_} and {other.shape_}")
    b = other if len(other.shape_) > 1 else other.unsqueeze(-1)
    turned = f.stack([b, f.mul(b, 1j)], -2)  # [..., K, 2, N]: the second row of a pair is that of j b
    pairs = f.view_as_real(turned)
    *batch, size, columns = b.shape_
    a = f.view_as_real(f.rearrange(input))
    a = a.reshape(*input.shape_[:-1], 2 * size)
    y = f.matmul(a, pairs.reshape(*batch, 2 * size, 2 * columns), alpha=alpha)
    y = f.view_as_complex(y.reshape(*y.shape_[:-1], columns, 2))
    return y if len(other.shape_) > 1 else y.squeeze(-1)


class _Named:
    """What checks ask of a call: its op."""

    def __init__(self, op):
        self.op = op


# ---- the same for the real and the imaginary parts ----------------------------------------------


def _on_parts(op):
    """Let a real-linear op of complex tensors be that of their real parts and that of their imaginary parts."""

    def form(f, *args, **kwargs):
        kinds = {x.dtype for x in (*args, *kwargs.values()) if hasattr(x, "strides_") and x.dtype.kind in "fc"}
        if len(kinds) > 1:
            raise TypeError(f"`{op.name}` needs one dtype, got {' and '.join(sorted(d.name for d in kinds))}: cast one")

        def of(part):
            take = lambda x: part(x) if hasattr(x, "strides_") and x.dtype.kind == "c" else x
            return getattr(f, op.name)(*map(take, args), **{k: take(v) for k, v in kwargs.items()})

        return f.complex(of(f.real), of(f.imag))

    op.on("c")(form)


for _row in (embedding_backward, index_select_backward, index_backward, gather_backward, index_add, scatter_add):
    _on_parts(_row)


@index_put.on("c")
def _(f, input, indices, values, accumulate=False):
    if not hasattr(values, "strides_"):
        values = input.new_full((), values)
    if values.dtype is not input.dtype:
        raise TypeError(f"`values` of `index_put` must be {input.dtype.name} as `input`, got {values.dtype.name}")
    parts = [f.index_put(part(input), indices, part(values), accumulate) for part in (f.real, f.imag)]
    return f.complex(*parts)


# ---- layers ------------------------------------------------------------------------------------


def _of_products(op):
    """Let a convolution of complex tensors be four real ones."""

    def form(f, input, weight, bias=None, *args, **kwargs):
        if input.dtype is not weight.dtype or (bias is not None and bias.dtype is not input.dtype):
            raise TypeError(
                f"`{op.name}` needs one dtype, got {input.dtype} for `input` and {weight.dtype} for `weight`"
            )
        parts = lambda x: (f.rearrange(f.real(x)), f.rearrange(f.imag(x)))
        convolve = lambda x, w: getattr(f, op.name)(x, w, None, *args, **kwargs)
        (a, b), (c, d) = parts(input), parts(weight)
        y = f.complex(f.sub(convolve(a, c), convolve(b, d)), f.add(convolve(a, d), convolve(b, c)))
        return y if bias is None else f.add(y, bias.reshape(-1, *[1] * (weight.ndim - 2)))

    op.on("c")(form)


for _row in (conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d):
    _of_products(_row)


# ---- magnitudes ----------------------------------------------------------------------------------


@norm.on("c")
def _(f, input, p=2, dim=None, keepdim=False):
    if p == "nuc":
        return f.linalg_matrix_norm(input, "nuc", range(input.ndim) if dim is None else dim, keepdim)
    return f.norm(f.abs(input), p, dim, keepdim)


@var.on("c")
def _(f, input, *args, **kwargs):
    return f.add(f.var(f.real(input), *args, **kwargs), f.var(f.imag(input), *args, **kwargs))


@std.on("c")
def _(f, input, *args, **kwargs):
    return f.sqrt(f.var(input, *args, **kwargs))


@var_mean.on("c")
def _(f, input, dim=None, unbiased=True, keepdim=False, correction=None):
    mean = f.mean(input, None if isinstance(dim, bool) else dim, keepdim)
    return f.var(input, dim, unbiased, keepdim, correction), mean


@std_mean.on("c")
def _(f, input, dim=None, unbiased=True, keepdim=False, correction=None):
    mean = f.mean(input, None if isinstance(dim, bool) else dim, keepdim)
    return f.std(input, dim, unbiased, keepdim, correction), mean


@triangular_solution.on("c")
def _(f, A, B, *, upper, unitriangular=False):
    full = f.triu(A, int(unitriangular)) if upper else f.tril(A, -int(unitriangular))
    return f.lapack_solve(f.add(full, eye_of(f, A, A.shape_[-1])) if unitriangular else full, B)


@nonzero.on("c")
def _(f, input, *, as_tuple=False):
    return f.nonzero(f.ne(input, 0), as_tuple=as_tuple)


@any_.on("c")
def _(f, input, dim=None, keepdim=False):
    return f.any(f.ne(input, 0), dim, keepdim)


@all_.on("c")
def _(f, input, dim=None, keepdim=False):
    return f.all(f.ne(input, 0), dim, keepdim)


# ---- formulas as they stand --------------------------------------------------------------------------


@softsign.on("c")
def _(f, input):
    return f.div(input, f.add(f.abs(input), 1.0))


@tanhshrink.on("c")
def _(f, input):
    return f.sub(input, f.tanh(input))


@logaddexp.on("c")
def _(f, input, other):
    first = f.ge(f.real(input), f.real(other))
    top, low = f.where(first, input, other), f.where(first, other, input)
    return f.add(top, f.log1p(f.exp(f.sub(low, top))))


@logsumexp.on("c")
def _(f, input, dim, keepdim=False):
    if not input.numel_:
        return f.log(f.sum(f.exp(input), dim, keepdim))
    top = f.amax(f.real(input).detach(), dim, True)
    top = f.where(f.isfinite(top), top, 0.0)
    y = f.add(f.log(f.sum(f.exp(f.sub(input, top)), dim, True)), top)
    return y if keepdim else y.squeeze(tuple(dim) if hasattr(dim, "__iter__") else dim)
