"""Norms, softmax and losses, whose rows a few threads, a warp or a block has, thread by thread on the host."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.blocks.gemm import LOGITS

import infinicore as ic
from infinicore.dispatch.launcher import Launcher
from infinicore.nn import functional as F

from .compared import TOLERANCE, equal, with_gradients


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape, groups", [((300, 24), 3), ((3, 6, 5, 7), 2), ((2, 64, 4), 4)])
def test_gradients_of_group_norm(device, rng, shape, groups, dtype):
    """Channels of one element, which are a thread's, and others; few columns of many chunks."""
    x, w, b = rng.standard_normal(shape), rng.standard_normal(shape[1]), rng.standard_normal(shape[1])
    layer = with_gradients(lambda x, w, b: F.group_norm(x, groups, w, b), dtype, 3)
    equal(device, layer, x, w, b, tolerance=TOLERANCE[dtype])


@pytest.mark.in_turn("dtype")
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


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [61, 96, 1001, 4096])
def test_rows_of_equal_elements_have_no_variance(device, size, dtype):
    """Rows that registers hold and others; a sum through the count would be beside 1000.1 in float32."""
    x = ic.full((4, size), 1000.1, dtype=dtype, device=device)
    for y in (x, x[:, 1:]):
        variance, mean = ic.var_mean(y, 1)
        assert variance.cpu().tolist() == [0.0] * 4 and mean.equal(y[:, 0])
        assert F.layer_norm(y, y.shape[1:]).abs().max().item() == 0
    groups = x[:, : size // 4 * 4].reshape(4, 4, -1)
    assert F.group_norm(groups, 2).abs().max().item() == 0
    assert F.batch_norm(groups, None, None, None, None, True).abs().max().item() == 0
    assert F.batch_norm(x, None, None, None, None, True).abs().max().item() == 0


@pytest.mark.in_turn("dtype")
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


@pytest.mark.in_turn("dtype")
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


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [24, 37, 300])
def test_softmax_with_a_causal_mask(device, rng, size, dtype):
    x = rng.standard_normal((2, 5, size))
    equal(device, lambda x: ic.causal_softmax(x.to(dtype=dtype)), x, tolerance=TOLERANCE[dtype])


@pytest.mark.in_turn("dtype")
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
