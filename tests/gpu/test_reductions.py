"""Sums, extremes and moments, in one launch or in parts, and products that are sums, thread by thread."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import gemm as products
from infinicore.kernels.cuda.plans import reduce as reductions

import infinicore as ic
from infinicore.nn import functional as F

from .compared import TOLERANCE, equal


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_variance_of_columns(device, rng, dtype):
    x = rng.standard_normal((70, 37)) * 3 + 20

    def run(x):
        x = x.to(dtype=dtype)
        rows = *ic.var_mean(x, 1), *ic.std_mean(x[:9], 1)
        some = *ic.var_mean(x, 0), ic.var(x[1:7].reshape(2, 3, 37), 1), ic.var(x, 0, correction=2)
        return *some, *ic.std_mean(x[:5], 0, correction=0), *rows

    equal(device, run, x, tolerance=TOLERANCE[dtype])
    assert any(name.startswith(("moments-columns", "_moments-columns")) for name in device.backend.kernels.used)


@pytest.mark.in_turn("size")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32", "uint8", "bool"])
@pytest.mark.parametrize("size", [8, 31, 100, 250])
def test_reductions_of_short_rows(device, rng, size, dtype):
    """Which a few threads hold, with vectors and without."""
    x = rng.standard_normal((9, size)) if dtype in TOLERANCE else rng.integers(0, 9, (9, size)).astype("f8")
    x[3, size // 2 :] = 0
    if dtype in TOLERANCE:
        x[5, -1] = np.nan

    def run(x):
        x = x.to(dtype=dtype)
        return ic.sum(x, 1), ic.amax(x, 1), ic.sum(x[:, 1:], 1)

    equal(device, run, x, tolerance=TOLERANCE.get(dtype, 0.0))
    assert any(name.startswith("amax-short") for name in device.backend.kernels.used)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(size, dtype) for dtype in ("float32", "bfloat16") for size in (300, 361, 768, 1001, 1024, 2100, 5000)]
    + [(size, dtype) for dtype in ("float64", "int32") for size in (361, 2100)],
)
def test_reductions_of_longer_rows(device, rng, size, dtype):
    """Of a part of a warp, a warp, and above 4096 elements a block; all at once or in turns, at any beginning."""
    x = rng.standard_normal((9, size)) if "float" in dtype else rng.integers(0, 9, (9, size)).astype("f8")
    if "float" in dtype:
        x[5, -1] = np.nan

    def run(x):
        x = x.to(dtype=dtype)
        return ic.sum(x, 1), ic.amax(x, 1), ic.sum(x[:, 1:], 1), ic.amax(x[:, 3:-2], 1)

    equal(device, run, x, tolerance=TOLERANCE.get(dtype, 0.0))
    assert any(name.startswith(f"sum-held-{dtype}") for name in device.backend.kernels.used)


@pytest.mark.in_turn("shape", "dim")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "int8", "uint32", "int64", "bool"])
@pytest.mark.parametrize("shape, dim", [((3, 37), 1), ((2, 700), 1), ((40, 37), 0), ((2, 70, 9), 1), ((9, 5), 0)])
def test_places_of_extremes(device, rng, shape, dim, dtype):
    """Of rows and columns, with vectors and without, and of all elements; the first of equal ones, NaN above all."""
    x = np.round(rng.standard_normal(shape) * 3)
    if dtype in TOLERANCE:
        x.flat[5::97] = np.nan
        x[0] = np.inf
        x[-1] = -np.inf
    x = np.abs(x) if dtype == "uint32" else x > 2 if dtype == "bool" else x

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.max(x, dim), *ic.min(x, dim), ic.argmax(x[..., 1:], dim), ic.argmin(x), ic.argmax(x)

    equal(device, run, x)
    assert any(name.startswith("reduce.position.max_") for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_places_of_extremes_in_parts(device, rng, dtype, monkeypatch):
    """Parts of rows and of columns, whose extremes another launch joins."""
    monkeypatch.setattr(reductions, "_PART", 256)
    x = np.round(rng.standard_normal((300, 40)) * 9)
    if dtype != "int16":
        x[130, 7], x[17, 8:] = np.nan, -np.inf

    def run(x):
        x = x.to(dtype=dtype)
        rows = x.reshape(3, 4000)[:, 1:]
        return *ic.max(x, 0), *ic.min(x, 0), ic.argmax(x), *ic.max(rows, 1), *ic.min(rows, 1), ic.argmin(x.T, 0)

    equal(device, run, x)
    used = device.backend.kernels.used
    assert any("max_join" in name and name.endswith("-256") for name in used)
    assert any("min_join" in name and name.endswith("-1") for name in used)


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32"])
def test_sums_of_diagonals(device, rng, dtype):
    """A block for all of it; in parts of few elements that lie far apart, the last one shorter; too short for them."""
    x = np.round(rng.standard_normal((301, 301)) * 9)
    equal(device, lambda x: tuple(ic.trace(x.to(dtype=dtype)[:n]) for n in (301, 45, 9)), x, tolerance=0.0)
    for kind in ("sum-apart", "sum-outer"):
        assert any(name.startswith(kind) for name in device.backend.kernels.used)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(300, 301), (700, 2, 3), (9001, 1, 2)])
def test_few_results_whose_elements_lie_apart(device, rng, dtype, shape):
    """A block for each, whose threads have one element, some of them, or several in turns; states of several parts."""
    x = np.round(rng.standard_normal(shape) * 9)
    x[1, 1 % shape[1]] = np.nan if dtype in TOLERANCE else 3

    def run(x):
        x = x.to(dtype=dtype)
        found = x.diagonal() if len(shape) == 2 else x.transpose(0, 2)[::2, 0]
        found = found[1:] if len(shape) == 2 else found
        means = ic.var_mean(found, -1) if dtype in TOLERANCE else ()
        return found.sum(-1), found.amax(-1), (found != 0).any(-1), *means

    equal(device, run, x, tolerance=TOLERANCE.get(dtype, 0.0))
    assert any("apart" in name for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_matrix_times_a_vector(device, rng, dtype):
    """In four steps at once and those that are left, beside vectors, and with what is added."""
    x, y, z = rng.standard_normal((5, 6200)), rng.standard_normal(6200), rng.standard_normal(5)

    def run(x, y, z):
        x, y, z = x.to(dtype=dtype), y.to(dtype=dtype), z.to(dtype=dtype)
        beside = ic.mv(x[:, 1:], y[1:]), ic.mv(x[:, :6199].contiguous(), y[:-1])
        return ic.mv(x[:, :6148], y[:6148]), *beside, ic.addmv(z, x[:, :100], y[:100])

    equal(device, run, x, y, z, tolerance=TOLERANCE[dtype])
    assert any(name.startswith("gemm.rows.product_1") for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_times_columns(device, rng, dtype, monkeypatch):
    """Of one row and one column each: of teams, of a block, in parts, beside vectors, and with what follows."""
    monkeypatch.setattr(products, "_DOT", 2048)
    x, y = rng.standard_normal((2, 5, 1200)), rng.standard_normal((2, 5, 1200))

    def run(x, y):
        x, y = x.to(dtype=dtype), y.to(dtype=dtype)
        flat, bias = (x.reshape(-1), y.reshape(-1)), x[0, 0, :1]
        few = ic.linalg.vecdot(x[..., :64].contiguous(), y[..., :64].contiguous())
        beside = ic.matmul(x[0, 0, 1:], y[0, 0, :-1]), ic.matmul(flat[0][3:], flat[1][:-3])
        layer = F.linear(x[0, :1], y[1, :1], bias), ic.addmm(bias, x[0, :1], y[1, :1].T, beta=0.5, alpha=2.0)
        return ic.dot(*flat), ic.linalg.vecdot(x, y), few, *beside, *layer

    equal(device, run, x, y, tolerance=TOLERANCE[dtype])
    used = device.backend.kernels.used
    assert any(name.startswith("gemm.dot.join") for name in used)
    teams = {"float32": {"8", "256"}, "float64": {"16", "256"}, "bfloat16": {"32"}}[dtype]
    assert {name.split("-")[-2] for name in used if name.startswith("gemm.dot.product")} >= teams


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_variance_of_few_long_rows(device, rng, dtype):
    """In chunks, whose moments another launch joins."""
    x = rng.standard_normal((2, 33000)) * 3 + 20

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.var_mean(x), *ic.std_mean(x, 1, correction=0), ic.var(x[:1, 100:], 1)

    equal(device, run, x, tolerance=TOLERANCE[dtype])
    assert any(name.endswith("-whole") for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int16", "uint8", "bool"])
def test_smallest_and_largest_at_once(device, rng, dtype):
    """In chunks, from the same states, and short; NaN is both."""
    x = np.round(rng.standard_normal((2, 33000)) * 9)
    if dtype in TOLERANCE:
        x[1, 200] = np.nan
    x = np.abs(x) if dtype == "uint8" else x > 2 if dtype == "bool" else x

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.aminmax(x), *ic.aminmax(x, dim=1), *ic.aminmax(x[:, :40], dim=0), *ic.aminmax(x[0])

    equal(device, run, x)
    assert any(name.endswith("-whole") for name in device.backend.kernels.used)
