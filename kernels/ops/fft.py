"""Discrete Fourier transforms: NumPy's pocketfft for three kinds of arrays, and PyTorch's names written with those.

A `scale` of 0 leaves the sums as they are, 1 divides them by the root of how many there are (a unitary transform), 2
by their number.
"""

import math

import numpy as np

from ..table.composite import composite
from ..table.registry import ANY, COMPLEX, op
from ._layout import check, check_dim

_WIDE = ("float32", "float64")
_TOLERANCE = {"float32": (1e-5, 1e-5), "float64": (1e-12, 1e-12)}
_FORWARD = ("backward", "ortho", "forward")  # NumPy's names of the scales, forward and backward
_BACKWARD = ("forward", "ortho", "backward")

# ---- the transforms ------------------------------------------------------------------------------


def _steps(ways, dims, sizes, norms, dtype):
    """(NumPy's functions of one dim, of these names, and their options; a factor of what they make in a dtype).

    NumPy computes sums as they are (the second of the `norms`) of float32 in float64: 14.5 ms for a thousand of a
    thousand numbers. Those that it divides by how many there are (the third) take 3.6, and are multiplied again. Its
    transforms of several dims take 35 us more than those of one.
    """
    norm, plain, divided = norms
    exact = norm != plain or dtype.char not in "fF"
    norm, factor = (norm, None) if exact else (divided, np.float32(math.prod(sizes)))
    return [(getattr(np.fft, way), {"n": n, "axis": d, "norm": norm}) for way, d, n in zip(ways, dims, sizes)], factor


@op(dtypes=COMPLEX, samples=None, gradient="convention")
def fft_c2c(call, input, dims, scale: int = 0, forward: bool = True):
    """Complex numbers to complex ones over `dims`, of the same shape."""
    check(call, input, "input")
    way, names = ("fft", _FORWARD) if forward else ("ifft", _BACKWARD)
    dims, norms = dims[::-1], (names[scale], names[0], names[2])
    sizes = [input.shape_[d] for d in dims]
    kind = np.dtype(input.dtype.numpy)
    return call.fourier(input, *_steps([way] * len(dims), dims, sizes, norms, kind), kind)


@fft_c2c.grad("input")
def _(f, g, dims, scale, forward):
    return f.fft_c2c(g, dims, scale, not forward)


@op(dtypes=_WIDE, samples=None, gradient="convention")
def fft_r2c(call, input, dims, scale: int = 0):
    """Real numbers to complex ones over `dims`: of the last one, the n // 2 + 1 that the others follow from."""
    check(call, input, "input")
    kind = np.dtype(np.complex64 if input.dtype.itemsize == 4 else np.complex128)
    dims, norms = dims[::-1], (_FORWARD[scale], _FORWARD[0], _FORWARD[2])
    sizes = [input.shape_[d] for d in dims]
    ways = ["rfft"] + ["fft"] * (len(dims) - 1)
    return call.fourier(input, *_steps(ways, dims, sizes, norms, kind), kind)


@fft_r2c.grad("input")
def _(f, g, input, dims, scale):
    last, n = dims[-1], input.shape_[dims[-1]]
    sides = [0] * (2 * (g.ndim - last))
    sides[-1] = n - g.shape_[last]
    return f.real(f.fft_c2c(_padded(f, g, sides), dims, scale, False))


@op(dtypes=COMPLEX, samples=None, gradient="convention")
def fft_c2r(call, input, dims, size: int, scale: int = 0):
    """The inverse of `fft_r2c`, to `size` real numbers in the last of the `dims`."""
    check(call, input, "input")
    sizes = [*[input.shape_[d] for d in dims[:-1]], size]
    kind = np.dtype(np.float32 if input.dtype.itemsize == 8 else np.float64)
    ways, norms = ["ifft"] * (len(dims) - 1) + ["irfft"], (_BACKWARD[scale], _BACKWARD[0], _BACKWARD[2])
    return call.fourier(input, *_steps(ways, dims, sizes, norms, kind), kind)


@fft_c2r.grad("input")
def _(f, g, dims, size, scale):
    found = f.fft_r2c(g, dims, scale)
    last = dims[-1]
    twice = size - found.shape_[last]  # of these, there was a second one, the conjugate
    if twice <= 0:
        return found
    parts = [found.narrow(last, 0, 1), f.mul(found.narrow(last, 1, twice), 2.0)]
    rest = found.shape_[last] - 1 - twice
    return f.cat(parts + [found.narrow(last, 1 + twice, rest)] * bool(rest), last)


def _padded(f, x, sides):
    return f.pad(x, sides) if any(sides) else x


# ---- arguments -----------------------------------------------------------------------------------


def _scale(f, norm, forward):
    names = _FORWARD if forward else _BACKWARD
    if norm not in (None, *names):
        raise ValueError(f"`norm` of `{f.op.name}` must be 'forward', 'backward' or 'ortho', got {norm!r}")
    return names.index(norm or "backward")


def _number(f, x, wanted):
    """`x` as a real or complex tensor ("r" or "c") that transforms take: integers become float32."""
    check(f, x, "input")
    if x.dtype.kind != "c" and x.dtype.name not in _WIDE:
        if x.dtype.is_floating_point:
            raise TypeError(f"`input` of `{f.op.name}` must be float32 or float64, got {x.dtype.name}: cast it")
        x = x.to(dtype="float32")
    if wanted == "r" and x.dtype.kind == "c":
        raise TypeError(f"`input` of `{f.op.name}` must be real, got {x.dtype.name}")
    if wanted == "c" and x.dtype.kind != "c":
        x = x.to(dtype="complex64" if x.dtype.itemsize == 4 else "complex128")
    return x


def _resized(f, x, dims, sizes):
    """`x` cut, or filled up with zeros, at the end of `dims` to `sizes`; None and -1 leave a dim as it is."""
    for d, n in zip(dims, sizes):
        own = x.shape_[d]
        n = own if n is None or n == -1 else n
        if n < 1:
            raise ValueError(f"`{f.op.name}` needs at least one number in dim {d}, got {n} of shape {x.shape_}")
        if n < own:
            x = x.narrow(d, 0, n)
        elif n > own:
            x = f.pad(x, [0, 0] * (len(x.shape_) - d - 1) + [0, n - own])
    return x


def _dims(f, x, s, dim):
    """(dims, sizes) of a transform over several dims: all, the last ones that `s` has sizes of, or `dim`."""
    ndim = len(x.shape_)
    dim = (dim,) if isinstance(dim, int) else dim
    s = (s,) if isinstance(s, int) else s
    if dim is None:
        count = ndim if s is None else len(s)
        if count > ndim:
            raise ValueError(f"`s` of `{f.op.name}` has {count} sizes, and `input` {ndim} dims")
        dim = range(ndim - count, ndim)
    dims = tuple(check_dim(d, ndim) for d in dim)
    if len(set(dims)) < len(dims) or not dims or not ndim:
        raise ValueError(f"`dim` of `{f.op.name}` must name at least one dim, and each once, got {tuple(dim)}")
    if s is not None and len(s) != len(dims):
        raise ValueError(f"`s` of `{f.op.name}` must have a size for each of the dims {dims}, got {tuple(s)}")
    return dims, [None] * len(dims) if s is None else list(s)


# ---- PyTorch's names -----------------------------------------------------------------------------


def _complex(f, input, s, dim, norm, forward):
    x = _number(f, input, "c")
    dims, sizes = _dims(f, x, s, dim)
    return f.fft_c2c(_resized(f, x, dims, sizes), dims, _scale(f, norm, forward), forward)


def _halved(f, input, s, dim, norm, forward):
    """Real numbers to half of their transform; backwards, it is the conjugate."""
    x = _number(f, input, "r")
    dims, sizes = _dims(f, x, s, dim)
    y = f.fft_r2c(_resized(f, x, dims, sizes), dims, _scale(f, norm, forward))
    return y if forward else f.conj(y)


def _whole(f, input, s, dim, norm, forward):
    """Half of the transform of real numbers to them; forwards, from the conjugate."""
    x = _number(f, input, "c")
    dims, sizes = _dims(f, x, s, dim)
    size = 2 * (x.shape_[dims[-1]] - 1) if sizes[-1] in (None, -1) else sizes[-1]
    if size < 1:
        raise ValueError(f"`{f.op.name}` needs at least one number in dim {dims[-1]}, got {size}: name the size")
    x = _resized(f, x, dims, [*sizes[:-1], size // 2 + 1])
    return f.fft_c2r(f.conj(x) if forward else x, dims, size, _scale(f, norm, forward))


_KINDS = {
    "fft": (_complex, True, "The discrete Fourier transform"),
    "ifft": (_complex, False, "The inverse discrete Fourier transform"),
    "rfft": (_halved, True, "The first half (n // 2 + 1) of the transform of real numbers"),
    "irfft": (_whole, False, "The inverse of `rfft`, to real numbers, 2 (m - 1) of m unless the size is named"),
    "hfft": (
        _whole,
        True,
        "The real transform of numbers whose second half are conjugates of the first, which is given",
    ),
    "ihfft": (_halved, False, "The inverse of `hfft`"),
}


def _real_samples(rng):
    yield (rng.standard_normal((3, 8)),), {}
    yield (rng.standard_normal((5, 7)),), {"norm": "ortho"}


def _declare(kind, compute, forward, doc):
    """The row of a transform over one dim, two, and several."""
    complete = f"""{doc} over {{}}.

    {{}} as `input` has, or of other sizes: cut, or filled up with zeros. `norm` is where sums are divided by their
    number: 'forward', 'backward' (the default), or 'ortho', by its root each way.
    """
    dtypes = ANY if compute is not _halved else tuple(d for d in ANY if d not in COMPLEX)

    def one(f, input, n=None, dim=-1, norm=None):
        return compute(f, input, None if n is None else (n,), (dim,), norm, forward)

    def two(f, input, s=None, dim=(-2, -1), norm=None):
        return compute(f, input, s, dim, norm, forward)

    def several(f, input, s=None, dim=None, norm=None):
        return compute(f, input, s, dim, norm, forward)

    for function, end, dims in ((one, "", "`dim`"), (two, "2", "two dims"), (several, "n", "dims, all by default")):
        function.__name__ = function.__qualname__ = f"fft_{kind}{end}"
        sizes = "`n` numbers" if end == "" else "`s` numbers"
        function.__doc__ = complete.format(dims, sizes)
        composite(ref=None, samples=None, dtypes=dtypes)(function)


for _kind, _given in _KINDS.items():
    _declare(_kind, *_given)


def _shifted(f, input, dim, sign):
    check(f, input, "input")
    ndim = len(input.shape_)
    dims = range(ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [check_dim(d, ndim) for d in dims]
    shifts = [(input.shape_[d] + (sign < 0)) // 2 for d in dims]
    return f.roll(input, shifts, dims) if dims else f.rearrange(input)


def _shift_samples(rng):
    yield (rng.standard_normal((3, 8)),), {}


@composite(ref=lambda x, dim=None: np.fft.fftshift(x, dim), samples=_shift_samples, dtypes=ANY)
def fft_fftshift(f, input, dim=None):
    """The halves of `dim` (all by default) exchanged, so that the frequency 0 comes to the middle."""
    return _shifted(f, input, dim, 1)


@composite(ref=lambda x, dim=None: np.fft.ifftshift(x, dim), samples=_shift_samples, dtypes=ANY)
def fft_ifftshift(f, input, dim=None):
    """The inverse of `fftshift`."""
    return _shifted(f, input, dim, -1)


# ---- short transforms ----------------------------------------------------------------------------

_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # NumPy's names


def _window(f, x, window, n_fft, win_length, name):
    """`window` in the middle of `n_fft` numbers, or None: a rectangular one."""
    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft:
        raise ValueError(f"`win_length` of `{name}` must be from 1 to `n_fft` {n_fft}, got {length}")
    if window is None:
        if length == n_fft:
            return None
        window = x.new_ones(length, dtype=x.dtype.real)
    if tuple(window.shape_) != (length,):
        raise ValueError(f"`window` of `{name}` must have the shape ({length},), got {window.shape_}")
    left = (n_fft - length) // 2
    return _padded(f, window, [left, n_fft - length - left])


@composite(ref=None, samples=None, dtypes=(*_WIDE, *COMPLEX))
def stft(
    f,
    input,
    n_fft: int,
    hop_length=None,
    win_length=None,
    window=None,
    center: bool = True,
    pad_mode="reflect",
    normalized: bool = False,
    onesided=None,
    return_complex=None,
    align_to_window=None,
):
    """Transforms of pieces of a signal [L] or [B, L]: [(B,) frequencies, frames], `hop_length` (n_fft // 4) apart.

    Pieces have `n_fft` numbers and are multiplied with `window` first (`win_length` numbers, in their middle). With
    `center`, the signal is padded so that frame t has element t * hop_length in its middle. `onesided` (by default, of
    real ones) gives n_fft // 2 + 1 frequencies. `return_complex` must be given for real signals and windows: False
    gives a real tensor with a last dim of 2. `normalized` divides by the root of n_fft.
    """
    check(f, input, "input")
    hop = n_fft // 4 if hop_length is None else hop_length
    if len(input.shape_) not in (1, 2) or n_fft < 1 or hop < 1:
        raise ValueError(
            f"`stft` takes `input` [L] or [B, L] and positive `n_fft`, `hop_length`, got {input.shape_}, {n_fft}, {hop}"
        )
    if align_to_window is not None and center:
        raise ValueError("`align_to_window` of `stft` goes with `center=False`: leave it out")
    made = _window(f, input, window, n_fft, win_length, "stft")
    is_complex = input.dtype.kind == "c" or (made is not None and made.dtype.kind == "c")
    if return_complex is None and not is_complex:
        raise ValueError("`return_complex` of `stft` must be given for real signals: True for a complex result")
    onesided = not is_complex if onesided is None else onesided
    if onesided and is_complex:
        raise ValueError("`onesided` of `stft` goes with real signals and windows: leave it out")
    x = input if len(input.shape_) == 2 else input.unsqueeze(0)
    if center or align_to_window:
        x = _extended(f, x, n_fft, pad_mode)
    if x.shape_[1] < n_fft:
        raise ValueError(f"`input` of `stft` has {x.shape_[1]} elements, fewer than `n_fft` {n_fft}")
    x = x.unfold(-1, n_fft, hop)
    x = x if made is None else f.mul(x, made)
    scale = 1 if normalized else 0
    if onesided:
        y = f.fft_r2c(_number(f, x, "r"), (2,), scale)
    else:
        y = f.fft_c2c(_number(f, x, "c"), (2,), scale)
    y = y.transpose(1, 2)
    y = y if len(input.shape_) == 2 else y.squeeze(0)
    y = f.rearrange(y)
    return f.rearrange(f.view_as_real(y)) if return_complex is False else y


def _extended(f, x, n_fft, pad_mode):
    """Half a piece more on both sides."""
    side = n_fft // 2
    if pad_mode == "reflect" and side >= x.shape_[1]:
        raise ValueError(f"`input` of `stft` has {x.shape_[1]} elements, too few to reflect {side}: take a `pad_mode`")
    if pad_mode == "constant":
        return f.pad(x, [side, side])
    if pad_mode not in _MODES:
        raise ValueError(f"`pad_mode` of `stft` must be one of constant, {', '.join(_MODES)}, got {pad_mode!r}")
    places = np.pad(np.arange(x.shape_[1]), side, mode=_MODES[pad_mode])
    return f.index_select(x, 1, f.from_array(places, x.device))


@composite(ref=None, samples=None, dtypes=(*_WIDE, *COMPLEX))
def istft(
    f,
    input,
    n_fft: int,
    hop_length=None,
    win_length=None,
    window=None,
    center: bool = True,
    normalized: bool = False,
    onesided=None,
    length=None,
    return_complex: bool = False,
):
    """The signal [(B,) L] with the transforms `input` [(B,) frequencies, frames] of `stft` by the same arguments.

    What overlapping pieces say is averaged by the squares of the window. `length` cuts the signal, or fills it up.
    Raises ValueError where windows leave out an element.
    """
    check(f, input, "input")
    hop = n_fft // 4 if hop_length is None else hop_length
    if input.dtype.kind != "c" or len(input.shape_) not in (2, 3) or not input.shape_[-1]:
        raise ValueError(
            f"`input` of `istft` must be complex [(B,) frequencies, frames], got {input.dtype.name} {input.shape_}"
        )
    rows = input.shape_[-2]
    onesided = rows != n_fft if onesided is None else onesided
    if rows != (n_fft // 2 + 1 if onesided else n_fft) or not 0 < hop <= (win_length or n_fft):
        raise ValueError(
            f"`istft` with `n_fft` {n_fft} takes {n_fft // 2 + 1 if onesided else n_fft} frequencies, and a "
            f"`hop_length` from 1 to that of the window, got {rows} and {hop}"
        )
    made = _window(f, input, window, n_fft, win_length, "istft")
    x = (input if len(input.shape_) == 3 else input.unsqueeze(0)).transpose(1, 2)
    scale = 1 if normalized else 2
    y = f.fft_c2c(x, (2,), scale, False) if return_complex else None
    if y is None:
        y = f.fft_c2r(x if onesided else x.narrow(2, 0, n_fft // 2 + 1), (2,), n_fft, scale)
    y = y if made is None else f.mul(y, made)
    batch, frames, _ = y.shape_
    total = n_fft + hop * (frames - 1)
    places = f.from_array((np.arange(frames)[:, None] * hop + np.arange(n_fft)).reshape(-1), input.device)
    signal = f.index_add(y.new_zeros(batch, total), 1, places, y.reshape(batch, frames * n_fft))
    if made is None:
        made = input.new_ones(n_fft, dtype=input.dtype.real)
    weights = f.mul(made, made).expand(frames, n_fft).reshape(-1)
    weights = f.index_add(weights.new_zeros(total), 0, places, weights)
    first = n_fft // 2 if center else 0
    last = first + length if length is not None else total - first if center else total
    signal, weights = (z.narrow(-1, first, max(0, min(last, total) - first)) for z in (signal, weights))
    if weights.numel_ and min(np.abs(weights.tolist())) < 1e-11:
        raise ValueError("`window` of `istft` leaves out elements: pieces must overlap where it is 0")
    y = f.div(signal, weights)
    y = _padded(f, y, [0, max(0, last - total)])
    return y if len(input.shape_) == 3 else y.squeeze(0)
