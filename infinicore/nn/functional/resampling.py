"""Images of other sizes, and images read at any place: interpolation, affine grids and sampling by grids."""

import math

import numpy as np

import infinicore

_MODES = {  # mode -> the numbers of dims of its inputs
    "nearest": (3, 4, 5),
    "nearest-exact": (3, 4, 5),
    "area": (3, 4, 5),
    "linear": (3,),
    "bilinear": (4,),
    "trilinear": (5,),
    "bicubic": (4,),
}


def _sizes(input, size, scale_factor, recompute_scale_factor):
    """(sizes of the result, given factors or None) for each dim of space."""
    space = input.shape_[2:]
    if (size is None) == (scale_factor is None):
        raise ValueError(f"one of `size` and `scale_factor` must be given, got {size} and {scale_factor}")
    name, given = ("size", size) if size is not None else ("scale_factor", scale_factor)
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,) * len(space)
    if len(values) != len(space):
        raise ValueError(f"`{name}` must have a value for each of the {len(space)} dims of space, got {given}")
    if recompute_scale_factor and size is not None:
        raise ValueError("`recompute_scale_factor` needs `scale_factor`, and `size` is given")
    if size is not None:
        sizes, factors = tuple(int(n) for n in values), None
    else:
        sizes = tuple(math.floor(n * float(f)) for n, f in zip(space, values))
        factors = None if recompute_scale_factor else tuple(float(f) for f in values)
    if min(sizes) < 1 or 0 in input.shape_[1:]:
        raise ValueError(f"`input` and the result must have elements, got shape {input.shape_} and size {sizes}")
    return sizes, factors


def interpolate(
    input,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
):
    """`input` [N, C, L], [N, C, H, W] or [N, C, D, H, W] with other sizes of space, `size` or a multiple of them.

    `mode` is "nearest" (PyTorch's, which rounds down), "nearest-exact", "area" (means), "linear", "bilinear",
    "trilinear" or "bicubic" (Keys, 1981, with a = -0.75). With `align_corners` the centres of the first and last
    elements stay in place, else the outer edges; `antialias` (bilinear, bicubic) averages over what falls into an
    element of a smaller result. Without `recompute_scale_factor` places follow from the given `scale_factor`. 16-bit
    floats are computed in float32. ValueError for sizes and options that do not fit, NotImplementedError for a mode of
    another number of dims.
    """
    if mode not in _MODES:
        raise NotImplementedError(f"`mode` must be one of {', '.join(_MODES)}, got {mode!r}")
    if input.ndim not in _MODES[mode]:
        dims = " or ".join(map(str, _MODES[mode]))
        raise NotImplementedError(f"`mode` {mode!r} needs an input of {dims} dims, got shape {input.shape_}")
    plain = mode in ("nearest", "nearest-exact", "area")
    if plain and align_corners is not None:
        raise ValueError(f"`align_corners` has no meaning in mode {mode!r}: leave it out")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"`antialias` needs `mode` 'bilinear' or 'bicubic', got {mode!r}")
    sizes, factors = _sizes(input, size, scale_factor, recompute_scale_factor)
    if mode == "area":
        pools = (infinicore.adaptive_avg_pool1d, infinicore.adaptive_avg_pool2d, infinicore.adaptive_avg_pool3d)
        return pools[input.ndim - 3](input, sizes)
    wide = np.float64 if input.dtype is infinicore.float64 else np.float32
    if not plain and not input.dtype.is_floating_point:
        raise TypeError(f"`mode` {mode!r} needs an input of floats, got {input.dtype}: cast it with `.to()`")
    x = input if plain or input.dtype.itemsize > 2 else input.to(infinicore.float32)
    for d in range(2, input.ndim):
        n, m = input.shape_[d], sizes[d - 2]
        factor = None if factors is None else factors[d - 2]
        scale = wide(n / m if factor is None else 1.0 / factor)
        if align_corners:
            scale = wide((n - 1) / (m - 1) if m > 1 else 0.0)
        if plain:
            at = np.arange(m, dtype=wide) + wide(0.5 if mode == "nearest-exact" else 0)
            x = _take(x, d, np.minimum(np.floor(at * scale), n - 1))
        elif antialias:
            x = _averaged(x, d, m, float(scale), mode == "bicubic")
        else:
            x = (_cubic if mode == "bicubic" else _linear)(x, d, _places(m, scale, align_corners, wide), wide)
    return x if x.dtype is input.dtype else x.to(input.dtype)


def _places(m, scale, align_corners, wide):
    """Where the elements of a result lie in the input."""
    at = np.arange(m, dtype=wide)
    return at * scale if align_corners else (at + wide(0.5)) * scale - wide(0.5)


def _take(x, dim, index):
    if len(index) == x.shape_[dim] and np.array_equal(index, np.arange(len(index))):
        return x
    return infinicore.index_select(x, dim, infinicore.from_numpy(index.astype(np.int64), device=x.device))


def _weighed(x, dim, taps):
    """The sum of elements along a dim times weights: `taps` of (index, weight), arrays over the result."""
    shape, result = (-1,) + (1,) * (x.ndim - dim - 1), None
    for index, weight in taps:
        part = _take(x, dim, index) * infinicore.from_numpy(weight, device=x.device).reshape(shape)
        result = part if result is None else result + part
    return result


def _linear(x, dim, places, wide):
    n, places = x.shape_[dim], np.maximum(places, 0)
    first = np.minimum(np.floor(places), n - 1)
    part = np.clip(places - first, 0, 1).astype(wide)
    return _weighed(x, dim, [(first, 1 - part), (np.minimum(first + 1, n - 1), part)])


def cubic_weights(t, a=-0.75):
    """The four weights of Keys' cubic convolution at a part `t` in [0, 1) behind the second tap."""

    def near(d):
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d):
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic(x, dim, places, wide):
    n, first = x.shape_[dim], np.floor(places)
    weights = cubic_weights((places - first).astype(wide))
    return _weighed(x, dim, [(np.clip(first + k - 1, 0, n - 1), w.astype(wide)) for k, w in enumerate(weights)])


def _averaged(x, dim, m, scale, cubic):
    """Along a dim, means weighed by a filter that is as wide as an element of the result: a product."""
    n, width = x.shape_[dim], max(scale, 1.0)
    support = (2.0 if cubic else 1.0) * width
    matrix = np.zeros((m, n))
    for i in range(m):
        centre = scale * (i + 0.5)
        first, last = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), n)
        t = np.abs((np.arange(first, last) - centre + 0.5) / width)
        if cubic:  # with a = -0.5, as in PyTorch's filters
            w = np.where(t < 1, (1.5 * t - 2.5) * t * t + 1, np.where(t < 2, ((-0.5 * t + 2.5) * t - 4) * t + 2, 0))
        else:
            w = np.maximum(1 - t, 0)
        matrix[i, first:last] = w / w.sum()
    weight = infinicore.from_numpy(matrix, dtype=x.dtype, device=x.device)
    return infinicore.linear(x.transpose(dim, -1), weight).transpose(dim, -1)


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """`interpolate` under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """`interpolate` with mode "nearest"."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input, size=None, scale_factor=None):
    """`interpolate` with mode "bilinear" and aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)


# ---- grids -----------------------------------------------------------------------------------------


def affine_grid(theta, size, align_corners=None):
    """The places that an affine map reads: `theta` [N, 2, 3] for `size` (N, C, H, W), [N, 3, 4] for (N, C, D, H, W).

    The result [N, H, W, 2] (or [N, D, H, W, 3]) has x, y (and z) from -1 to 1, as `grid_sample` takes them; -1 and 1
    are the centres of the outermost elements with `align_corners`, else their outer edges.
    """
    if not theta.dtype.is_floating_point:
        raise ValueError(f"`theta` must be of floats, got {theta.dtype}")
    dims, size = len(size) - 2, tuple(int(n) for n in size)
    if dims not in (2, 3):
        raise NotImplementedError(f"`size` must have 4 or 5 numbers, got {size}")
    if theta.shape_ != (size[0], dims, dims + 1):
        raise ValueError(f"`theta` must have shape {(size[0], dims, dims + 1)} for `size` {size}, got {theta.shape_}")
    if min(size) < 1:
        raise ValueError(f"`size` must hold positive numbers, got {size}")
    axes = []
    for n in size[2:]:
        axis = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        axes.append(axis if align_corners else axis * (n - 1) / n)
    mesh = np.meshgrid(*axes, indexing="ij")[::-1]
    base = np.stack([*mesh, np.ones(size[2:])], -1).reshape(-1, dims + 1)
    base = infinicore.from_numpy(base, dtype=theta.dtype, device=theta.device)
    return infinicore.matmul(base, theta.transpose(1, 2)).reshape(size[0], *size[2:], dims)


def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    """`grid_sample` with numbers: modes 0 to 2 are bilinear, nearest, bicubic; 0 to 2 zeros, border, reflection."""
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    for name, value in (("interpolation_mode", interpolation_mode), ("padding_mode", padding_mode)):
        if value not in (0, 1, 2):
            raise ValueError(f"`{name}` of `grid_sampler` must be 0, 1 or 2, got {value!r}")
    return grid_sample(input, grid, modes[interpolation_mode], paddings[padding_mode], align_corners)


grid_sampler_2d = grid_sampler_3d = grid_sampler


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """`input` [N, C, H, W] read at `grid` [N, OH, OW, 2] (x, y from -1 to 1): [N, C, OH, OW]; volumes likewise.

    `mode` is "bilinear" (of volumes trilinear), "nearest" or "bicubic" (of images); beyond the input are "zeros", its
    "border", or its "reflection". See `affine_grid` for `align_corners`. Gradients flow to both (Jaderberg et al.,
    arXiv 1506.02025).
    """
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(f"`mode` must be 'bilinear', 'nearest' or 'bicubic', got {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"`padding_mode` must be 'zeros', 'border' or 'reflection', got {padding_mode!r}")
    dims = input.ndim - 2
    if dims not in (2, 3) or grid.ndim != input.ndim:
        raise ValueError(f"`input` and `grid` must both have 4 or 5 dims, got shapes {input.shape_} and {grid.shape_}")
    if grid.shape_[0] != input.shape_[0] or grid.shape_[-1] != dims:
        raise ValueError(
            f"`grid` must have shape [{input.shape_[0]}, ..., {dims}] for `input` {input.shape_}, got {grid.shape_}"
        )
    if mode == "bicubic" and dims == 3:
        raise ValueError("`mode` 'bicubic' is for images, got an input of 5 dims")
    if 0 in input.shape_[2:]:
        raise ValueError(f"`input` must have elements, got shape {input.shape_}")
    if input.dtype is not grid.dtype:
        raise TypeError(f"`input` and `grid` must have one dtype, got {input.dtype} and {grid.dtype}")
    channels, space = input.shape_[1], input.shape_[2:]
    rows = input.movedim(1, -1).reshape(-1, channels)  # an index for a place, not for each of its channels
    axes = [grid[..., dims - 1 - d].reshape(input.shape_[0], -1) for d in range(dims)]  # the last coordinate first
    sides = [_coordinates(x, n, align_corners) for x, n in zip(axes, space)]
    limits = padding_mode, align_corners
    if mode != "bicubic":
        sides = [_within(x, n, *limits) for x, n in zip(sides, space)]
    choices = [_taps(x, n, mode, limits) for x, n in zip(sides, space)]
    first = infinicore.arange(input.shape_[0], device=input.device).reshape(-1, 1) * math.prod(space)
    result = None
    for number in range(len(choices[0]) ** dims):
        index, weight, seen = 0, None, None
        for d in reversed(range(dims)):
            number, k = divmod(number, len(choices[0]))
            place, part, inside = choices[d][k]
            index = index + place * math.prod(space[d + 1 :])
            if part is not None:
                weight = part if weight is None else weight * part
            seen = inside if seen is None else seen.logical_and(inside)
        value = infinicore.index_select(rows, 0, (index + first).reshape(-1))
        value = infinicore.where(seen.reshape(-1, 1), value, 0.0)
        value = value if weight is None else value * weight.reshape(-1, 1)
        result = value if result is None else result + value
    result = result.reshape(input.shape_[0], -1, channels).transpose(1, 2)
    return result.reshape(*input.shape_[:2], *grid.shape_[1:-1])


def _coordinates(x, n, align_corners):
    """Places from 0 to n - 1 of those from -1 to 1; NaN is beyond the input."""
    x = (x + 1.0) * (0.5 * (n - 1)) if align_corners else ((x + 1.0) * float(n) - 1.0) * 0.5
    return infinicore.where(x == x, x, -1.0)


def _within(x, n, padding_mode, align_corners):
    """Places that `padding_mode` moves into the input. A place at its border has no gradient, as in PyTorch."""
    if padding_mode == "zeros":
        return x
    if padding_mode == "reflection":
        low, span = (0.0, float(n - 1)) if align_corners else (-0.5, float(n))
        if span == 0.0:
            return x * 0.0
        away = x - low
        distance = infinicore.where(away < 0.0, -away, away)
        turns = (distance.detach() / span).floor()
        rest = distance - turns * span
        odd = infinicore.fmod(turns, 2.0) == 1.0
        x = infinicore.where(odd, span - rest, rest) + low
    inside = (x > 0.0).logical_and(x < n - 1.0)
    return infinicore.where(inside, x, x.detach().clamp(0.0, n - 1.0))


def _taps(x, n, mode, limits):
    """[(index, weight or None, whether it is inside)] of what a place reads along one dim of size n."""
    fixed = x.detach()
    if mode == "nearest":
        return [(*_inside(fixed.round(), n)[:1], None, _inside(fixed.round(), n)[1])]
    first = fixed.floor()
    part = x - first
    if mode == "bilinear":
        weights, places = (1.0 - part, part), (first, first + 1.0)
    else:
        weights = cubic_weights(part)
        places = [_within(first + (k - 1.0), n, *limits).round() for k in range(4)]
    return [(*_inside(place, n)[:1], w, _inside(place, n)[1]) for place, w in zip(places, weights)]


def _inside(place, n):
    """(index that can be read, whether it is the place's)."""
    inside = (place >= 0.0).logical_and(place <= n - 1.0)
    return place.clamp(0.0, n - 1.0).to(infinicore.int64), inside
