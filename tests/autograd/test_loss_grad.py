"""Cross entropy and the negative log likelihood: against PyTorch in every option, extreme logits, bad labels."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd

INF, NAN = float("inf"), float("nan")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}


def leaf(array, dtype="float64"):
    return ic.from_numpy(np.array(array)).to(ic.dtype(dtype)).requires_grad_()


def wide(x):
    return x.detach().to(ic.float64).numpy()


def torch_loss(torch, name, arrays, options, g=None):
    """(loss, gradients) of float64 tensors by PyTorch."""
    x, target, weight = (None if a is None else torch.from_numpy(np.array(a)) for a in arrays)
    wanted = [t.requires_grad_() for t in (x, target) if t.is_floating_point()]
    y = getattr(torch.nn.functional, name)(x, target, weight, **options)
    y.backward(torch.ones_like(y) if g is None else torch.from_numpy(np.array(g)))
    return y.detach().numpy(), [t.grad.numpy() for t in wanted]


def compare(torch, name, x, target, weight, options, dtype, rng):
    x, weight = leaf(x, dtype), None if weight is None else leaf(weight, dtype).detach()
    soft = target.dtype.kind == "f"
    t = leaf(target, dtype) if soft else ic.from_numpy(target)
    y = getattr(ic, name)(x, t, weight, **options)
    g = ic.from_numpy(np.asarray(rng.uniform(0.5, 2, tuple(y.shape)))).to(y.dtype)
    y.backward(g)
    arrays = wide(x), wide(t) if soft else target, None if weight is None else wide(weight)
    expected, gradients = torch_loss(torch, name, arrays, options, wide(g))
    assert y.dtype is ic.dtype(dtype) and y.shape == expected.shape
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(wide(y), expected, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip([x, t] if soft else [x], gradients):
        scale = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(wide(ours.grad), theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.in_turn("reduction")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_against_pytorch(dtype, reduction, rng):
    torch = pytest.importorskip("torch")
    for shape in ((7, 33), (5,), (2, 19, 3, 4), (3, 9001), (130, 600)):
        classes, rest = (shape[0], ()) if len(shape) == 1 else (shape[1], (shape[0], *shape[2:]))
        x = 3 * rng.standard_normal(shape)
        ids = np.asarray(rng.integers(0, classes, rest))
        weight = rng.uniform(0.5, 2, classes)
        options = {"reduction": reduction}
        compare(torch, "cross_entropy", x, ids, None, options, dtype, rng)
        compare(torch, "cross_entropy", x, ids, weight, {**options, "label_smoothing": 0.1}, dtype, rng)
        if classes < 1000:
            q = rng.uniform(0, 1, shape)
            q /= q.sum(min(1, len(shape) - 1), keepdims=True)
            compare(torch, "cross_entropy", x, q, None, options, dtype, rng)
        if len(shape) > 1:
            ids[0] = 3
            compare(torch, "cross_entropy", x, ids, weight, {**options, "ignore_index": 3}, dtype, rng)
            ids[0] = -100
            compare(torch, "cross_entropy", x, ids, None, {**options, "label_smoothing": 0.2}, dtype, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_weighted_probabilities(dtype, rng):
    torch = pytest.importorskip("torch")
    x, q, weight = rng.standard_normal((6, 40)), rng.uniform(0, 1, (6, 40)), rng.uniform(0.5, 2, 40)
    for reduction in ("none", "mean", "sum"):
        options = {"reduction": reduction, "label_smoothing": 0.3}
        compare(torch, "cross_entropy", x, q / q.sum(1, keepdims=True), weight, options, dtype, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_nll_loss_against_pytorch(dtype, reduction, rng):
    torch = pytest.importorskip("torch")
    for shape in ((7, 33), (5,), (2, 19, 3, 4), (300, 260)):
        classes, rest = (shape[0], ()) if len(shape) == 1 else (shape[1], (shape[0], *shape[2:]))
        x, ids = -rng.uniform(0.1, 4, shape), np.asarray(rng.integers(0, classes, rest))
        compare(torch, "nll_loss", x, ids, None, {"reduction": reduction}, dtype, rng)
        if len(shape) > 1:
            ids[0] = -100
            compare(torch, "nll_loss", x, ids, rng.uniform(0.5, 2, classes), {"reduction": reduction}, dtype, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_logits(dtype, rng):
    rows = rng.standard_normal((8, 300))
    rows[0] *= 1e4
    rows[1] = 1e4
    rows[2] -= 1e4
    rows[3, 5:] = -INF
    rows[4] = np.linspace(-1e4, 1e4, 300)  # the maximum grows all the time
    rows[5, 0], rows[5, 299] = -1e4, 1e4
    rows[6, :290] = -INF
    target = np.array([int(rows[0].argmax()), 7, 7, 2, 299, 299, 295, 0])
    for repeat in (1, 40):  # 40: rows longer than a block
        x = leaf(np.concatenate([rows] + [np.full((8, 300), -2e4)] * (repeat - 1), 1), dtype)
        losses = ic.cross_entropy(x, ic.from_numpy(target), reduction="none")
        losses.sum().backward()
        values = wide(x)
        shifted = values - values.max(1, keepdims=True)
        p = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
        expected = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(8), target]
        np.testing.assert_allclose(wide(losses), expected, rtol=2e-6, atol=2e-6)
        p[np.arange(8), target] -= 1
        np.testing.assert_allclose(wide(x.grad), p, rtol=2e-6, atol=2e-6)


def test_what_has_no_loss():
    x = ic.tensor([[0.0, NAN, 1.0], [INF, 0.0, 1.0], [-INF, -INF, -INF], [0.0, 1.0, -INF], [0.0, 1.0, 2.0]])
    x.requires_grad_()
    losses = ic.cross_entropy(x, ic.tensor([0, 0, 0, 2, 1]), reduction="none")
    losses.backward(ic.ones(5))
    got, gradient = wide(losses), wide(x.grad)
    assert np.isnan(got[:3]).all() and np.isposinf(got[3]) and np.isfinite(got[4])
    assert np.isnan(gradient[:3]).all() and np.isfinite(gradient[4]).all()
    # a class that is impossible and not asked for costs nothing
    y = ic.cross_entropy(ic.tensor([[0.0, -INF]]), ic.tensor([[1.0, 0.0]]))
    assert y.item() == 0


def test_nothing_to_average():
    for name in ("cross_entropy", "nll_loss"):
        function = getattr(ic, name)
        x, ids = ic.empty(0, 5).requires_grad_(), ic.empty(0, dtype=ic.int64)
        assert np.isnan(function(x, ids).item())
        assert function(x, ids, reduction="sum").item() == 0
        assert function(x, ids, reduction="none").shape == (0,)
        function(x, ids).backward()
        assert x.grad.shape == (0, 5)
        x = ic.ones(2, 5).requires_grad_()
        y = function(x, ic.full((2,), -100, dtype=ic.int64))
        y.backward()
        assert np.isnan(y.item())
        np.testing.assert_array_equal(wide(x.grad), 0.0)
    assert np.isnan(ic.cross_entropy(ic.empty(0, 5), ic.empty(0, 5)).item())


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_types_of_class_ids(dtype, rng):
    x, ids = ic.from_numpy(rng.standard_normal((9, 5))), rng.integers(0, 5, 9)
    expected = ic.cross_entropy(x, ic.from_numpy(ids)).item()
    assert ic.cross_entropy(x, ic.from_numpy(ids.astype(dtype))).item() == expected


def test_threads_and_layouts_give_the_same_bits(rng):
    values, ids = rng.standard_normal((500, 300)).astype(np.float32), ic.from_numpy(rng.integers(0, 300, 500))
    before = ic.get_num_threads()
    found = []
    try:
        for count, order in ((1, "C"), (2, "C"), (2, "F")):
            ic.set_num_threads(count)
            x = ic.from_numpy(np.array(values, order=order)).requires_grad_()
            y = ic.cross_entropy(x, ids)
            y.backward()
            found.append((y.item(), wide(x.grad)))
    finally:
        ic.set_num_threads(before)
    for y, gradient in found[1:]:
        assert y == found[0][0]
        np.testing.assert_array_equal(gradient, found[0][1])


def test_the_gradient_may_overwrite_the_logits(rng):
    x, ids = ic.from_numpy(rng.standard_normal((6, 50))), ic.from_numpy(rng.integers(0, 50, 6))
    shift = x.max(1)[0]
    total = (x - shift.unsqueeze(1)).exp().sum(1)
    statistics = ic.cat([ic.stack([shift, total], 1), ic.full((1, 2), 6.0, dtype=ic.float64)], 0)
    one = ic.ones((), dtype=ic.float64)
    expected = wide(ic.cross_entropy_backward(one, x, ids, statistics))
    assert ic.cross_entropy_backward(one, x, ids, statistics, out=x) is x
    np.testing.assert_array_equal(wide(x), expected)


def test_first_and_second_derivatives(rng):
    x, ids = leaf(rng.standard_normal((3, 4))), ic.from_numpy(np.array([1, -100, 3]))
    deep, places = leaf(rng.standard_normal((2, 3, 2))), ic.from_numpy(rng.integers(0, 3, (2, 2)))
    q, weight = leaf(rng.uniform(0.1, 1, (3, 4))), ic.from_numpy(rng.uniform(0.5, 2, 4))
    for function, inputs in (
        (lambda x: ic.cross_entropy(x, ids), (x,)),
        (lambda x: ic.cross_entropy(x, ids, weight, reduction="none", label_smoothing=0.2), (x,)),
        (lambda x: ic.cross_entropy(x, places, reduction="sum"), (deep,)),
        (lambda x: ic.cross_entropy(x, ic.tensor(2)), (leaf(rng.standard_normal(4)),)),
        (lambda x, q: ic.cross_entropy(x, q, weight, label_smoothing=0.1), (x, q)),
        (lambda x: ic.nll_loss(x, ids, weight), (x,)),
        (lambda x: ic.nll_loss(x, places, reduction="none"), (deep,)),
    ):
        assert autograd.gradcheck(function, inputs)
        assert autograd.gradgradcheck(function, inputs)


def test_bad_labels(rng):
    x = ic.from_numpy(rng.standard_normal((4, 5))).requires_grad_()
    for bad in (5, -1, 2**40):
        ids = ic.from_numpy(np.array([0, -100, bad, 1]))
        for function in (ic.cross_entropy, ic.nll_loss):
            with pytest.raises(ValueError, match=rf"`target` of `\w+` must be .* 0 to 4 .*-100.*got {bad}"):
                function(x, ids)
    many, ids = ic.zeros(3000, 50), np.zeros(3000, np.int64)
    ids[2999] = 77
    with pytest.raises(ValueError, match="got 77"):
        ic.cross_entropy(many, ic.from_numpy(ids))


def test_bad_input(rng):
    x, ids = ic.from_numpy(rng.standard_normal((4, 5))), ic.from_numpy(np.array([0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"`target`.*\(4,\).*\(4, 5\).*\(3,\)"):
        ic.cross_entropy(x, ids[:3])
    with pytest.raises(ValueError, match=r"`target`.*\(4, 5\).*\(4,\)"):
        ic.cross_entropy(x, ids.to(ic.float64))
    with pytest.raises(TypeError, match=r"`target`.*bool"):
        ic.cross_entropy(x, ids > 1)
    with pytest.raises(TypeError, match=r"`target` of `nll_loss`.*float64"):
        ic.nll_loss(x, x)
    with pytest.raises(ValueError, match=r"`weight`.*\(5,\).*\(4,\)"):
        ic.cross_entropy(x, ids, ic.ones(4))
    with pytest.raises(ValueError, match=r"`reduction`.*none, mean, sum.*'average'"):
        ic.cross_entropy(x, ids, reduction="average")
    with pytest.raises(ValueError, match=r"`label_smoothing`.*1.5"):
        ic.cross_entropy(x, ids, label_smoothing=1.5)
    with pytest.raises(ValueError, match=r"`input`.*0-dim"):
        ic.cross_entropy(ic.tensor(1.0), ic.tensor(0))
    with pytest.raises(TypeError, match=r"`input`.*int64"):
        ic.cross_entropy(ids, ids)
    with pytest.raises(ValueError, match=r"`statistics`.*\(5, 2\).*\(4, 2\)"):
        ic.cross_entropy_backward(ic.ones((), dtype=ic.float64), x, ids, ic.ones(4, 2, dtype=ic.float64))
