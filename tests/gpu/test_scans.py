"""Running sums, products and extremes of rows and columns, thread by thread on the host (`threads.py`)."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import scan as plans

import infinicore as ic

from .compared import TOLERANCE, equal, with_gradients


@pytest.mark.in_turn("shape")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(3, 17), (40, 1), (2, 200), (2, 5001), (3, 0)])
def test_running_sums_of_rows(device, rng, shape, dtype):
    """Of teams of few threads, of a warp, of a block, and in parts; also from the end."""
    x = rng.integers(0, 9, shape).astype("f8") if dtype in ("int32", "uint8", "bool") else rng.standard_normal(shape)

    def run(x):
        x = x.to(dtype=dtype)
        return ic.cumsum(x, 1), ic.cumsum(x, 1, reverse=True)

    equal(device, run, x, tolerance=TOLERANCE.get(dtype, 0.0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_running_sums_of_long_rows(device, rng, dtype, monkeypatch):
    """A block for each row, which goes through it part after part."""
    monkeypatch.setattr(plans, "_BUSY", 1)
    monkeypatch.setattr(device.backend, "plans", {})
    x = np.round(rng.standard_normal((2, 9001)) * 9)
    equal(device, lambda x: ic.cumsum(x.to(dtype=dtype), -1), x, tolerance=TOLERANCE.get(dtype, 0.0))
    assert any(f"cumsum-blocks-{dtype}" in name for name in device.backend.kernels.used)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int16"])
@pytest.mark.parametrize("shape", [(2, 70, 33), (300, 64), (5, 3000), (1, 40, 1)])
def test_running_sums_of_columns(device, rng, shape, dtype):
    x = np.round(rng.standard_normal(shape) * 9)

    def run(x):
        x, dim = x.to(dtype=dtype), len(shape) - 2
        return ic.cumsum(x, dim), ic.cumsum(x, dim, reverse=True), ic.cumsum(x[..., 1:], dim)

    equal(device, run, x, tolerance=TOLERANCE.get(dtype, 0.0))


@pytest.mark.parametrize("start", [0, 1, 3])
def test_running_sums_of_rows_that_begin_anywhere(device, rng, start):
    """Rows apart, and results that lie otherwise than what they are made of."""
    x = np.round(rng.standard_normal((3, 4 * 37)) * 9)

    def run(x):
        part = x.to(dtype=ic.float32)[:, start : start + 100]
        out = ic.zeros(301, dtype=ic.float32, device=x.device)[1:].reshape(3, 100)
        return ic.cumsum(part, 1), ic.cumsum(part, 1, out=out), ic.cumsum(part.contiguous(), 1, out=out.clone()), out

    equal(device, run, x)


@pytest.mark.parametrize("function", ["cumprod", "logcumsumexp"])
def test_other_scans(device, rng, function):
    x = 1 + rng.standard_normal((3, 300)) / 16
    x[0, :3] = -np.inf if function == "logcumsumexp" else 0.0
    x[1, 200], x[2, 5] = np.nan, np.inf

    def run(x):
        x = x.to(dtype=ic.float32)
        return getattr(ic, function)(x, 1), getattr(ic, function)(x, 0)

    equal(device, run, x, tolerance=1e-5)
    equal(device, with_gradients(lambda x: getattr(ic, function)(x, 1), "float32", 1), x[:, 10:150][:1], tolerance=1e-4)


@pytest.mark.in_turn("shape", "dim")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "int8", "uint32", "int64", "bool"])
@pytest.mark.parametrize("shape, dim", [((3, 17), 1), ((2, 300), 1), ((1, 5001), 1), ((2, 70, 5), 1), ((3, 0), 1)])
def test_running_extremes(device, rng, shape, dim, dtype):
    """Of equal elements the last one, NaN above all."""
    x = np.round(rng.standard_normal(shape) * 5)
    if dtype in TOLERANCE:
        x.flat[5::97] = np.nan
        x.flat[3::89] = -np.inf
        x[..., :2] = np.inf if dtype == "float64" else -np.inf
    x = np.abs(x) if dtype == "uint32" else x
    x = x > 2 if dtype == "bool" else x

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.cummax(x, dim), *ic.cummin(x, dim)

    equal(device, run, x)
