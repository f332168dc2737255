"""Gradients of norms: against PyTorch in each dtype, mixed dtypes, large means, threads, views, second derivatives."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd

TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}


def leaf(array, dtype="float64"):
    return ic.from_numpy(np.array(array)).to(ic.dtype(dtype)).requires_grad_()


def wide(x):
    return x.detach().to(ic.float64).numpy()


def close(ours, theirs, tolerance):
    """Equal but for `tolerance` of the largest value: sums over rows round as often as there are rows."""
    theirs = theirs.double().numpy()
    scale = max(1.0, np.abs(theirs).max(initial=0.0))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(wide(ours), theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows, size", [(1, 1), (5, 7), (37, 100), (300, 257), (3, 5000)])
def test_layer_norm(dtype, rows, size, rng):
    torch = pytest.importorskip("torch")
    arrays = [rng.standard_normal((rows, size)) * 2 + 1, rng.standard_normal(size), rng.standard_normal(size)]
    g = rng.standard_normal((rows, size))
    ours = [leaf(a, dtype) for a in arrays]
    # float64 from the rounded values: what PyTorch would get without its own rounding
    theirs = [torch.from_numpy(wide(x)).requires_grad_() for x in ours]
    g = ic.from_numpy(g).to(ic.dtype(dtype))
    ic.layer_norm(ours[0], (size,), *ours[1:]).backward(g)
    torch.nn.functional.layer_norm(theirs[0], (size,), *theirs[1:]).backward(torch.from_numpy(wide(g)))
    for x, t in zip(ours, theirs):
        assert x.grad.dtype is ic.dtype(dtype)
        if size > 1:  # of one element, (x - mean) / sqrt(eps) is 0 and its slope only rounding
            close(x.grad, t.grad, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows, size", [(1, 1), (5, 7), (37, 100), (300, 257), (3, 5000)])
def test_rms_norm_and_residual(dtype, rows, size, rng):
    torch = pytest.importorskip("torch")
    x, w = leaf(rng.standard_normal((rows, size)), dtype), leaf(rng.standard_normal(size), dtype)
    g, g_residual = (ic.from_numpy(rng.standard_normal((rows, size))).to(ic.dtype(dtype)) for _ in range(2))

    def norm(x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w

    tx, tw = (torch.from_numpy(wide(v)).requires_grad_() for v in (x, w))
    ic.rms_norm(x, w).backward(g)
    norm(tx, tw).backward(torch.from_numpy(wide(g)))
    close(x.grad, tx.grad, TOLERANCE[dtype])
    close(w.grad, tw.grad, TOLERANCE[dtype])

    a, b, w = (
        leaf(rng.standard_normal((rows, size)), dtype),
        leaf(rng.standard_normal((rows, size)), dtype),
        leaf(wide(w), dtype),
    )
    y, total = ic.add_rms_norm(a, b, w)
    autograd.backward([y, total], [g, g_residual])
    tt, tw = (torch.from_numpy(wide(v)).requires_grad_() for v in (total, w))
    torch.autograd.backward([norm(tt, tw), tt * 1], [torch.from_numpy(wide(v)) for v in (g, g_residual)])
    close(a.grad, tt.grad, TOLERANCE[dtype])
    close(w.grad, tw.grad, TOLERANCE[dtype])
    np.testing.assert_array_equal(wide(a.grad), wide(b.grad))
    a.grad.zero_()
    assert np.abs(wide(b.grad)).max() > 0, "two gradients in one memory"


def test_each_result_of_add_rms_norm_alone(rng):
    a, b, w = leaf(rng.standard_normal((4, 9))), leaf(rng.standard_normal((4, 9))), leaf(rng.standard_normal(9))
    ic.add_rms_norm(a, b, w)[1].sum().backward()
    np.testing.assert_array_equal(wide(a.grad), 1.0)
    assert w.grad is None or not wide(w.grad).any()
    x = leaf(wide(a) + wide(b))
    a.grad = b.grad = w.grad = None
    ic.add_rms_norm(a, b, w)[0].sum().backward()
    ic.rms_norm(x, w.detach()).sum().backward()
    np.testing.assert_allclose(wide(a.grad), wide(x.grad), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float32_weights_beside_16_bits(dtype, rng):
    x = leaf(rng.standard_normal((50, 65)), dtype)
    w, b = leaf(rng.standard_normal(65), "float32"), leaf(rng.standard_normal(65), "float32")
    g = rng.standard_normal((50, 65)).astype(np.float32)
    g = ic.from_numpy(g).to(ic.dtype(dtype))
    ic.layer_norm(x, 65, w, b).backward(g)
    assert (x.grad.dtype, w.grad.dtype, b.grad.dtype) == (ic.dtype(dtype), ic.float32, ic.float32)
    # sums are float32: no rounding of 16 bits is in them
    np.testing.assert_allclose(wide(b.grad), wide(g).sum(0), rtol=1e-5, atol=1e-5)
    values = wide(x)
    x_hat = (values - values.mean(1, keepdims=True)) / np.sqrt(values.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(wide(w.grad), (wide(g) * x_hat).sum(0), rtol=1e-4, atol=1e-4)


def test_large_means_do_not_cancel(rng):
    values = (rng.standard_normal((6, 1000)) + 1e4).astype(np.float32)
    g = rng.standard_normal((6, 1000)).astype(np.float32)
    exact, x = leaf(values), leaf(values, "float32")
    ic.layer_norm(exact, 1000).backward(ic.from_numpy(g.astype(np.float64)))
    ic.layer_norm(x, 1000).backward(ic.from_numpy(g))
    np.testing.assert_allclose(wide(x.grad), wide(exact.grad), rtol=2e-3, atol=2e-3)


def test_threads_give_the_same_bits(rng):
    x, w = leaf(rng.standard_normal((700, 129)), "float32"), leaf(rng.standard_normal(129), "float32")
    g = ic.from_numpy(rng.standard_normal((700, 129)).astype(np.float32))
    before = ic.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            ic.set_num_threads(count)
            found.append(
                [wide(y) for y in (*ic.layer_norm_backward(g, x, (129,), w, w), *ic.rms_norm_backward(g, x, w))]
            )
    finally:
        ic.set_num_threads(before)
    for others in found[1:]:
        for one, other in zip(found[0], others):
            np.testing.assert_array_equal(one, other)


def test_only_what_is_wanted(rng):
    x = ic.from_numpy(rng.standard_normal((4, 6)))
    w, b = leaf(rng.standard_normal(6)), leaf(rng.standard_normal(6))
    ic.layer_norm(x, (6,), w, b).sum().backward()
    np.testing.assert_allclose(wide(b.grad), 4.0)
    assert x.grad is None
    b.grad = None
    ic.layer_norm(x, (6,), None, b).sum().backward()  # a bias without a weight
    np.testing.assert_allclose(wide(b.grad), 4.0)
    _, dw, db = ic.layer_norm_backward(x, x, (6,), w)
    assert dw.shape == (6,) and db is None
    assert ic.layer_norm_backward(x, x, (6,))[1:] == (None, None)


def test_rows_of_any_stride_and_no_rows(rng):
    base = leaf(rng.standard_normal((7, 2, 40)))
    w = leaf(rng.standard_normal(17))
    g = ic.from_numpy(rng.standard_normal((17, 7)))
    ic.layer_norm(base[:, 1, 3:20], (17,), w).backward(g.transpose(0, 1))
    x = leaf(wide(base)[:, 1, 3:20])
    v = leaf(wide(w))
    ic.layer_norm(x, (17,), v).backward(ic.from_numpy(np.ascontiguousarray(g.numpy().T)))
    np.testing.assert_array_equal(wide(base.grad)[:, 1, 3:20], wide(x.grad))
    np.testing.assert_array_equal(wide(w.grad), wide(v.grad))
    empty, w = ic.empty(0, 8).requires_grad_(), leaf(np.ones(8), "float32")
    ic.rms_norm(empty, w).sum().backward()
    assert empty.grad.shape == (0, 8)
    np.testing.assert_array_equal(wide(w.grad), 0.0)


def test_first_and_second_derivatives(rng):
    x, w, b = leaf(rng.standard_normal((2, 5))), leaf(rng.standard_normal(5)), leaf(rng.standard_normal(5))
    for function, inputs in (
        (lambda x, w, b: ic.layer_norm(x, (5,), w, b), (x, w, b)),
        (lambda x: ic.layer_norm(x, (5,)), (x,)),
        (lambda x, w: ic.layer_norm(x, (2, 5), w.expand(2, 5)), (x, w)),
        (ic.rms_norm, (x, w)),
        (ic.add_rms_norm, (x, leaf(rng.standard_normal((2, 5))), w)),
    ):
        assert autograd.gradcheck(function, inputs)
        assert autograd.gradgradcheck(function, inputs)


def test_bad_input(rng):
    x, w = ic.from_numpy(rng.standard_normal((4, 8))), ic.from_numpy(rng.standard_normal(8))
    with pytest.raises(ValueError, match=r"`g`.*\(4, 8\).*\(4, 7\)"):
        ic.rms_norm_backward(x[:, :7], x, w)
    with pytest.raises(ValueError, match=r"`g_residual`.*\(4, 8\).*\(3, 8\)"):
        ic.rms_norm_backward(x, x, w, 1e-5, x[:3])
    with pytest.raises(ValueError, match=r"`normalized_shape`.*\(4, 8\).*\(4,\)"):
        ic.layer_norm_backward(x, x, (4,))
