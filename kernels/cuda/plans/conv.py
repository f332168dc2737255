"""Convolutions: columns of an input and a product with them, so that the matrix units do the work.

A convolution is the product of the weight [m, c taps] with columns [c taps, places] of each image; windows of one
element with no padding need no columns. The gradient of an input is a convolution of that of the result with the weight
turned around; where windows step over places, it is the product of the weight turned around with the gradient, whose
columns are summed up. The gradient of the weight is a product along the places of all images. What is left goes by the
definition (`cuda/conv/direct.py`; of 16-bit floats on the matrix units of warps, `cuda/conv/units.py`): little work,
groups of few channels, volumes.
"""

from math import gcd, prod

from ...blocks import float_bits
from ...blocks.cuda import BANDS, BIAS, COLUMNS, CONV_SUMS, CONV_WEIGHT, FOLDED, JOIN
from ...build.load import kernel
from ...cpu.plans.conv import numbers_of, turned
from ...plan import Plan, launch
from ...problems.array import Copy
from ...problems.conv import Convolution
from ...problems.gemm import Product
from ...problems.window import Window
from ..conv.sizes import DEPTH, ROOM, THREADS
from .array import copy
from .gemm import parts_of, product

# Of columns at a time: a workspace, which images share in turn.
_BYTES = 256 << 20
_LITTLE = 1 << 21  # multiply-adds that one launch does as they come
_FEW = 8  # channels of a group, of results or of a window's elements / 2, with which tiles of a product are wasted
_PARTS = 32 << 20  # bytes of the gradients of the weight of each image, up to which these are joined
_BLOCKS = 264  # two for each multiprocessor: into so many tiles long sums of float32 are cut
# Neighbouring places that a thread takes. A warp's loads of one of them each lie so far apart: more are more lines of
# the first-level cache for each.
PLACES = {"bfloat16": 4, "float16": 4, "float32": 2, "float64": 2}
_UNROLLED, _NEAR = 32, 4  # elements of a window whose loops are unrolled, and neighbouring places of a thread there
_OUTPUTS = 1, 4, 8  # sums that a thread of `conv/direct.py` has of each of its places
_LEAST, _MOST = 8, 64  # channels of groups whose planes go by the definition on the matrix units; volumes: any more
_ONE = Window((1, 1), (1, 1), (0, 0), (1, 1))


def _bytes(dtype):
    return int(dtype.removeprefix("b").removeprefix("float")) // 8


def _lanes(dtype):
    """Elements of 16 bytes."""
    return 16 // _bytes(dtype)


def _rounded(count, lanes):
    return -(-count // lanes) * lanes


def _numbers(x, y, window):
    """The fields that all blocks of convolutions have."""
    found = {"x_h": x[0], "x_w": x[1], "y_h": y[0], "y_w": y[1]}
    fields = {"kernel": window.kernel, "stride": window.stride, "pad": window.padding, "gap": window.dilation}
    for name, (h, w) in fields.items():
        found |= {f"{name}_h": h, f"{name}_w": w}
    return found


# ---- parts of plans ----------------------------------------------------------------------------


class _Steps:
    """Launches in their order, and the most that each workspace takes of all of them."""

    def __init__(self):
        self.launches, self.scratch = [], {}

    def space(self, name, nbytes):
        self.scratch[name] = max(self.scratch.get(name, 0), nbytes)

    def add(self, plan, names):
        """Another plan's launches; `names` gives its tensors as (name, offset in bytes) of this one."""
        for one in plan.launches:
            places = []
            for at, name, offset in one.places:
                own, further = names.get(name, (name, 0))
                places.append((at, own, offset + further))
            self.launches.append(one._replace(places=tuple(places)))
        for name, nbytes in plan.scratch:
            self.space(name, nbytes)

    def columns(self, dtype, source, to, images, channels, x, y, window, flat=0):
        """Make the columns of an input; (step of rows, step of images).

        `source` is (name, offset). Columns of each image lie by themselves, in rows of whole vectors; or (`flat`)
        places of all images follow one another, in rows of so many elements.
        """
        places, lanes, taps = prod(y), _lanes(dtype), prod(window.kernel)
        span = places if flat else _rounded(places, lanes)
        row = flat or span
        image = places if flat else channels * taps * span
        vectors = (flat or images * span) // PLACES[dtype]
        handle = kernel("conv.columns.columns", E=f"uint{8 * _bytes(dtype)}", N=PLACES[dtype])
        self.launches.append(launch(
            handle, COLUMNS, channels * vectors, 1,
            {"x": source, "y": (to, 0)}, images=images, vectors=vectors, span=span, row_step=row, image_step=image,
            x_image=channels * prod(x), **_numbers(x, y, window),
        ))  # fmt: skip
        self.space(to, channels * taps * (flat if flat else images * span) * _bytes(dtype))
        return row, image

    def plan(self):
        return Plan(tuple(self.launches), tuple((name, max(64, nbytes)) for name, nbytes in self.scratch.items()))


def _chunks(p, nbytes):
    """(first image, how many) in turn, if each takes so many bytes of a workspace."""
    each = max(1, _BYTES // max(1, nbytes))
    return [(first, min(each, p.n - first)) for first in range(0, p.n, each)]


def _by_images(p, steps, channels, results, x, y, window, left):
    """y [n, results, *]: [results, k] (`left`: its name, strides of groups, rows and k) times columns of x."""
    groups, item, places = p.groups, _bytes(p.dtype), prod(y)
    k = channels // groups * prod(window.kernel)
    # an input may be its own columns, if a product can read it as it lies
    straight = window._replace(dilation=(1, 1)) == _ONE and (item > 2 or places % _lanes(p.dtype) == 0)
    size = 0 if straight else channels * prod(window.kernel) * _rounded(places, _lanes(p.dtype)) * item
    for first, count in _chunks(p, size):
        source, row, image = ("x", first * channels * prod(x) * item), places, channels * places
        if not straight:
            row, image = steps.columns(p.dtype, source, "columns", count, channels, x, y, window)
            source = "columns", 0
        one = Product(
            p.dtype, (1, groups, results // groups, k), (0, *left[1:]), (count, groups, k, places),
            (image, image // groups, row, 1), p.dtype, residual=p.bias, accumulate=p.bias,
        )  # fmt: skip
        to = "y", first * results * places * item
        steps.add(product(one), {"a": (left[0], 0), "b": source, "c": to, "residual": to})


# ---- plans -------------------------------------------------------------------------------------


def _forward(p):
    steps, k = _Steps(), p.c // p.groups * prod(p.window.kernel)
    if p.bias:
        fill = kernel("conv.columns.bias", T=p.dtype)
        steps.launches.append(launch(fill, BIAS, p.n * p.m, 1, channels=p.m, length=prod(p.y)))
    left = "weight", p.m // p.groups * k, k, 1
    _by_images(p, steps, p.c, p.m, p.x, p.y, p.window, left)
    return steps.plan()


def _input(p):
    """Where windows step by 1, the columns of the gradient of the result; the weight is turned around before."""
    steps, taps, groups = _Steps(), prod(p.window.kernel), p.groups
    c, m = p.c // groups, p.m // groups
    if taps == 1:
        left = "weight", m * c, 1, c
    else:
        k = _rounded(m * taps, _lanes(p.dtype))
        turn = Copy((groups, c, m, taps), (c * k, k, taps, 1), (m * c * taps, taps, c * taps, 1), _bytes(p.dtype))
        steps.add(copy(turn), {"x": ("weight", 0), "y": ("turned", 0)})
        steps.space("turned", groups * c * k * _bytes(p.dtype))
        left = "turned", c * k, k, 1
    _by_images(p, steps, p.m, p.c, p.y, p.x, turned(p.window), left)
    return steps.plan()


def _stepped_input(p):
    """Products of the turned weight are columns of the gradient of the input, in the type of sums."""
    steps, taps, groups = _Steps(), prod(p.window.kernel), p.groups
    c, m, sums, item = p.c // groups, p.m // groups, _sums(p.dtype), _bytes(p.dtype)
    size, places = p.c * taps * prod(p.y) * _bytes(sums), prod(p.y)
    for first, count in _chunks(p, size):
        source, row, image = ("x", first * p.m * places * item), places, p.m * places
        if item == 2 and places % _lanes(p.dtype):
            row, image = steps.columns(p.dtype, source, "columns", count, p.m, p.y, p.y, _ONE)
            source = "columns", 0
        one = Product(
            p.dtype, (1, groups, c * taps, m), (0, m * c * taps, 1, c * taps), (count, groups, m, places),
            (image, image // groups, row, 1), sums,
        )  # fmt: skip
        steps.add(product(one), {"a": ("weight", 0), "b": source, "c": ("sums", 0)})
        at = {"x": ("y", first * p.c * prod(p.x) * item), "y": ("sums", 0)}
        (s_h, s_w), shared = p.window.stride, [gcd(*pair) for pair in zip(p.window.stride, p.window.dilation)]
        numbers = _numbers(p.x, p.y, p.window) | {"period_h": s_h // shared[0], "period_w": s_w // shared[1]}
        numbers |= {f"jump_{d}": gap // same for d, gap, same in zip("hw", p.window.dilation, shared)}
        handle = kernel("conv.columns.fold", T=p.dtype, A=sums, S_H=s_h, S_W=s_w)
        steps.launches.append(launch(handle, FOLDED, count * p.c * prod(p.x), 1, at, **numbers))
        steps.space("sums", count * size)
    return steps.plan()


def _sums(dtype):
    return "float64" if dtype == "float64" else "float32"


def _weight(p):
    """Columns of each image times its gradient, or where that is much, of all in one row; the parts are joined."""
    steps, groups, item, lanes = _Steps(), p.groups, _bytes(p.dtype), _lanes(p.dtype)
    m, places, k = p.m // groups, prod(p.y), p.c // groups * prod(p.window.kernel)
    alone = p.n * p.m * k * 4 <= _PARTS and (item > 2 or places % lanes == 0)
    straight = alone and p.window._replace(dilation=(1, 1)) == _ONE
    of_columns = 0 if straight else p.c * prod(p.window.kernel) * _rounded(places, lanes) * item
    chunks, tiles = _chunks(p, of_columns + (0 if alone else p.m * places * item)), groups * -(-m // 64) * -(-k // 64)
    parts = 0
    for first, count in chunks:
        x, g = ("x", first * p.c * prod(p.x) * item), ("g", first * p.m * places * item)
        # sums of float32 along all places would be those of few blocks
        cuts = count if alone else min(64, max(1, _BLOCKS // tiles)) if item == 4 else 1
        flat = 0 if alone else cuts * _rounded(-(-count * places // cuts), lanes)
        length, g_cut, g_row = (places, p.m * places, places) if alone else (flat // cuts, flat // cuts, flat)
        row, cut = (places, p.c * places) if straight else (flat, flat // cuts)
        if not straight:
            found = steps.columns(p.dtype, x, "columns", count, p.c, p.x, p.y, p.window, flat)
            row, cut = found if alone else (row, cut)
            x = "columns", 0
        if not alone:
            steps.columns(p.dtype, g, "gradient", count, p.m, p.y, p.y, _ONE, flat)
            g = "gradient", 0
        single = len(chunks) * cuts == 1
        one = Product(
            p.dtype, (cuts, groups, m, length), (g_cut, m * g_row, g_row, 1), (cuts, groups, length, k),
            (cut, k * row, 1, row), p.dtype if single else "float32",
        )  # fmt: skip
        to = ("dw", 0) if single else ("sums", parts * p.m * k * 4)
        # parts of images are joined with those of the others
        plan, more = parts_of(one) if alone and groups == 1 != cuts and p.dtype == "float32" else (product(one), cuts)
        steps.add(plan, {"a": g, "b": x, "c": to})
        parts += more
    if parts > 1:
        steps.space("sums", parts * p.m * k * 4)
        handle = kernel("gemm.wgmma.join", T=p.dtype, R=p.dtype, A="float32", ACT=None)
        at = {"parts": ("sums", 0), "c": ("dw", 0), **dict.fromkeys(("bias", "residual", "a_scales", "b_scales"))}
        steps.launches.append(
            launch(handle, JOIN, p.m * -(-k // 4), 1, at, rows=p.m, columns=k, splits=parts, alpha=float_bits(1.0))
        )
    return steps.plan()


def _weight_by_bands(p):
    """Columns of a row of the window at a time; None where they do not serve.

    Where windows go down by one row, the columns of the next row of the window are the same, a row further on: a third
    of the memory with windows of 3 x 3. Parts of all images and rows are joined in one launch. [64, 64, 3, 3] from
    4 x 64 x 56 x 56, H200: 45 us, by `_weight` 51.
    """
    (kernel_h, kernel_w), window, lanes = p.window.kernel, p.window, _lanes(p.dtype)
    size, tall = p.m * p.c * kernel_h * kernel_w * 4, (p.y[0] + (kernel_h - 1) * window.dilation[0], p.y[1])
    few = p.n * size <= _PARTS and p.n * p.c * kernel_w * prod(tall) * 4 <= _BYTES
    if p.dtype != "float32" or p.groups > 1 or window.stride[0] > 1 or kernel_h == 1 or p.y[1] % lanes or not few:
        return None
    steps, k, places = _Steps(), p.c * kernel_w, prod(p.y)
    row = Window((1, kernel_w), window.stride, window.padding, (1, window.dilation[1]))
    step, image = steps.columns(p.dtype, ("x", 0), "columns", p.n, p.c, p.x, tall, row)
    plan, parts = parts_of(Product(
        p.dtype, (p.n, kernel_h, p.m, places), (p.m * places, 0, places, 1), (p.n, kernel_h, places, k),
        (image, window.dilation[0] * p.y[1], 1, step), p.dtype,
    ))  # fmt: skip
    steps.add(plan, {"a": ("g", 0), "b": ("columns", 0), "c": ("sums", 0)})
    splits = parts // (p.n * kernel_h)
    steps.space("sums", p.n * splits * size)
    steps.launches.append(launch(
        kernel("conv.columns.join_bands", T=p.dtype), BANDS, p.m * k * kernel_h, 1, {"sums": ("sums", 0)},
        images=p.n, splits=splits, rows=p.m, channels=p.c, kernel_h=kernel_h, kernel_w=kernel_w,
    ))  # fmt: skip
    return steps.plan()


def _direct_weight(p):
    """The gradient of the weight in one launch, as the definition says."""
    c, places = p.c // p.groups, PLACES[p.dtype]
    handle = kernel("conv.direct.weight", T=p.dtype, A=_sums(p.dtype), N=places)
    return Plan((launch(
        handle, CONV_WEIGHT, p.m * c * prod(p.window.kernel), 1, images=p.n, c=p.c, m=p.m, groups=p.groups,
        vectors=-(-prod(p.y) // places), **_numbers(p.x, p.y, p.window),
    ),))  # fmt: skip


def _direct(p):
    """As the definition says, of any dims: a launch of as many images as numbers of 32 bits count."""
    numbers, sums = numbers_of(p), _sums(p.dtype)
    inputs, outputs, out, apart = (numbers[name] for name in ("inputs", "outputs", "out", "apart"))
    vectors, lines = -(-out[2] // _NEAR), p.n * p.groups * outputs * out[1]
    small = prod(numbers["kernel"]) <= _UNROLLED and lines * vectors < 1 << 31
    bias = {} if p.bias else {"bias": None}
    if len(p.x) == 2 and inputs == 1 and prod(apart) == 1 and small:
        return _each(p, numbers, lines, vectors, bias)
    shared = [gcd(*pair) for pair in zip(apart, numbers["gap"])]
    numbers["period"] = [a // same for a, same in zip(apart, shared)]
    numbers["leap"] = [gap // same for gap, same in zip(numbers["gap"], shared)]
    rows = next((few for few in _OUTPUTS if outputs <= few), _OUTPUTS[-1])
    bands, chunk = -(-outputs // rows), ROOM // rows // _bytes(sums)
    parts, places = prod(apart) * p.groups * bands, prod(-(-n // a) for n, a in zip(out, apart))
    planes, results = p.groups * inputs * prod(numbers["size"]), p.groups * outputs * prod(out)
    most, launches = max(1, ((1 << 31) - 1) // max(planes, results)), []
    for first in range(0, p.n, most):
        images = min(most, p.n - first)
        tiles = {n: -(-images * places // (THREADS * n)) for n in (4, 2, 1)}
        each = next((n for n in tiles if parts * tiles[n] >= _BLOCKS), 1)
        handle = kernel("conv.direct.sums", T=p.dtype, A=sums, M=rows, N=each, VOLUME=len(p.x) == 3)
        at = {name: (name, first * size * _bytes(p.dtype)) for name, size in (("x", planes), ("y", results))} | bias
        launches.append(launch(
            handle, CONV_SUMS, parts * tiles[each], 1, at, images=images, bands=bands, tiles=tiles[each], chunk=chunk,
            **numbers,
        ))  # fmt: skip
    return Plan(tuple(launches))


def _each(p, numbers, lines, vectors, bias):
    """The same of planes that each are made of one plane of x: so many lines of so many vectors."""
    constants = {"T": p.dtype, "A": _sums(p.dtype), "N": _NEAR}
    for letter, field in (("K", "kernel"), ("S", "stride"), ("G", "gap")):
        constants |= {f"{letter}_H": numbers[field][1], f"{letter}_W": numbers[field][2]}
    return Plan((launch(
        kernel("conv.direct.each", **constants), CONV_SUMS, lines * vectors, 1, bias, images=p.n, bands=1,
        tiles=vectors, chunk=0, period=(1, 1, 1), leap=(1, 1, 1), **numbers,
    ),))  # fmt: skip


def _fits_units(p, work):
    """Whether the definition goes to the matrix units: windows that step over no results, channels enough for these."""
    channels = p.c // p.groups, p.m // p.groups
    stepped = p.gradient == "input" and prod(p.window.stride) > 1
    some = min(channels) >= _LEAST and (len(p.x) == 3 or (p.groups > 1 and max(channels) <= _MOST))
    near = 16 * max(prod(p.x), prod(p.y)) < 1 << 31  # places of 16 planes, in 32 bits
    return p.gradient != "weight" and _bytes(p.dtype) == 2 and not stepped and work > _LITTLE and some and near


def _by_units(p):
    """The weights in the order of the matrix units, and a launch of as many images as numbers of 32 bits count."""
    numbers = numbers_of(p) | {"period": (1, 1, 1), "leap": (1, 1, 1)}
    inputs, outputs, out = (numbers[name] for name in ("inputs", "outputs", "out"))
    rows = next((few for few in (1, 2, 4) if outputs <= 16 * few), 4)
    bands, steps = -(-outputs // (16 * rows)), prod(p.window.kernel) * -(-inputs // DEPTH)
    parts, planes, results = p.groups * bands, p.groups * inputs * prod(numbers["size"]), p.groups * outputs * prod(out)
    most, words = max(1, ((1 << 31) - 1024) // max(planes, results)), parts * steps * 32 * rows
    numbers |= {"bands": bands, "chunk": steps}
    pack = kernel("conv.units.pack", R=rows)
    at = {"x": None, "bias": None, "y": ("packed", 0)}
    launches = [launch(pack, CONV_SUMS, words, 1, at, images=0, tiles=0, **numbers)]
    for first in range(0, p.n, most):
        images = min(most, p.n - first)
        tiles = {n: -(-images * prod(out) // (THREADS // 32 * 8 * n)) for n in (4, 2)}
        each = 4 if parts * tiles[4] >= _BLOCKS else 2
        whole = {"VOLUME": len(p.x) == 3, "WHOLE": inputs % DEPTH == 0}
        handle = kernel(f"conv.units.sums_{rows}_{each}", T=p.dtype, **whole)
        at = {name: (name, first * size * _bytes(p.dtype)) for name, size in (("x", planes), ("y", results))}
        at |= {"weight": ("packed", 0)} | ({} if p.bias else {"bias": None})
        launches.append(launch(
            handle, CONV_SUMS, parts * tiles[each], 1, at, images=images, tiles=tiles[each], **numbers
        ))  # fmt: skip
    return Plan(tuple(launches), (("packed", 16 * words),))


def plan(p):
    c, m = p.c // p.groups, p.m // p.groups
    if _fits_units(p, p.n * p.m * prod(p.y) * c * prod(p.window.kernel)):
        return _by_units(p)
    if len(p.x) == 3:
        return _direct(p)
    rows, k = {None: (m, c), "input": (c, m), "weight": (m, c)}[p.gradient]
    k *= prod(p.window.kernel)
    work = p.n * p.m * prod(p.y) * c * prod(p.window.kernel)
    small = p.groups > 1 and (rows < _FEW or k < 2 * _FEW)
    far = 16 * p.c * prod(p.x) >= 1 << 31 or 16 * p.m * prod(p.y) >= 1 << 31  # places beside one another, in 32 bits
    if p.gradient == "weight" and (work <= _LITTLE or small or far or p.dtype == "float64"):
        return _direct_weight(p)
    if work <= _LITTLE or small or far:
        return _direct(p)
    if p.gradient is None:
        return _forward(p)
    if p.gradient == "weight":
        return _weight_by_bands(p) or _weight(p)
    return _input(p) if p.window.stride == (1, 1) else _stepped_input(p)


PLANNERS = {Convolution: plan}
