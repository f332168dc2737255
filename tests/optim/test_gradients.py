"""Norms and clipping of many gradients at once, and parameters as a vector."""

import math

import numpy as np
import pytest

import infinicore as ic
from infinicore import optim
from infinicore.nn import utils

from .trajectories import SHAPES, array

ORDERS = (2.0, 1.0, math.inf, -math.inf, 3.0, 0.5)


def parameters(rng, dtype="float32", scale=1.0):
    found = []
    for i, shape in enumerate(SHAPES):
        p = ic.nn.Parameter(ic.zeros(*shape, dtype=ic.dtype(dtype)))
        if i != 2:  # one has no gradient
            p.grad = ic.from_numpy(rng.standard_normal(shape) * scale).to(ic.dtype(dtype))
        found.append(p)
    return found


def flat(params):
    return np.concatenate([array(p.grad).ravel() for p in params if p.grad is not None])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("order", ORDERS)
def test_total_norm_and_clipping(order, dtype, rng):
    params = parameters(rng, dtype)
    before = flat(params)
    norm = np.linalg.norm(before, order)
    total = utils.clip_grad_norm_(params, 0.1, order)
    rtol = 1e-12 if dtype == "float64" else 1e-6
    assert total.shape == () and total.item() == pytest.approx(norm, rel=rtol)
    factor = min(1.0, 0.1 / (norm + 1e-6))
    np.testing.assert_allclose(flat(params), before * factor, rtol=2**-8 if dtype == "bfloat16" else rtol)


def test_against_torch(rng):
    torch = pytest.importorskip("torch")
    for limit in (1e-2, 1e6):
        params = parameters(rng)
        others = [torch.zeros(p.shape_, requires_grad=True) for p in params]
        for p, q in zip(params, others):
            q.grad = None if p.grad is None else torch.tensor(p.grad.numpy().copy())
        total = utils.clip_grad_norm_(iter(params), limit)
        assert total.item() == pytest.approx(torch.nn.utils.clip_grad_norm_(others, limit).item(), rel=1e-6)
        for p, q in zip(params, others):
            if p.grad is not None:
                np.testing.assert_allclose(array(p.grad), array(q.grad), rtol=1e-6)
        utils.clip_grad_value_(params, 1e-3)
        torch.nn.utils.clip_grad_value_(others, 1e-3)
        for p, q in zip(params, others):
            if p.grad is not None:
                np.testing.assert_allclose(array(p.grad), array(q.grad), rtol=1e-6)


def test_norms_are_the_same_bits_for_any_number_of_threads(rng):
    tensors = [ic.from_numpy(rng.standard_normal(n).astype(np.float32)) for n in (200_000, 7, 131_072)]
    before, found = ic.get_num_threads(), []
    try:
        for count in (1, 2):
            ic.set_num_threads(count)
            found.append([ic.multi_norm([x.to(ic.float64) for x in tensors], p).item() for p in (2.0, 1.0)])
    finally:
        ic.set_num_threads(before)
    assert found[0] == found[1]


def test_norms_beyond_float32():
    """Squares of 1e30 overflow float32, and 2^24 ones do not count in it; in float64 neither happens."""
    assert ic.multi_norm([ic.full((4,), 1e30)]).item() == pytest.approx(2e30, rel=1e-6)
    big = ic.ones(1 << 24)
    assert ic.multi_norm([big, ic.ones(5)], 1.0).item() == pytest.approx((1 << 24) + 5, abs=2)
    assert ic.multi_norm([ic.ones(3, dtype=ic.float64), ic.ones(1)]).dtype is ic.float64
    assert ic.multi_norm([ic.full((4,), 300.0, dtype=ic.float16)]).item() == 600.0


def test_nothing_and_not_finite(rng):
    assert utils.get_total_norm([]).item() == 0.0
    assert utils.clip_grad_norm_([ic.nn.Parameter(ic.ones(3))], 1.0).item() == 0.0
    assert ic.multi_norm([ic.ones(0, 3)], math.inf).item() == 0.0
    for value in (math.nan, math.inf):
        for order in (2.0, math.inf):
            p = ic.nn.Parameter(ic.ones(3))
            p.grad = ic.tensor([1.0, value, 2.0])
            with pytest.raises(ValueError, match=r"`error_if_nonfinite`"):
                utils.clip_grad_norm_(p, 1.0, order, error_if_nonfinite=True)
            np.testing.assert_array_equal(array(p.grad), [1.0, value, 2.0])  # untouched
            total = utils.clip_grad_norm_(p, 1.0, order)
            assert total.item() == value or (math.isnan(total.item()) and math.isnan(value))
            assert np.isnan(array(p.grad)[1])


def test_scaling_reports_what_is_not_finite(rng):
    values = [rng.standard_normal(n).astype(np.float32) for n in (40_000, 3)]
    for where, bad in ((None, None), (0, math.nan), (1, -math.inf)):
        tensors = [ic.from_numpy(v.copy()) for v in values]
        if where is not None:
            tensors[where][2] = bad
        kept, version = [array(x).copy() for x in tensors], tensors[0].storage.version
        assert bool(ic.multi_scale(tensors, 0.5)) == (where is not None)
        for x, old in zip(tensors, kept):
            np.testing.assert_array_equal(array(x), old * 0.5)
        assert tensors[0].storage.version > version
    strided = ic.from_numpy(values[0].copy().reshape(200, 200)).T
    ic.multi_scale([strided], 2.0)
    np.testing.assert_array_equal(array(strided), 2.0 * values[0].reshape(200, 200).T)


def test_clipped_values_keep_nan():
    p = ic.nn.Parameter(ic.ones(4))
    p.grad = ic.tensor([math.nan, -3.0, math.inf, 0.5])
    utils.clip_grad_value_(p, 2.0)
    np.testing.assert_array_equal(array(p.grad), [math.nan, -2.0, 2.0, 0.5])


def test_parameters_as_a_vector(rng):
    params = [ic.nn.Parameter(ic.from_numpy(rng.standard_normal(s).astype(np.float32))) for s in ((3, 4), (5,), (2, 1))]
    vector = utils.parameters_to_vector(params)
    np.testing.assert_array_equal(array(vector), np.concatenate([array(p).ravel() for p in params]))
    utils.vector_to_parameters(vector.detach() * 2, params)
    np.testing.assert_array_equal(array(utils.parameters_to_vector(params)), 2 * array(vector))
    assert all(p.requires_grad and p.is_leaf for p in params)
    with pytest.raises(ValueError, match=r"`vec`.*\(19,\).*\(18,\)"):
        utils.vector_to_parameters(ic.ones(18), params)


def test_bad_input():
    with pytest.raises(TypeError, match=r"put it in a list"):
        ic.multi_norm(ic.ones(3))
    with pytest.raises(TypeError, match=r"int64"):
        ic.multi_scale([ic.arange(3)], 2.0)
    with pytest.raises(ValueError, match=r"`limit`.*-1"):
        ic.multi_clamp([ic.ones(3)], -1.0)
    with pytest.raises(ValueError, match=r"`ord`.*nan"):
        ic.multi_norm([ic.ones(3)], math.nan)


def test_clipping_then_stepping_is_one_story(rng):
    """The usual loop: backward, clip, step."""
    p = ic.nn.Parameter(ic.full((10,), 3.0))
    optimizer = optim.SGD([p], lr=1.0)
    (p * p).backward(ic.ones(10))
    assert utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(6 * math.sqrt(10), rel=1e-6)
    optimizer.step()
    np.testing.assert_allclose(array(p), 3.0 - 1 / math.sqrt(10), rtol=1e-6)
