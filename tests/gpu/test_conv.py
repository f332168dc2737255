"""Convolutions and pools of GPUs: which launches they are, and with `--device cuda` their results beside float64's."""

import ctypes
from math import prod

import numpy as np
import pytest
from infinicore.kernels.blocks.cuda import COLUMNS
from infinicore.kernels.build import jit, load, render
from infinicore.kernels.cuda.plans import conv as plans
from infinicore.kernels.cuda.plans import pooling
from infinicore.kernels.problems.conv import Convolution
from infinicore.kernels.problems.pooling import Pool
from infinicore.kernels.problems.window import Window

import infinicore as ic
from infinicore.nn import functional as F

from . import emulated
from .without import Gpu


def convolution(gradient, n, c, m, x, kernel, dtype="bfloat16", stride=1, pad=0, groups=1, bias=False):
    window = Window((kernel, kernel), (stride, stride), (pad, pad), (1, 1))
    y = tuple((size + 2 * pad - kernel) // stride + 1 for size in x)
    return Convolution(gradient, dtype, n, c, m, groups, x, y, window, bias)


def names(plan):
    return [one.kernel.removeprefix("conv.").partition("_")[0] for one in plan.launches]


@pytest.mark.parametrize(
    "problem, found",
    [
        (convolution(None, 32, 64, 64, (56, 56), 3, pad=1), ["columns.columns", "gemm.wgmma.nn"]),
        (
            convolution(None, 32, 64, 64, (56, 56), 3, pad=1, bias=True),
            ["columns.bias", "columns.columns", "gemm.wgmma.nn"],
        ),
        (convolution(None, 32, 256, 64, (56, 56), 1), ["gemm.wgmma.nn"]),
        (convolution(None, 32, 256, 64, (7, 7), 1), ["columns.columns", "gemm.wgmma.nn"]),  # 98 bytes a plane
        (convolution("input", 32, 256, 64, (56, 56), 1), ["gemm.wgmma.tn"]),
        (
            convolution("input", 32, 64, 64, (56, 56), 3, pad=1),
            ["array.copy.gathered", "columns.columns", "gemm.wgmma.nn"],
        ),
        (convolution("input", 32, 64, 64, (56, 56), 3, pad=1, stride=2), ["gemm.wgmma.tn", "columns.fold"]),
        (
            convolution("weight", 32, 64, 64, (56, 56), 3, pad=1),
            ["columns.columns", "gemm.wgmma.nt", "gemm.wgmma.join"],  # a product for each image
        ),
        (convolution("weight", 32, 256, 64, (56, 56), 1), ["gemm.wgmma.nt", "gemm.wgmma.join"]),
        (
            convolution("weight", 32, 256, 64, (7, 7), 3, pad=1),  # 98 bytes a plane: all in one row
            ["columns.columns", "columns.columns", "gemm.wgmma.nt"],
        ),
        (convolution(None, 32, 64, 64, (56, 56), 3, pad=1, groups=64), ["direct.each"]),
        (convolution("input", 32, 64, 64, (56, 56), 3, pad=1, groups=64), ["direct.each"]),
        (convolution("input", 32, 64, 64, (56, 56), 3, stride=2, groups=64), ["direct.sums"]),
        (convolution("weight", 32, 64, 64, (56, 56), 3, groups=64), ["direct.weight"]),
        (convolution(None, 1, 3, 8, (12, 12), 3), ["direct.sums"]),
        (
            convolution(None, 1, 16, 16, (56, 56), 3, pad=1)._replace(
                x=(16, 56, 56), y=(16, 56, 56), window=Window((3,) * 3, (1,) * 3, (1,) * 3, (1,) * 3)
            ),
            ["units.pack", "units.sums"],
        ),
        (
            convolution(None, 1, 16, 16, (56, 56), 3, pad=1, dtype="float32")._replace(
                x=(16, 56, 56), y=(16, 56, 56), window=Window((3,) * 3, (1,) * 3, (1,) * 3, (1,) * 3)
            ),
            ["direct.sums"],
        ),
        (convolution(None, 32, 256, 256, (28, 28), 3, pad=1, groups=32), ["units.pack", "units.sums"]),
        (
            convolution("input", 32, 256, 256, (28, 28), 3, pad=1, stride=2, groups=32),
            ["columns.columns", "gemm.wgmma.tn", "columns.fold"],
        ),
    ],
)
def test_launches(problem, found):
    with load.on(Gpu()):
        assert names(plans.plan(problem)) == found


def test_images_in_turn_share_the_columns(monkeypatch):
    problem = convolution(None, 5, 32, 64, (28, 28), 3, pad=1)
    image = 32 * 9 * 28 * 28 * 2
    monkeypatch.setattr(plans, "_BYTES", 2 * image)
    with load.on(Gpu()):
        plan = plans.plan(problem)
        assert names(plan) == ["columns.columns", "gemm.wgmma.nn"] * 3 and dict(plan.scratch) == {"columns": 2 * image}
        read = [offset for one in plan.launches[::2] for _, name, offset in one.places if name == "x"]
        written = [offset for one in plan.launches[1::2] for _, name, offset in one.places if name == "y"]
        assert read == [2 * i * 32 * 28 * 28 * 2 for i in range(3)] and written == [2 * offset for offset in read]
        weight = plans.plan(problem._replace(gradient="weight"))
    assert names(weight)[-1] == "gemm.wgmma.join" and "sums" in dict(weight.scratch)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    "images, channels, x, kernel, stride, pad, gap",
    [
        (3, 2, (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
        (2, 3, (9, 4), (3, 2), (2, 1), (2, 1), (1, 2)),
        (5, 1, (2, 1), (2, 1), (1, 1), (1, 0), (1, 1)),
        (1, 2, (1, 19), (1, 5), (1, 3), (0, 2), (1, 1)),
        (2, 2, (6, 5), (3, 3), (1, 1), (-1, -1), (-1, -1)),
    ],
)
def test_columns_are_those_of_the_padded_input(dtype, flat, images, channels, x, kernel, stride, pad, gap, rng):
    """The kernel is a function of its block like any other, so the CPU can run it."""
    source = rng.integers(1, 60000, (images, channels, *x)).astype(dtype)
    if gap[0] < 0:
        y = x
    else:
        y = tuple((n + 2 * p - g * (k - 1) - 1) // s + 1 for n, k, s, p, g in zip(x, kernel, stride, pad, gap))
    places, lanes, taps = prod(y), 16 // source.itemsize, prod(kernel)
    row = -(-(images * places if flat else places) // lanes) * lanes
    expected = np.zeros((channels, taps, images, places), dtype)
    for a, b, i, j in np.ndindex(*kernel, *y):
        at = i * stride[0] - pad[0] + a * gap[0], j * stride[1] - pad[1] + b * gap[1]
        if 0 <= at[0] < x[0] and 0 <= at[1] < x[1]:
            expected[:, a * kernel[1] + b, :, i * y[1] + j] = source[:, :, at[0], at[1]].T
    shape = (channels * taps, row) if flat else (images, channels * taps, row)
    found = np.full(prod(shape) + lanes, 1, dtype)
    found = found[(-found.ctypes.data % 16) // source.itemsize :][: prod(shape)]
    window = {"kernel": kernel, "stride": stride, "pad": pad, "gap": gap, "x": x, "y": y}
    per = plans.PLACES[{2: "bfloat16", 4: "float32", 8: "float64"}[source.itemsize]]
    vectors = row // per if flat else images * row // per
    block = COLUMNS.numbers(
        images=images, vectors=vectors, span=places if flat else row, row_step=row,
        image_step=places if flat else channels * taps * row, x_image=channels * prod(x),
        **{f"{name}_{d}": v for name, pair in window.items() for d, v in zip("hw", pair)},
    )  # fmt: skip
    block[COLUMNS.x], block[COLUMNS.y] = source.ctypes.data, found.ctypes.data
    block = np.array(block)
    types = {"E": np.dtype(dtype).name, "N": per}
    handle = jit.load_kernel("columns", render.stub("conv.columns.columns", types, "cuda"))
    run = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(handle & ~1)
    assert run(block.ctypes.data, 0, channels * vectors) == 0
    if flat:
        expected = expected.reshape(channels * taps, images * places)
    else:
        expected = expected.transpose(2, 0, 1, 3).reshape(images, channels * taps, places)
    found = found.reshape(shape)
    np.testing.assert_array_equal(found[..., : expected.shape[-1]], expected)
    assert not found[..., expected.shape[-1] :].any()


def float64_of(run, arrays, g):
    """The result of `run` in float64 on the CPU, and the gradients of `arrays` where that of the result is g(shape)."""
    inputs = [ic.from_numpy(a.astype(np.float64)).requires_grad_(True) for a in arrays]
    y = run(*inputs)
    g = g(y.shape)
    y.backward(ic.from_numpy(g.astype(np.float64)))
    return y.detach().numpy(), g, [t.grad.numpy() for t in inputs]


# images, channels, results, groups, size, window, steps, padding, gaps
_WHOLE = {
    "odd": (2, 16, 24, 1, (17, 23), (3, 3), (1, 1), (1, 1), (1, 1)),
    "bands": (2, 16, 24, 1, (17, 12), (3, 3), (1, 1), (1, 1), (1, 1)),
    "bands, gaps, steps along": (3, 6, 10, 1, (19, 15), (2, 3), (1, 2), (2, 1), (3, 1)),
    "odd channels, steps": (2, 9, 10, 1, (29, 17), (3, 2), (2, 1), (2, 1), (1, 1)),
    "few places": (3, 16, 24, 1, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    "one element": (3, 16, 24, 1, (8, 16), (1, 1), (1, 1), (0, 0), (1, 1)),
    "one element, steps": (2, 16, 16, 1, (13, 28), (1, 1), (2, 2), (0, 0), (1, 1)),
    "groups, gaps": (2, 24, 48, 3, (20, 18), (3, 3), (1, 1), (2, 2), (2, 2)),
    "steps and gaps share a factor": (2, 16, 24, 1, (20, 18), (4, 3), (6, 2), (1, 0), (4, 3)),
    "each by itself": (2, 16, 16, 16, (11, 15), (3, 3), (1, 1), (1, 1), (1, 1)),
    "each by itself, steps": (2, 16, 32, 16, (12, 15), (3, 3), (3, 2), (1, 1), (2, 1)),
    "little": (1, 3, 4, 1, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
}


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bounds", [{}, {"_BYTES": 30_000}, {"_PARTS": 0}], ids=["whole", "in turn", "in one row"])
@pytest.mark.parametrize("case", _WHOLE)
def test_whole_plans_on_the_host(case, bounds, dtype, rng, monkeypatch):
    """All launches of a plan but products and copies, which are NumPy's here, read and write what they should."""
    n, c, m, groups, x, kernel, stride, padding, dilation = _WHOLE[case]
    for name, value in ({} if case == "little" else {"_LITTLE": 0} | bounds).items():
        monkeypatch.setattr(plans, name, value)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in ((n, c, *x), (m, c // groups, *kernel), (m,))]
    y, g, (dx, dw, _) = float64_of(
        lambda *t: F.conv2d(*t, stride=stride, padding=padding, dilation=dilation, groups=groups),
        arrays, lambda shape: rng.standard_normal(shape).astype(dtype),
    )  # fmt: skip
    window = Window(kernel, stride, padding, dilation)
    image, weight, bias = arrays
    for gradient, expected, into, tensors in (
        (None, y, "y", {"x": image, "weight": weight, "bias": bias}),
        ("input", dx, "y", {"x": g, "weight": weight}),
        ("weight", dw, "dw", {"x": image, "g": g}),
    ):
        problem = Convolution(gradient, dtype, n, c, m, groups, x, y.shape[2:], window, gradient is None)
        found = np.full(expected.shape, np.nan, dtype)
        emulated.run(emulated.plan_of(monkeypatch, plans.plan, problem), **tensors, **{into: found})
        assert np.abs(found - expected).max() <= _HOST[dtype] * np.abs(expected).max()


# images, channels, results, groups, size, window, steps, padding, gaps
_VOLUMES = {
    "odd": (2, 3, 9, 1, (5, 6, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "steps": (2, 6, 4, 2, (7, 9, 8), (2, 3, 2), (2, 3, 2), (1, 0, 1), (1, 1, 1)),
    "steps and gaps share a factor": (1, 2, 3, 1, (9, 12, 10), (3, 2, 3), (4, 6, 2), (2, 1, 0), (2, 4, 3)),
    "each by itself": (2, 5, 5, 5, (4, 5, 6), (2, 2, 1), (1, 1, 1), (0, 1, 0), (1, 2, 1)),
    "steps past the window": (2, 3, 2, 1, (9, 9, 9), (2, 1, 2), (3, 2, 4), (0, 0, 1), (1, 1, 1)),
}


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("room", [None, 5 * 32])
@pytest.mark.parametrize("case", _VOLUMES)
def test_volumes_on_the_host(case, room, dtype, rng, monkeypatch):
    """All weights at once, and a few (tap, channel) at a time."""
    n, c, m, groups, x, kernel, stride, padding, dilation = _VOLUMES[case]
    if room is not None:
        monkeypatch.setattr(plans, "ROOM", room)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in ((n, c, *x), (m, c // groups, *kernel), (m,))]
    y, g, (dx, _, _) = float64_of(
        lambda *t: F.conv3d(*t, stride=stride, padding=padding, dilation=dilation, groups=groups),
        arrays, lambda shape: rng.standard_normal(shape).astype(dtype),
    )  # fmt: skip
    image, weight, bias = arrays
    for gradient, expected, tensors in (
        (None, y, {"x": image, "weight": weight, "bias": bias}),
        ("input", dx, {"x": g, "weight": weight}),
    ):
        window = Window(kernel, stride, padding, dilation)
        problem = Convolution(gradient, dtype, n, c, m, groups, x, y.shape[2:], window, gradient is None)
        found = np.full(expected.shape, np.nan, dtype)
        emulated.run(emulated.plan_of(monkeypatch, plans.plan, problem), **tensors, y=found)
        assert np.abs(found - expected).max() <= _HOST[dtype] * np.abs(expected).max()


_HOST = {"float16": 1e-3, "float32": 3e-6}


def of_float64(run, *arrays, dtype, device):
    """(results and gradients of `run` in `dtype` there, those in float64 on the CPU)."""
    found = []
    for kind, place in ((dtype, device), (ic.float64, ic.device("cpu"))):
        rounded = [ic.from_numpy(a).to(dtype).to(kind).to(place).requires_grad_(True) for a in arrays]
        y = run(*rounded)
        weight = ic.from_numpy(np.random.default_rng(5).standard_normal(y.shape)).to(dtype).to(kind).to(place)
        y.backward(weight)
        found.append([t.detach().cpu().to(ic.float64).numpy() for t in (y, *(x.grad for x in rounded))])
    return found


_CLOSE = {ic.bfloat16: 8e-3, ic.float16: 1e-3, ic.float32: 3e-6, ic.float64: 1e-13}
_CONVOLUTIONS = {
    "odd": ((3, 20, 17, 23), (24, 20, 3, 3), {"padding": 1}),
    "steps": ((2, 33, 29, 17), (40, 33, 3, 2), {"padding": (2, 1), "stride": (2, 1)}),
    "few places": ((5, 64, 7, 7), (72, 64, 3, 3), {"padding": 1}),
    "one element": ((2, 64, 31, 14), (64, 64, 1, 1), {}),
    "one element, steps": ((2, 64, 60, 28), (64, 64, 1, 1), {"stride": 2}),
    "gaps, groups": ((3, 24, 40, 38), (48, 8, 3, 3), {"dilation": 2, "padding": 2, "groups": 3}),
    "each by itself": ((2, 64, 33, 62), (64, 1, 3, 3), {"padding": 1, "groups": 64}),
    "each by itself, steps": ((2, 64, 33, 62), (128, 1, 3, 3), {"padding": 1, "groups": 64, "stride": 2}),
    "rows": ((2, 48, 301), (40, 48, 5), {"padding": 2}),
    "volumes": ((2, 16, 6, 9, 11), (24, 16, 3, 3, 3), {"padding": 1}),
    "volumes of many channels": ((2, 16, 6, 9, 11), (160, 16, 3, 3, 3), {"padding": 1}),
    "volumes, steps": ((2, 6, 9, 10, 35), (10, 3, 2, 3, 3), {"padding": (0, 1, 2), "stride": (2, 1, 3), "groups": 2}),
    "small": ((1, 3, 9, 9), (4, 3, 3, 3), {}),
}


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", _CLOSE, ids=lambda d: d.name)
@pytest.mark.parametrize("case", _CONVOLUTIONS)
def test_convolutions_are_those_of_float64(case, dtype, there, rng):
    x, w, options = _CONVOLUTIONS[case]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(x) - 3]
    arrays = rng.standard_normal(x), rng.standard_normal(w) / 8, rng.standard_normal(w[0])
    found, expected = of_float64(lambda *t: convolve(*t, **options), *arrays, dtype=dtype, device=there)
    for a, b in zip(found, expected):
        assert np.abs(a - b).max() <= _CLOSE[dtype] * np.abs(b).max()


def test_channels_last_has_the_same_results(there, rng):
    x, w = (
        rng.standard_normal((2, 32, 20, 20)).astype(np.float32),
        rng.standard_normal((32, 32, 3, 3)).astype(np.float32),
    )
    x, w = ic.from_numpy(x).to(there), ic.from_numpy(w).to(there)
    turned = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    np.testing.assert_array_equal(F.conv2d(turned, w, padding=1).cpu().numpy(), F.conv2d(x, w, padding=1).cpu().numpy())


_POOLS = {
    "maxima": (lambda x: F.max_pool2d(x, 3, 2, 1), (3, 5, 37, 41)),
    "pairs": (lambda x: F.max_pool2d(x, 2), (3, 5, 36, 41)),
    "gaps": (lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2)), (2, 3, 19, 40)),
    "maxima of volumes": (lambda x: F.max_pool3d(x, 3, 2, 1), (2, 3, 6, 7, 9)),
    "maxima of cells": (lambda x: F.adaptive_max_pool2d(x, (5, 7)), (2, 3, 19, 40)),
    "means": (lambda x: F.avg_pool2d(x, 3, 2, 1), (3, 5, 37, 41)),
    "means without padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (3, 5, 36, 42)),
    "means of volumes": (lambda x: F.avg_pool3d(x, (3, 2, 5), 2, (1, 1, 2)), (2, 3, 6, 7, 9)),
    "means of even cells": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (2, 3, 16, 40)),
    "means of cells": (lambda x: F.adaptive_avg_pool2d(x, (5, 50)), (2, 3, 19, 40)),
    "many cells": (lambda x: F.adaptive_max_pool2d(x, 30), (2, 3, 45, 40)),
}


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", [ic.bfloat16, ic.float32, ic.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("case", _POOLS)
def test_pools_are_those_of_float64(case, dtype, there, rng):
    run, shape = _POOLS[case]
    values = rng.permutation(prod(shape)).reshape(shape) / 64.0  # maxima without ties, as far as a dtype can tell
    found, expected = of_float64(run, values, dtype=dtype, device=there)
    for a, b in zip(found, expected):
        assert np.abs(a - b).max() <= _CLOSE[dtype] * np.abs(b).max()


_WINDOWS = {
    "steps": ((37, 41), (3, 3), (2, 2), (1, 1), (1, 1)),
    "pairs": ((36, 41), (2, 2), (2, 2), (0, 0), (1, 1)),
    "steps past the window": ((12, 13), (2, 3), (3, 4), (0, 1), (1, 1)),
    "gaps": ((19, 40), (3, 2), (2, 1), (1, 0), (1, 2)),
    "volumes": ((6, 7, 9), (3, 2, 5), (2, 2, 2), (1, 1, 2), (1, 1, 1)),
}


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", _WINDOWS)
def test_pools_on_the_host(case, dtype, rng, monkeypatch):
    """The kernels of windows are functions of their block, so the CPU can run them."""
    x, kernel, stride, padding, dilation = _WINDOWS[case]
    window, planes = Window(kernel, stride, padding, dilation), 5
    values = (rng.permutation(planes * prod(x)).reshape(1, planes, *x) / planes / prod(x)).astype(dtype)
    maxima, means = (F.max_pool2d, F.avg_pool2d) if len(x) == 2 else (F.max_pool3d, F.avg_pool3d)

    def check(what, run, **options):
        y, g, (dx,) = float64_of(run, [values], lambda shape: rng.standard_normal(shape).astype(dtype))
        places = None if what == "mean" else "uint8"
        problem = Pool(what, dtype, places, planes, x, y.shape[2:], window, **options)
        found, dense = np.full(y.shape, np.nan, dtype), np.full(values.shape, np.nan, dtype)
        chosen = {} if places is None else {"chosen": np.full(y.shape, 99, places)}
        emulated.run(emulated.plan_of(monkeypatch, pooling.pool, problem), x=values, y=found, **chosen)
        back = problem._replace(what=f"{what}_backward")
        emulated.run(emulated.plan_of(monkeypatch, pooling.pool, back), x=dense, y=g, **chosen)
        for a, b in ((found, y), (dense, dx)):
            assert np.abs(a - b).max() <= _HOST[dtype] * np.abs(b).max()

    check("max", lambda t: maxima(t, kernel, stride, padding, dilation))
    if set(dilation) == {1}:
        check("mean", lambda t: means(t, kernel, stride, padding, count_include_pad=False))
        check("mean", lambda t: means(t, kernel, stride, padding, count_include_pad=True), counted=True)


def test_nan_is_the_maximum(there):
    x = ic.ones(1, 1, 6, 6)
    x[0, 0, 3, 2] = float("nan")
    y, places = F.max_pool2d(x.to(there), 3, 3, return_indices=True)
    assert np.isnan(y.cpu().numpy()[0, 0]).tolist() == [[False, False], [True, False]]
    assert places.cpu().numpy()[0, 0].tolist() == [[0, 3], [20, 21]]


def test_a_pool_takes_a_thread_for_four_results():
    window = Window((3, 3), (2, 2), (1, 1), (1, 1))
    with load.on(Gpu()):
        (one,) = pooling.pool(Pool("max", "bfloat16", "uint8", 6, (9, 9), (5, 5), window)).launches
        (back,) = pooling.pool(Pool("max_backward", "bfloat16", "uint8", 6, (9, 9), (5, 5), window)).launches
    assert (one.n, back.n) == (6 * 7, 6 * 21)
