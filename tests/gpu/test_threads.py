"""Kernels of GPUs against the CPU's where there is no GPU: thread by thread (`threads.py`)."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.blocks.gemm import LOGITS
from infinicore.kernels.cuda.plans import array as arrays
from infinicore.kernels.cuda.plans import conv as convolutions
from infinicore.kernels.cuda.plans import gemm as products
from infinicore.kernels.cuda.plans import reduce as reductions
from infinicore.kernels.cuda.plans import scan as plans
from infinicore.kernels.ops import order

import infinicore as ic
from infinicore.dispatch.launcher import Launcher
from infinicore.nn import functional as F

from . import threads
from .test_kernels import TOLERANCE, equal, with_gradients


@pytest.fixture(scope="module")
def device():
    before = ic.get_num_threads()
    ic.set_num_threads(1)  # a launch is one call
    there = threads.device()
    yield there
    ic.set_num_threads(before)
    assert there.backend.kernels.wrong is None


@pytest.fixture(autouse=True)
def _of_this_test(device):
    """What a test finds in `used` is of its own calls: those of tests before it are forgotten, with their plans."""
    device.backend.kernels.used.clear()
    device.backend.plans.clear()


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


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape, groups", [((300, 24), 3), ((3, 6, 5, 7), 2), ((2, 64, 4), 4)])
def test_gradients_of_group_norm(device, rng, shape, groups, dtype):
    """Channels of one element, which are a thread's, and others; few columns of many chunks."""
    x, w, b = rng.standard_normal(shape), rng.standard_normal(shape[1]), rng.standard_normal(shape[1])
    layer = with_gradients(lambda x, w, b: F.group_norm(x, groups, w, b), dtype, 3)
    equal(device, layer, x, w, b, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [8, 24, 32, 40, 64, 96, 128, 1000])
def test_rows_of_a_part_of_a_warp(device, rng, size, dtype):
    """Rows that registers of 4 or 8 threads hold, one more than the teams of a warp, and of 1000 elements."""
    x, w = rng.standard_normal((9, size)) * 4, rng.standard_normal(size)
    x[3, 1:5] = -np.inf

    def run(x, w):
        x, w = x.to(dtype=dtype), w.to(dtype=dtype)
        some = x[:3]
        return ic.softmax(x, 1), ic.log_softmax(x, 1), F.rms_norm(some, (size,), w), F.layer_norm(some, (size,), w, w)

    equal(device, run, x, w, tolerance=TOLERANCE[dtype])


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


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32"])
def test_sums_by_index_along_the_last_dim(device, rng, dtype):
    """Windows added up to images, and elements by index, some of which nothing is added to."""
    x, columns, index = rng.standard_normal((3, 12, 9)), rng.standard_normal((2, 20 * 9, 30)), rng.integers(0, 8, 40)
    added = np.round(rng.standard_normal((3, 12, 40)) * 9)

    def run(x, columns, index, added):
        x = ic.index_add(x.to(dtype=dtype), 2, index, added.to(dtype=dtype))
        return (x, F.fold(columns.to(dtype=dtype), (5, 6), 3, padding=1)) if "float" in dtype else (x,)

    equal(device, run, np.round(x * 9), columns, index, added, tolerance=TOLERANCE.get(dtype, 0.0))
    assert any(name.startswith("array.scatter.add_each") for name in device.backend.kernels.used)


def test_an_index_that_does_not_exist(device, rng):
    x, index = ic.zeros(40, 8, device=device), ic.as_tensor(np.array([1, 8]), device=device)
    with pytest.raises((IndexError, ValueError)):
        ic.index_add(x, 1, index, ic.ones(40, 2, device=device)).cpu()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(150, 8), (9, 5), (7, 8, 3)])
def test_batch_norm(device, rng, shape, dtype):
    """Channels of one element an image, four of which a block takes at once, and others."""
    x, w, b = rng.standard_normal(shape) + 2, rng.standard_normal(shape[1]), rng.standard_normal(shape[1])

    def run(x, w, b):
        mean, var = ic.zeros_like(w), ic.ones_like(w)
        return F.batch_norm(x, mean, var, w, b, True), mean, var

    equal(device, lambda *given: run(*(x.to(dtype=dtype) for x in given)), x, w, b, tolerance=TOLERANCE[dtype])
    layer = with_gradients(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), dtype, 3)
    equal(device, layer, x, w, b, tolerance=TOLERANCE[dtype])


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


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(size, dtype) for dtype in ("float32", "bfloat16") for size in (7, 61, 200, 1001, 2049)] + [(61, "float64")],
)
def test_rows_that_begin_anywhere(device, rng, size, dtype):
    """Rows that are no whole vectors, or begin beside one: held by parts of a warp or by blocks, or read twice."""
    x, w = rng.standard_normal((5, size)) * 4, rng.standard_normal(size)
    x[3, 1:5], x[1] = -np.inf, -np.inf
    x[2, size // 2] = np.nan

    def run(x, w):
        x, w = x.to(dtype=dtype), w.to(dtype=dtype)
        part, some = x[:, 1:], x[3:, 1:]
        softmax = ic.softmax(x, 1), ic.log_softmax(part, 1), ic.softmax(part, 1), ic.logsumexp(x, 1)
        grown = ic.softmax(x, 1, out=x.clone()[:, :]), ic.logsumexp(part, 1)
        norms = F.rms_norm(x[4:], (size,), w), F.layer_norm(some[1:], (size - 1,), w[1:], w[:-1])
        return *softmax, *grown, *norms

    equal(device, run, x, w, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [9, 61, 520])
def test_gradients_of_softmax(device, rng, size, dtype):
    x = rng.standard_normal((5, size))
    for function in (ic.softmax, ic.log_softmax):
        layer = with_gradients(lambda x, function=function: function(x[:, 1:], 1), dtype, 1)
        equal(device, layer, x, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_cross_entropy_of_rows_that_begin_anywhere(device, rng, dtype):
    x, w, t = rng.standard_normal((5, 1001)) * 3, rng.random(1001) + 0.5, rng.integers(0, 1000, 5)
    t[2] = -100
    for part in (slice(None), slice(1, None)):
        loss = with_gradients(lambda x, t, part=part: F.cross_entropy(x[:, part], t), dtype, 1)
        equal(device, loss, x, t, tolerance=TOLERANCE[dtype])
    weighted = with_gradients(lambda x, t, w: F.cross_entropy(x, t, w.to(dtype=dtype), label_smoothing=0.1), dtype, 1)
    equal(device, weighted, x, t, w, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("row", [1001, 1008])
def test_rows_of_logits_become_gradients(device, rng, row, dtype):
    """In place, with zeros behind the 1001 classes; a row whose target is ignored becomes zeros."""
    x, targets = rng.standard_normal((4, row)) * 3, np.array([0, 1000, -100, 7])
    logits = ic.as_tensor(x).to(dtype=dtype).to(device)
    losses = ic.zeros(4, dtype="float64", device=device)
    factor = ic.as_tensor(np.array([0.25]), device=device)
    block = LOGITS(
        logits=logits, target=ic.as_tensor(targets, device=device), losses=losses, factor=factor,
        classes=1001, row=row, ignored=-100, gradients=1,
    )  # fmt: skip
    given = logits.cpu().to(dtype="float64").numpy()[:, :1001]
    Launcher("linear_cross_entropy", device).launch("loss.linear.rows", {"T": dtype, "I": "int64"}, block, 4, row)
    weights = np.exp(given - given.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True)
    found = -np.log(expected[np.arange(4), targets])
    expected[np.arange(4), targets] -= 1
    found[2], expected[2] = 0, 0
    y = logits.cpu().to(dtype="float64").numpy()
    np.testing.assert_allclose(losses.cpu().numpy(), found, rtol=1e-4)
    np.testing.assert_allclose(y[:, :1001], expected * 0.25, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-2)
    assert not y[:, 1001:].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [24, 37, 300])
def test_softmax_with_a_causal_mask(device, rng, size, dtype):
    x = rng.standard_normal((2, 5, size))
    equal(device, lambda x: ic.causal_softmax(x.to(dtype=dtype)), x, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8"])
def test_copies_of_rows(device, rng, dtype):
    """Between layouts whose rows stay together, in vectors or not."""
    x = rng.integers(0, 99, (5, 7, 64)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        part = x[:, 1:6, 3:60].contiguous()
        return x.permute(1, 0, 2).contiguous(), part, F.pad(x, (1, 2, 3, 0)), x[:3, ::2].contiguous()

    equal(device, run, x)
    assert any(name.startswith("array.copy.rows") for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_means_of_even_cells(device, rng, dtype):
    x = rng.standard_normal((2, 3, 8, 10))
    pool = with_gradients(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), dtype, 1)
    equal(device, pool, x, tolerance=TOLERANCE[dtype])
    assert any(name.startswith("conv.windows.mean_pool-") for name in device.backend.kernels.used)


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


@pytest.mark.parametrize("dtype", [*TOLERANCE, "float16", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(9, 1), (5, 67), (2, 1201), (3, 2, 40)])
def test_modes(device, rng, shape, dtype):
    """Of rows of a warp, of a block, and along another dim; NaN, zeros of both signs, an element that stands once."""
    x = rng.integers(-3, 4, shape) * rng.integers(0, 2, shape).astype("f8")
    if "float" in dtype:
        x[0, ..., :20] = np.nan

    def run(x):
        x = x.to(dtype=dtype)
        x = -x if "float" in dtype else x
        return *ic.mode(x), *ic.mode(x, 0, True), *ic.mode(x[..., ::2], -1)

    equal(device, run, x, tolerance=0.0)
    assert any(name.startswith("reduce.modes.modes") for name in device.backend.kernels.used)


def test_modes_of_long_rows(device, rng, monkeypatch):
    """In parts, of which runs lie in several."""
    monkeypatch.setattr(reductions, "_CHUNK", 512)
    x = np.concatenate([np.repeat(rng.permutation(40), 50), rng.integers(50, 99, 900)]).reshape(1, -1)
    equal(device, lambda x: ic.mode(x.to(dtype="float32")), rng.permutation(x[0])[None], tolerance=0.0)
    assert any(name.startswith("reduce.modes.join") for name in device.backend.kernels.used)


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


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape, dim", [((300, 40), 0), ((2, 260, 21), 1), ((3, 7, 30), 1)])
def test_softmax_of_columns(device, rng, shape, dim, dtype):
    """In parts of rows, with vectors and beside them, and of few rows; columns without a finite largest element."""
    x, g = rng.standard_normal(shape) * 4, rng.standard_normal(shape)
    x[..., 3], x[..., 5] = -np.inf, -np.inf
    x[..., 5, 5] = 1.0
    x[0, ..., 7], x[..., 2, 8] = np.inf, np.nan

    def run(x, g):
        x, g = x.to(dtype=dtype), g.to(dtype=dtype)
        y, z = ic.softmax(x, dim), ic.log_softmax(x, dim)
        back = ic.softmax_backward(g, ic.nan_to_num(y), dim), ic.log_softmax_backward(g, ic.nan_to_num(z, 0, 0, 0), dim)
        return y, z, *back, ic.logsumexp(x, dim), ic.softmax(x[..., 1:], dim)

    equal(device, run, x, g, tolerance=TOLERANCE[dtype])
    assert any(name.startswith("norm.columns.") for name in device.backend.kernels.used)


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int8", "int32", "int64"])
@pytest.mark.parametrize("shape", [(3, 37), (2, 3001)])
def test_elements_by_rank(device, rng, shape, dtype):
    """Of equal ones that which the sort has there; medians where there are NaN; rows that begin beside vectors."""
    x = np.round(rng.standard_normal(shape) * (9 if dtype == "int8" else 40))
    if dtype in TOLERANCE:
        x[0] = rng.standard_normal(shape[1])
        x[1, 3], x[1, 20], x[0, 7] = np.nan, np.nan, -np.inf
    ranks = rng.integers(0, shape[1], (shape[0], 3))

    def run(x, ranks):
        x = x.to(dtype=dtype)
        found = *ic.ranked(x, ranks), *ic.kthvalue(x, 4, 1), *ic.median(x, 1), *ic.nanmedian(x[:, 1:], 1)
        return *found, *((ic.quantile(x, 0.3, 1),) if dtype in ("float32", "float64") else ())

    equal(device, run, x, ranks, tolerance=1e-6 if dtype in ("float32", "float64") else 0.0)
    assert any(name.startswith("reduce.select.select") for name in device.backend.kernels.used)


def test_ranks_of_few_long_rows(device, rng, monkeypatch):
    """By a sort; and ranks that do not exist."""
    monkeypatch.setattr(reductions, "_ALONE", 100)
    x, ranks = rng.standard_normal((2, 300)), rng.integers(0, 300, (2, 2))
    equal(device, lambda x, ranks: ic.ranked(x.to(dtype="float32"), ranks), x, ranks)
    x[0, [2, 50, 299]], x[1] = np.nan, np.nan
    medians = lambda x: [*ic.median(x, 1), *ic.nanmedian(x, 1), *ic.kthvalue(x, 297, 1), ic.median(x[0, 3:50])]
    equal(device, lambda x: medians(x.to(dtype="float32")), x)
    assert any(name.startswith("reduce.select.pick") for name in device.backend.kernels.used)
    with pytest.raises(ValueError, match="`ranks` of `ranked` must be from 0 to 299"):
        ic.ranked(ic.zeros(2, 300, device=device), ic.as_tensor(ranks + 300, device=device))[0].cpu()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(2, 100), (1, 1500), (1, 5000)])
def test_sorted_rows(device, rng, shape, dtype):
    """In shared memory, by blocks of each size; the first ones without a sort."""
    x = np.round(rng.standard_normal(shape) * 50) if dtype != "uint8" else rng.integers(0, 200, shape)
    x = x.astype("f8")
    if dtype in TOLERANCE:
        x[0, 3:9], x[0, 30:40] = np.nan, -0.0

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.sort(x, 1), *ic.topk(x, 20, 1), *ic.topk(x[:, 1:], 7, 1, False)

    equal(device, run, x)
    used = device.backend.kernels.used
    room = "1024" if shape[1] == 100 else "4096" if shape[1] == 1500 and dtype != "int64" else ""
    assert any(name.startswith(f"reduce.radix.rows_{room}") for name in used) or dtype == "int64"
    assert any(name.startswith("reduce.first.first") for name in used)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("kind", ["random", "ties", "sorted", "equal"])
def test_first_ones_by_a_sieve(device, rng, dtype, kind):
    """Of rows that begin anywhere, also of few that are cut; where too many may be among them, by digits."""
    x = rng.standard_normal((2, 9000)) * 40
    x = {"random": x, "ties": np.round(x / 4), "sorted": np.sort(x, 1), "equal": np.round(x / 1000)}[kind]
    x = np.abs(x) if dtype == "uint8" else x
    if dtype in TOLERANCE and kind == "random":
        x[0, 5:9], x[1, 3], x[0, 20] = np.nan, -np.inf, np.inf

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.topk(x[:, :2500], 33, 1), *ic.topk(x[:, 1:2100], 60, 1, False), *ic.topk(x, 5, 1)

    equal(device, run, x)
    assert any(name.startswith("reduce.first.first") for name in device.backend.kernels.used)


@pytest.mark.parametrize("each", [2, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int16", "uint8", "float64"])
def test_sorted_tiles(device, rng, monkeypatch, dtype, each):
    """Rows that are cut into tiles, the last of which has few elements; few elements of a thread, and many."""
    monkeypatch.setattr(reductions, "_ROOMS", ())
    monkeypatch.setattr(reductions, "_SLOTS", 264 if each == 2 else 0)
    x = np.round(rng.standard_normal((2, 1100)) * 50) if each == 2 else rng.standard_normal((1, 8195)) * 1e3
    x = np.abs(x) % 256 if dtype == "uint8" else x
    if dtype in TOLERANCE:
        x[0, 3:9], x[0, 30:40], x[0, 90:93], x[0, 99] = np.nan, -0.0, 0.0, -np.inf
        x[0, 50:60] = np.copysign(np.nan, -1)

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.sort(x, 1), *ic.sort(x[:, 1:], 1, descending=True), ic.argsort(x[:, ::2], 1), *ic.topk(x, 600, 1)

    equal(device, run if each == 2 else lambda x: ic.sort(x.to(dtype=dtype), 1), x)
    assert any(name.startswith("reduce.sweep.move") for name in device.backend.kernels.used)


@pytest.mark.parametrize("tile", [1, 2, 5, 12])
def test_tiles_look_back(device, rng, tile):
    """Blocks run in their order here, and find the sum before them at once; others find counts of many tiles first."""
    from .looking_back import WORDS, look_back

    flag, counts, found = 5 << 32, rng.integers(0, 1 << 20, (tile, 256)), np.zeros(256, "i8")
    sums, last = np.cumsum(counts, 0), rng.integers(0, tile, 256)  # the last tile that has told its sum
    summed = np.arange(tile)[:, None] <= last
    words = np.where(summed, sums + (1 << 32), counts) + flag
    block = np.array([words.ctypes.data, found.ctypes.data, tile, flag])
    assert len(block) == WORDS.WIDTH
    assert threads.Kernel(look_back._source, look_back.shape).run(block.ctypes.data, 256) == 0
    np.testing.assert_array_equal(found, sums[-1])


def test_modes_of_sorted_tiles(device, rng, monkeypatch):
    monkeypatch.setattr(reductions, "_ROOMS", ())
    x = np.round(rng.standard_normal((20, 80)))
    equal(device, lambda x: ic.mode(x.to(dtype="bfloat16"), 1), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("kinds", [1, 3, 100000])
def test_first_of_runs(device, rng, monkeypatch, dtype, kinds):
    """In one launch: of a few long runs, of many short ones; NaN is a run of its own, -0 is 0. With a copy, without."""
    monkeypatch.setattr(order, "KEPT", 0 if kinds == 3 else order.KEPT)
    if kinds > 1:  # two tiles, or three, for each block; otherwise one
        monkeypatch.setattr(arrays, "FIRSTS_BLOCKS", (2 if kinds == 3 else 1) / device.backend.kernels.multiprocessors)
    x = np.sort(rng.integers(0, kinds, 17001)) * 1.0
    if dtype in TOLERANCE:
        x[20:25], x[:2], x[2:4] = np.nan, -0.0, 0.0
    x = x > 1 if dtype == "bool" else x % 256 if dtype == "uint8" else x

    def run(x):
        x = x.to(dtype=dtype)
        return ic.unique_consecutive(x), ic.unique_consecutive(x[1:16385]), ic.unique_consecutive(x[3:5000:1])

    equal(device, run, x)
    assert any(name.startswith("array.firsts.first_of_runs") for name in device.backend.kernels.used)


def test_tiles_of_runs_look_back(device, rng):
    """Over many tiles that know their own count alone."""
    from .looking_back import RUN_WORDS, look_back_at_runs

    counts, found = rng.integers(0, 8192, 300), np.zeros(32, "i8")
    for tile, last in ((1, 0), (32, 0), (33, 0), (34, 33), (300, 7), (300, 270)):
        words = np.where(np.arange(300) <= last, np.cumsum(counts) * 4 + 2, counts * 4 + 1)
        block = np.array([words.ctypes.data, found.ctypes.data, tile])
        assert len(block) == RUN_WORDS.WIDTH
        assert threads.Kernel(look_back_at_runs._source, look_back_at_runs.shape).run(block.ctypes.data, 1) == 0
        np.testing.assert_array_equal(found, counts[:tile].sum())


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


@pytest.mark.parametrize("name", ["digamma", "bessel_y0", "ndtri", "legendre_polynomial_p", "floor_divide", "sin"])
def test_functions_of_float32(device, rng, name):
    """Quotients of float64 by an instruction, and what is out of line for rare numbers."""
    x = rng.uniform(0.05, 0.95, (3, 70)) * (1e9 if name == "sin" else 1.0)
    args = [np.floor(rng.uniform(0.6, 7, (3, 70)))] if name in ("legendre_polynomial_p", "floor_divide") else []
    equal(device, getattr(ic, name, None) or getattr(ic.special, name), x, *args, tolerance=1e-5)


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


@pytest.mark.parametrize("size, causal, masked", [(64, True, False), (40, False, True), (100, True, False)])
def test_attention_of_few_rows(device, rng, size, causal, masked):
    """Of float32, where warps that have the same rows have different keys of a step; gradients by their log-sum-exp."""
    q, k, v = (rng.standard_normal((1, heads, rows, size)) for heads, rows in ((2, 37), (1, 150), (1, 150)))
    mask = rng.standard_normal((37, 150)) > 0.3 if masked else None
    if causal:
        k, v = k[:, :, :37], v[:, :, :37]

    def run(q, k, v):
        q, k, v = (x.to(dtype="float32") for x in (q, k, v))
        return F.scaled_dot_product_attention(
            q, k, v, mask if mask is None else ic.from_numpy(mask).to(q.device), is_causal=causal, enable_gqa=True
        )

    equal(device, with_gradients(run, "float32", 1) if masked else run, q, k, v, tolerance=1e-5)
    assert any("_few" in name for name in device.backend.kernels.used), device.backend.kernels.used


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_likelihoods_of_few_rows_are_one_launch(device, rng, dtype):
    """With rows that count for nothing, weights, and more rows than threads; a class that is none is an error."""
    x, target = rng.standard_normal((1100, 7)), rng.integers(0, 7, 1100)
    target[[0, 5, 1099]] = -100

    def run(x):
        classes, weight = ic.from_numpy(target).to(x.device), x.abs()[0].to(dtype=dtype)
        found = with_gradients(lambda x: F.nll_loss(x, classes, weight), dtype, 1)(x)
        x = x.to(dtype=dtype)
        return *found, F.nll_loss(x, classes), F.nll_loss(x[3:], classes[3:], weight, reduction="sum")

    equal(device, run, x, tolerance=TOLERANCE[dtype])
    used = device.backend.kernels.used
    assert any("nll_of_all" in name for name in used) and not any("reduction" in name for name in used)
    bad = ic.from_numpy(np.where(target < 0, 7, target)).to(device)
    with pytest.raises(ValueError, match="7"):
        F.nll_loss(ic.from_numpy(x).to(device, dtype=getattr(ic, dtype)), bad).item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "bool", "complex64"])
def test_whether_two_are_equal(device, rng, dtype):
    """Those that differ in the first element, the last one, one of the second chunk, a NaN, the layout, or nothing."""
    x = ic.from_numpy(rng.integers(0, 2, 18_001).astype("f4")).to(dtype=dtype)
    others = [x.clone() for _ in range(5)]
    for other, i in zip(others[1:], (0, 1025, 17_500, 18_000)):
        other[i] = not other[i].item()
    here, there = x.to(device), [other.to(device) for other in others]
    assert [ic.equal(here, other) for other in there] == [True, False, False, False, False]
    assert ic.equal(here[1:], there[0][1:]) and ic.equal(
        here[:18_000].reshape(100, 180).t(), there[0][:18_000].reshape(100, 180).t()
    )
    assert (
        ic.equal(here[:3], there[4][:3]) and not ic.equal(here[:3], there[1][:3]) and ic.equal(here[:0], there[1][:0])
    )
    if dtype in TOLERANCE:
        here[7] = there[0][7] = float("nan")
        assert not ic.equal(here, there[0]) and not ic.equal(here, here)
    assert any("chosen.alike" in name for name in device.backend.kernels.used)


def test_a_barrier_that_is_missing_is_seen():
    """Threads go on in one direction in a block and in the other one in the next; who waits for nobody ends."""
    from .looking_back import half_of_them_wait, neighbours, neighbours_at_once

    right = (np.arange(64) + 1) % 64
    for kernel, waits in ((neighbours, True), (neighbours_at_once, False)):
        room, found = np.full((2, 64), -1), np.full((2, 64), -1)
        block = np.array([room.ctypes.data, found.ctypes.data])
        assert threads.Kernel(kernel._source, kernel.shape).run(block.ctypes.data, 2) == 0
        few, many = sorted((found == right).sum(1))
        assert few == many == 64 if waits else few < 3 and 60 < many < 64
    with pytest.raises(AssertionError, match="threads wait for one another"):
        threads.Kernel(half_of_them_wait._source, half_of_them_wait.shape).run(block.ctypes.data, 1)
