"""Derivatives of matrix products against torch in float64, products added in place, and the loss of a last layer."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd
from infinicore.core import memory

# What the error may be, as a part of the sum of |a| |b|: the product's own rounding and the result's.
BOUNDS = {"float32": 3e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 6e-3}

PAIRS = [
    ((33, 70), (70, 65)),
    ((3, 1, 17, 20), (2, 20, 9)),
    ((50,), (50, 21)),
    ((20, 50), (50,)),
    ((7,), (7,)),
    ((5, 3, 25), (25, 7)),
    ((2, 3, 4, 50), (50,)),
    ((50,), (2, 3, 50, 4)),
    ((25, 4), (3, 4, 5)),
    ((7, 1, 4), (7, 4, 3)),
    ((3, 4, 5), (1, 5, 6)),
    ((1, 4, 5), (3, 5, 6)),
    ((4, 0), (0, 3)),
]


def leaf(array, dtype="float64"):
    return ic.from_numpy(np.asarray(array)).to(ic.dtype(dtype)).requires_grad_()


def wide(x):
    return x.detach().to(ic.float64).numpy()


def close(ours, theirs, bound=1e-12):
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(
        wide(ours), theirs.numpy(), rtol=0, atol=bound * max(1.0, float(abs(theirs).sum() ** 0.5))
    )


@pytest.mark.parametrize("first, second", PAIRS)
def test_matmul_of_every_shape(first, second, rng):
    torch = pytest.importorskip("torch")
    arrays = rng.standard_normal(first), rng.standard_normal(second)
    a, b = (leaf(x) for x in arrays)
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    y, expected = ic.matmul(a, b, alpha=0.5), 0.5 * torch.matmul(*theirs)
    g = np.asarray(rng.standard_normal(tuple(y.shape)))
    expected.backward(torch.tensor(g))
    y.backward(ic.from_numpy(g))
    for ours, other in zip((a, b), theirs):
        close(ours.grad, other.grad)
    y = ic.matmul(a, b, alpha=0.5)
    y.backward(ic.from_numpy(g))  # a second time: added to what is there
    for ours, other in zip((a, b), theirs):
        close(ours.grad, 2 * other.grad)


def test_matmul_of_transposed_and_expanded_operands(rng):
    a, b = leaf(rng.standard_normal((6, 5))), leaf(rng.standard_normal((6, 7)))
    g = ic.from_numpy(rng.standard_normal((1, 1))).expand(5, 7)
    ic.matmul(a.T, b).backward(g)
    np.testing.assert_allclose(wide(a.grad), wide(b) @ wide(g).T, atol=1e-13)
    np.testing.assert_allclose(wide(b.grad), wide(a) @ wide(g), atol=1e-13)


ACTIVATIONS = [None, "relu", "silu", "gelu", "gelu_tanh"]


def torch_activation(torch, name):
    F = torch.nn.functional
    tanh = lambda z: F.gelu(z, approximate="tanh")
    return {None: lambda z: z, "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "gelu_tanh": tanh}[name]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_with_everything(activation, rng):
    torch = pytest.importorskip("torch")
    for shape in ((3, 5, 20), (7, 20), (20,), (40, 20), (0, 20)):
        arrays = [rng.standard_normal(s) for s in (shape, (9, 20), (9,), (*shape[:-1], 9))]
        x, w, b, r = (leaf(v) for v in arrays)
        tx, tw, tb, tr = theirs = [torch.tensor(v, requires_grad=True) for v in arrays]
        y = ic.linear(x, w, b, alpha=0.7, activation=activation, residual=r)
        expected = tr + torch_activation(torch, activation)(0.7 * tx @ tw.T + tb)
        g = rng.standard_normal(tuple(y.shape))
        close(y, expected.detach())
        y.backward(ic.from_numpy(g))
        expected.backward(torch.tensor(g))
        for ours, other in zip((x, w, b, r), theirs):
            close(ours.grad, other.grad)
        with ic.no_grad():  # the fused forward pass gives the same
            close(ic.linear(x, w, b, alpha=0.7, activation=activation, residual=r), expected.detach())


@pytest.mark.parametrize("dtype, bound", [("float32", 2e-6), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_linear_in_every_dtype(dtype, bound, rng):
    torch = pytest.importorskip("torch")
    x, w, b = (leaf(rng.standard_normal(s), dtype) for s in ((70, 48), (33, 48), (33,)))
    theirs = [torch.tensor(wide(v), requires_grad=True) for v in (x, w, b)]
    g = ic.from_numpy(rng.standard_normal((70, 33))).to(ic.dtype(dtype))
    expected = torch.nn.functional.gelu(theirs[0] @ theirs[1].T + theirs[2], approximate="tanh")
    expected.backward(torch.tensor(wide(g)))
    ic.linear(x, w, b, activation="gelu_tanh").backward(g)
    for ours, other in zip((x, w, b), theirs):
        assert ours.grad.dtype is ours.dtype
        error = np.abs(wide(ours.grad) - other.grad.numpy()).max()
        assert error < bound * np.abs(other.grad.numpy()).max()


def test_what_is_frozen_gets_no_gradient(rng):
    x, w, b = (ic.from_numpy(rng.standard_normal(s)) for s in ((6, 5), (4, 5), (4,)))
    for moving in (x, w, b):
        moving.requires_grad_()
        ic.linear(x, w, b, activation="silu").sum().backward()
        assert moving.grad is not None and sum(t.grad is not None for t in (x, w, b)) == 1
        moving.requires_grad_(False)
        moving.grad = None


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_of_derivatives(activation, rng):
    x, w, b = leaf(rng.standard_normal((4, 3)) + 0.1), leaf(rng.standard_normal((5, 3))), leaf(rng.standard_normal(5))
    assert autograd.gradgradcheck(lambda *v: ic.linear(*v, alpha=0.5, activation=activation), (x, w, b))
    assert autograd.gradgradcheck(lambda a, c: ic.matmul(a, c), (x, leaf(rng.standard_normal((2, 3, 4)))))


# ---- products that are added ---------------------------------------------------------------------

# dot products, sums of rows, blocked, a long k in pieces, a long k in parts
SIZES = [(30, 50, 40), (3, 70, 80), (20, 3000, 3), (33, 3000, 40), (70, 9000, 64), (300, 12, 200), (5, 0, 4)]


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_products_are_added_to_what_is_there(dtype, rng):
    kind = ic.dtype(dtype)
    for result in {kind, ic.float64 if dtype == "float64" else ic.float32}:
        bound = BOUNDS[result.name]
        for m, k, n in SIZES:
            a, b = (ic.from_numpy(rng.standard_normal(s)).to(kind) for s in ((k, m), (k, n)))
            exact, scale = wide(a).T @ wide(b), np.abs(wide(a)).T @ np.abs(wide(b)) + 1
            y = ic.matmul(a.T, b, out_dtype=result)
            assert y.dtype is result and (np.abs(wide(y) - exact) / scale).max() < bound
            for given in (ic.ones((m, n), dtype=result), ic.ones((m, 2 * n), dtype=result)[:, ::2]):
                for _ in range(2):
                    found = ic.matmul(a.T, b, out=given, out_dtype=result, accumulate=True, alpha=0.5)
                    assert found is given
                assert (np.abs(wide(given) - 1 - exact) / scale).max() < 2 * bound


def test_errors_of_products_that_are_added():
    z = ic.zeros
    with pytest.raises(ValueError, match=r"`accumulate` .* `out`"):
        ic.matmul(z((2, 3)), z((3, 4)), accumulate=True)
    with pytest.raises(TypeError, match=r"`out_dtype` .* got float64"):
        ic.matmul(z((2, 3)), z((3, 4)), out_dtype=ic.float64)
    with pytest.raises(TypeError, match=r"float32 .* got float16"):
        ic.matmul(z((2, 3)), z((3, 4)), out_dtype="float16")
    with pytest.raises(TypeError, match="needs floats, got int32"):
        a = z((2, 2), dtype=ic.int32)
        ic.matmul(a, a, out=z((2, 2), dtype=ic.int32), accumulate=True)
    with pytest.raises(ValueError, match=r"`activation_backward` .* \(3, 2\)"):
        ic.activation_backward(z((2, 3)), z((3, 2)), "gelu")


# ---- linear_cross_entropy ------------------------------------------------------------------------


def losses(rng, n, k, classes, dtype, ignored=-100):
    x, w = leaf(rng.standard_normal((n, k)), dtype), leaf(0.2 * rng.standard_normal((classes, k)), dtype)
    target = rng.integers(0, classes, n)
    target[::7] = ignored
    return x, w, target


@pytest.mark.parametrize("dtype, bound", [("float64", 1e-12), ("float32", 1e-6), ("bfloat16", 2e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("row_bytes", [1, 64])  # 64: rows of logits are padded, as on a GPU
def test_linear_cross_entropy(dtype, bound, reduction, row_bytes, rng, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(type(ic.device("cpu").backend), "row_bytes", row_bytes)
    for n, k, classes, ignored in ((20, 24, 50, -100), (600, 40, 330, 3), (1, 5, 1, -1)):
        x, w, target = losses(rng, n, k, classes, dtype, ignored)
        if n == 1:
            target[:] = 0
        tx, tw = (torch.tensor(wide(v), requires_grad=True) for v in (x, w))
        options = {"ignore_index": ignored, "reduction": reduction}
        expected = torch.nn.functional.cross_entropy(tx @ tw.T, torch.tensor(target), **options)
        (0.5 * expected).backward()
        kind = ic.float64 if dtype == "float64" else ic.float32
        plain = ic.linear_cross_entropy(x.detach(), w.detach(), ic.from_numpy(target), **options)
        y = ic.linear_cross_entropy(x, w, ic.from_numpy(target.astype(np.int32)), **options)
        assert y.dtype is kind and y.item() == plain.item()
        assert abs(y.item() - expected.item()) <= min(bound, 1e-2) * max(1.0, abs(expected.item()))
        (0.5 * y).backward()
        for ours, other in ((x, tx), (w, tw)):
            error = np.abs(wide(ours.grad) - other.grad.numpy()).max()
            assert error <= 5 * bound * max(np.abs(other.grad.numpy()).max(), 1e-6)


def test_linear_cross_entropy_is_that_of_the_logits(rng):
    x, w, target = losses(rng, 300, 64, 1001, "float32")
    t = ic.from_numpy(target)
    for row in (x, x.detach()):
        one = ic.linear_cross_entropy(row, w, t)
        two = ic.cross_entropy(ic.linear(row, w), t)
        assert abs(one.item() - two.item()) <= 1e-6 * two.item()
    ours, theirs = autograd.grad(one, [w]), autograd.grad(two, [w])
    np.testing.assert_allclose(wide(ours[0]), wide(theirs[0]), atol=1e-6 * np.abs(wide(theirs[0])).max() * 5)


def test_linear_cross_entropy_twice_and_its_second_derivative(rng):
    x, w, target = losses(rng, 6, 4, 5, "float64")
    t = ic.from_numpy(target)
    y = ic.linear_cross_entropy(x, w, t)
    y.backward(retain_graph=True)
    once = wide(w.grad).copy()
    y.backward()
    np.testing.assert_allclose(wide(w.grad), 2 * once, rtol=1e-14)
    for reduction in ("mean", "sum"):
        loss = lambda a, b, how=reduction: ic.linear_cross_entropy(a, b, t, reduction=how)
        assert autograd.gradcheck(loss, (x, w)) and autograd.gradgradcheck(loss, (x, w))


def test_linear_cross_entropy_of_extreme_values(rng):
    x, w = leaf(np.array([[1e4, 0.0], [0.0, 1e4]]), "float32"), leaf(np.array([[1.0, -1.0], [-1.0, 1.0]]), "float32")
    y = ic.linear_cross_entropy(x, w, ic.from_numpy(np.array([0, 0])))
    assert y.item() == 1e4
    y.backward()
    assert np.isfinite(wide(w.grad)).all() and np.isfinite(wide(x.grad)).all()
    nothing = ic.linear_cross_entropy(x, w, ic.from_numpy(np.array([-100, -100])))
    assert np.isnan(nothing.item())
    x.grad = None
    nothing.backward()
    assert not wide(x.grad).any()
    frozen = ic.linear_cross_entropy(x, w.detach(), ic.from_numpy(np.array([0, 1])))
    assert frozen.requires_grad and len(autograd.grad(frozen, [x])) == 1
    empty = leaf(np.zeros((0, 2)), "float32")
    assert ic.linear_cross_entropy(empty, w, ic.zeros(0, dtype=ic.int64), reduction="sum").item() == 0
    w.grad = None
    ic.linear_cross_entropy(empty, w, ic.zeros(0, dtype=ic.int64), reduction="sum").backward()
    assert not wide(w.grad).any()


def test_errors_of_linear_cross_entropy():
    x, w, t = ic.zeros((4, 3)), ic.zeros((5, 3)), ic.zeros(4, dtype=ic.int64)
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=r"`target` .* \[0, 5\)"):
            ic.linear_cross_entropy(x, w, t + wrong)
    with pytest.raises(ValueError, match=r"\(4, 3\), \(5, 3\) and \(3,\)"):
        ic.linear_cross_entropy(x, w, t[:3])
    with pytest.raises(TypeError, match="int64 or int32, got float32"):
        ic.linear_cross_entropy(x, w, ic.zeros(4))
    with pytest.raises(TypeError, match="float32 and float64"):
        ic.linear_cross_entropy(x, w.to(ic.float64), t)
    with pytest.raises(ValueError, match=r"`reduction` .* got 'none'"):
        ic.linear_cross_entropy(x, w, t, reduction="none")


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_float32_residual_beside_16_bit_operands(rows, activation, rng):
    """The result is float32 and not rounded on the way; each gradient has the dtype of its input."""
    x = ic.from_numpy(rng.standard_normal((rows, 48))).to("bfloat16").requires_grad_()
    w = ic.from_numpy(rng.standard_normal((33, 48))).to("bfloat16").requires_grad_()
    r = ic.from_numpy(rng.standard_normal((rows, 33))).to("float32").requires_grad_()
    y = ic.linear(x, w, activation=activation, residual=r)
    assert y.dtype is ic.float32
    inner = wide(x) @ wide(w).T
    if activation is None:
        np.testing.assert_allclose(wide(y), inner + wide(r), rtol=1e-5, atol=1e-4)
    y.backward(ic.ones(y.shape))
    assert (x.grad.dtype, w.grad.dtype, r.grad.dtype) == (ic.bfloat16, ic.bfloat16, ic.float32)
    np.testing.assert_array_equal(r.grad.numpy(), np.ones((rows, 33)))
    if activation is None:
        np.testing.assert_allclose(wide(w.grad), np.tile(wide(x).sum(0), (33, 1)), rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("name", ["linear", "matmul"])
def test_an_operand_is_kept_only_for_the_gradient_of_the_other(name, rng):
    def product(x, w):
        return ic.linear(x, w) if name == "linear" else ic.matmul(x, w.T)

    for frozen in (0, 1):
        arrays = rng.standard_normal((6, 5)), rng.standard_normal((4, 5))
        x, w = (ic.from_numpy(a.copy()).requires_grad_(i != frozen) for i, a in enumerate(arrays))
        before = memory.used_bytes()[0]
        several = [product(x * 1, w * 1) for _ in range(4)]
        kept = (memory.used_bytes()[0] - before) / len(several)
        assert kept <= 2 * 256  # a result and one of two operands, each in a block of 256 bytes
        moving = (x, w)[1 - frozen]
        y = product(x, w)
        with ic.no_grad():
            moving.mul_(0.0)  # nobody needs its elements any more
        y.sum().backward()
        np.testing.assert_allclose(
            wide(moving.grad), np.broadcast_to(arrays[frozen].sum(0), arrays[1 - frozen].shape), rtol=1e-12
        )
