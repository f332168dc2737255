"""Pools and convolutions, thread by thread on the host (`threads.py`)."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import conv as convolutions

from infinicore.nn import functional as F

from .compared import TOLERANCE, equal, with_gradients


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_means_of_even_cells(device, rng, dtype):
    x = rng.standard_normal((2, 3, 8, 10))
    pool = with_gradients(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), dtype, 1)
    equal(device, pool, x, tolerance=TOLERANCE[dtype])
    assert any(name.startswith("conv.windows.mean_pool-") for name in device.backend.kernels.used)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "float16"])
@pytest.mark.parametrize(
    "shape, cells",
    [((2, 3, 301), 4), ((5, 130), 4), ((2, 1100), 3), ((3, 20, 23), (2, 3)), ((1, 2, 7, 9, 11), (2, 1, 2))],
)
def test_maxima_of_long_cells(device, rng, shape, cells, dtype):
    """Lanes of a warp for each; equal elements, of which the first wins, and NaN."""
    x, ndim = rng.integers(-5, 6, shape).astype("f8"), 1 if isinstance(cells, int) else len(cells)
    x[0].flat[::150] = np.nan
    x[-1] = rng.integers(-5, 6, shape[1:])
    pool = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}[ndim]
    equal(device, lambda x: pool(x.to(dtype=dtype), cells, True), x, tolerance=0.0)
    assert any(name.startswith("conv.windows.adaptive_max_long") for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype, groups", [("float32", 1), ("bfloat16", 2)])
def test_convolutions_of_few_channels(device, rng, dtype, groups, monkeypatch):
    """Of volumes and planes, their results and gradients of what they are of; weights that come in parts."""
    monkeypatch.setattr(convolutions, "ROOM", 40 * 32)
    x, w = rng.standard_normal((2, 4, 3, 6, 17)), rng.standard_normal((10, 4 // groups, 2, 3, 3))

    def run(x, w):
        y = F.conv3d(x, w, None, (1, 2, 1), (0, 1, 2), groups=groups)
        turned = w[:4].transpose(0, 1).contiguous() if groups == 1 else w[:4]
        z = F.conv_transpose3d(x, turned, None, 2, 1, groups=groups)
        plane = F.conv2d(x[:, :, 0], w[:, :, 0], w[:, 0, 0, 0, 0], padding=1, groups=groups)
        return y.sum() + (z * z).sum() + plane.sum(), y, z, plane

    def with_gradient(x, w):
        x, w = x.to(dtype=dtype).requires_grad_(True), w.to(dtype=dtype)
        total, *found = run(x, w)
        total.backward()
        return (*(t.detach() for t in found), x.grad)

    equal(device, with_gradient, x, w, tolerance=4 * TOLERANCE[dtype])
    assert any("conv.direct.sums" in name for name in device.backend.kernels.used)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("channels, results, groups", [(16, 8, 1), (11, 40, 1), (20, 18, 2)])
def test_convolutions_on_matrix_units(device, rng, dtype, channels, results, groups, monkeypatch):
    """Of volumes and planes of groups, and gradients of what they are of; what is outside of x counts for nothing."""
    monkeypatch.setattr(convolutions, "_LITTLE", 0)
    monkeypatch.setattr(convolutions, "_BLOCKS", 1 if dtype == "bfloat16" else 264)  # 32 places of a warp, or 16
    x = rng.standard_normal((2, channels, 2, 5, 6))
    w = rng.standard_normal((results, channels // groups, 2, 3, 2))
    bias = rng.standard_normal(results)

    def run(x, w, bias):
        x, w, bias = x.to(dtype=dtype).requires_grad_(True), w.to(dtype=dtype), bias.to(dtype=dtype)
        y = F.conv3d(x, w, bias, (1, 2, 1), (0, 1, 2), (1, 1, 2), groups=groups)
        z = F.conv3d(x, w, None, 1, 1, groups=groups)
        z.sum().backward()
        planes = [F.conv2d(x.detach()[:, :, 0], w[:, :, 0], bias, padding=1, groups=groups)] if groups > 1 else []
        return y.detach(), z.detach(), x.grad, *planes

    equal(device, run, x, w, bias, tolerance=4 * TOLERANCE["bfloat16"])
    assert sum("conv.units.sums" in name for name in device.backend.kernels.used) == (3 if groups == 1 else 4)


def test_convolutions_on_matrix_units_leave_out_what_is_not_there(device, rng):
    """NaN behind the last channel, of the next group and of the next image, is none of the results'."""
    x, w = rng.standard_normal((2, 22, 2, 4, 4)), rng.standard_normal((22, 11, 1, 3, 3))
    x[0, 11:], x[1, 0] = np.nan, np.inf

    def run(x, w):
        return F.conv3d(x.to(dtype="bfloat16"), w.to(dtype="bfloat16"), padding=(0, 1, 1), groups=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "_LITTLE", 0)
        equal(device, run, x, w, tolerance=4 * TOLERANCE["bfloat16"])
    assert any("conv.units.sums" in name for name in device.backend.kernels.used)
