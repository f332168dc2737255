"""Ops in their other forms: two tensors in place of a dim, a dtype, a way to reduce, a condition alone."""

import itertools

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F
from infinicore import autograd

FLOATS = ["float32", "float64", "bfloat16", "float16"]


def tensor(array, dtype="float64"):
    return ic.from_numpy(np.asarray(array).astype(ic.dtype(dtype).numpy))


def differentiated(function, *arrays, g=None):
    """The result of a function and the gradients of its inputs."""
    inputs = [tensor(a).requires_grad_() for a in arrays]
    y = function(*inputs)
    return y.detach().numpy(), [
        x.numpy() for x in autograd.grad(y, inputs, ic.ones_like(y) if g is None else tensor(g))
    ]


# ---- max and min of two tensors ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int64", "uint8"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extreme_values_of_two_tensors(name, dtype, rng):
    reference = np.maximum if name == "max" else np.minimum
    a, b = (rng.integers(0, 9, shape).astype("f8") for shape in ((4, 5), (4, 1)))
    x, y, wide = tensor(a, dtype), tensor(b, dtype), tensor(np.stack([a, a], 2), dtype)
    expected = reference(a, b)
    for _ in range(4):  # also as a known call
        for found in (getattr(ic, name)(x, y), getattr(x, name)(y), getattr(ic, name)(wide[..., 1], y)):
            assert found.dtype is ic.dtype(dtype) and found.numpy().astype("f8").tolist() == expected.tolist()
        assert getattr(x.T, name)(y.T).numpy().astype("f8").tolist() == expected.T.tolist()
    out = ic.empty(4, 5, dtype=dtype)
    assert getattr(ic, name)(x, y, out=out) is out and out.numpy().astype("f8").tolist() == expected.tolist()


def test_extreme_values_of_two_tensors_promote_and_refuse():
    x = ic.tensor([1, 2])
    assert x.max(ic.tensor([1.5, 1.5])).tolist() == [1.5, 2.0] and np.isnan(
        ic.max(ic.tensor([1.0]), ic.tensor([np.nan])).item()
    )
    with pytest.raises(TypeError, match="`keepdim` of `max`"):
        ic.max(x, x, True)


def test_gradients_of_the_extreme_values_of_two_tensors(rng):
    a, b, g = rng.standard_normal((3, 4)), rng.standard_normal((3, 1)), rng.standard_normal((3, 4))
    a[0, 0] = b[0, 0]
    share = np.where(a == b, 0.5, a > b)
    for function, mine in ((ic.max, share), (ic.min, 1 - share)):
        _, (ga, gb) = differentiated(function, a, b, g=g)
        np.testing.assert_allclose(ga, g * mine)
        np.testing.assert_allclose(gb, (g * (1 - mine)).sum(1, keepdims=True))
        _, (ga,) = differentiated(lambda x, f=function: f(x, tensor(b)), a, g=g)
        np.testing.assert_allclose(ga, g * mine)


# ---- softmax of another dtype --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_converts_first(name, rng):
    array = rng.integers(-5, 5, (3, 7))
    function = getattr(ic, name)
    for dtype in ("int64", "float16", "uint8", "bool"):
        x = tensor(array, dtype)
        for found in (function(x, 1, dtype=ic.float64), getattr(x, name)(-1, ic.float64)):
            assert found.dtype is ic.float64
            np.testing.assert_array_equal(found.numpy(), function(x.double(), 1).numpy())
    x = tensor(array, "float32").requires_grad_()
    g = tensor(rng.standard_normal((3, 7)))
    (found,) = autograd.grad(function(x, 1, dtype=ic.float64), (x,), g)
    (expected,) = autograd.grad(function(x.double(), 1), (x,), g)
    assert found.dtype is ic.float32 and found.tolist() == expected.tolist()


# ---- rounding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 3])
def test_round_to_decimals(dtype, decimals, rng):
    x = tensor(rng.uniform(-300, 300, (3, 17)), dtype)
    scale = 10.0 ** abs(decimals)
    wide = x.numpy().astype("f8" if dtype == "float64" else "f4")
    expected = np.round(wide / scale) * scale if decimals < 0 else np.round(wide * scale) / scale
    expected = expected.astype(x.dtype.numpy)
    for y in (x, x.T.contiguous().T, ic.stack((x, x), -1)[..., 0]):
        found = ic.round(y, decimals=decimals)
        assert found.dtype is x.dtype and found.tolist() == expected.tolist()
        assert y.round(decimals=decimals).tolist() == expected.tolist()
    out = ic.empty_like(x)
    assert ic.round(x, decimals=decimals, out=out) is out and out.tolist() == expected.tolist()
    assert x.round_(decimals=decimals) is x and x.tolist() == expected.tolist()


def test_round_has_no_slope():
    _, (g,) = differentiated(lambda x: ic.round(x, decimals=1), [0.12, 3.4])
    assert g.tolist() == [0, 0]
    with pytest.raises(TypeError):
        ic.round(ic.ones(2), decimals=0.5)
    with pytest.raises(TypeError, match="`decimals` of `round` goes with floats"):
        ic.round(ic.tensor([123]), decimals=-1)


# ---- where things are ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 0, 3), (2, 3, 4)])
def test_positions_as_a_tuple(dtype, shape, rng):
    x = tensor(rng.integers(0, 2, shape), dtype)
    expected = [a.tolist() for a in np.nonzero(np.atleast_1d(x.numpy()))]
    for _ in range(3):
        for found in (ic.nonzero(x, as_tuple=True), x.nonzero(as_tuple=True), ic.where(x), ic.where(condition=x)):
            assert isinstance(found, tuple) and [a.tolist() for a in found] == expected
            assert all(a.dtype is ic.int64 for a in found)
    assert x.nonzero(as_tuple=False).tolist() == np.argwhere(x.numpy()).tolist()


def test_where_takes_all_or_the_condition_alone():
    mask = ic.tensor([True, False])
    assert ic.where(mask, 1.0, 2.0).tolist() == [1, 2] and ic.where(mask, input=mask, other=mask).tolist() == [1, 0]
    for wrong in (lambda: ic.where(mask, mask), lambda: ic.where(mask, other=1.0), lambda: ic.where(mask, out=mask)):
        with pytest.raises(TypeError):
            wrong()


# ---- scatter -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int64", "uint8"])
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_reduces(reduce, dtype, rng):
    at = np.add.at if reduce == "add" else np.multiply.at
    a, b = rng.integers(1, 4, (5, 3)).astype("f8"), rng.integers(1, 3, (4, 3)).astype("f8")
    index = rng.integers(0, 5, (4, 3))
    for src in (b, 2.0):
        expected = a.copy()
        at(expected, (index, np.broadcast_to(np.arange(3), (4, 3))), src)
        x = tensor(a, dtype)
        given = tensor(b, dtype) if src is b else 2
        for input in (x, tensor(a.T, dtype).T):
            found = ic.scatter(input, 0, ic.from_numpy(index), given, reduce=reduce)
            assert found.dtype is x.dtype and found.numpy().astype("f8").tolist() == expected.tolist()
        assert x.scatter_(0, ic.from_numpy(index), given, reduce=reduce) is x
        assert x.numpy().astype("f8").tolist() == expected.tolist()


def test_scatter_of_a_value_and_its_errors():
    x, index = ic.zeros(3), ic.tensor([0, 2])
    assert x.scatter(0, index, value=2.5).tolist() == [2.5, 0, 2.5]
    for wrong, error in (
        (lambda: x.scatter(0, index, 1.0, reduce="mean"), ValueError),
        (lambda: x.scatter(0, index), TypeError),
        (lambda: x.scatter(0, index, ic.ones(2), value=1.0), TypeError),
        (lambda: x.requires_grad_().scatter(0, index, 2.0, reduce="multiply"), NotImplementedError),
    ):
        with pytest.raises(error, match=r"`(reduce|src|scatter)`"):
            wrong()


def test_gradients_of_a_scatter_that_adds():
    index = ic.tensor([0, 2, 0])
    _, (gx, gs) = differentiated(lambda x, s: x.scatter(0, index, s, reduce="add"), np.ones(3), np.ones(3), g=[1, 2, 3])
    assert gx.tolist() == [1, 2, 3] and gs.tolist() == [1, 3, 1]


# ---- clamp by tensors ----------------------------------------------------------------------------


def test_gradients_of_limits(rng):
    x, g = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    low, high = rng.uniform(-1, 0.5, (3, 4)), rng.uniform(-0.5, 1, (3, 4))
    x[0, 0], x[1, 1] = low[0, 0], high[1, 1]
    below, above = (x < low) & (low < high), (x > high) | (high < low)
    _, (gx, gl, gh) = differentiated(ic.clamp, x, low, high, g=g)
    np.testing.assert_allclose(gx, np.where((x >= low) & (x <= high), g, 0))
    np.testing.assert_allclose(gl, np.where(below, g, 0))
    np.testing.assert_allclose(gh, np.where(above, g, 0))
    _, (gx, gl) = differentiated(ic.clamp, x, low, g=g)
    np.testing.assert_allclose(gl, np.where(x < low, g, 0))
    _, (gx, gh) = differentiated(lambda x, h: ic.clamp(x, max=h), x, high[:1], g=g)
    np.testing.assert_allclose(gh, np.where(x > high[:1], g, 0).sum(0, keepdims=True))


def test_gradients_of_limits_are_those_of_torch(rng):
    torch = pytest.importorskip("torch")
    for _ in range(20):
        arrays = [rng.integers(-2, 3, (4, 5)).astype("f8") for _ in range(3)]
        theirs = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
        torch.clamp(*theirs).backward(torch.ones(4, 5, dtype=torch.float64))
        _, ours = differentiated(ic.clamp, *arrays)
        assert [g.tolist() for g in ours] == [t.grad.tolist() for t in theirs]


# ---- views and copies ----------------------------------------------------------------------------


def test_windows_add_up_their_gradients(rng):
    array, g = rng.standard_normal((2, 7)), rng.standard_normal((2, 3, 3))
    y, (gx,) = differentiated(lambda x: x.unfold(1, 3, 2), array, g=g)
    expected = np.zeros((2, 7))
    for i in range(3):
        np.testing.assert_array_equal(y[:, i], array[:, 2 * i : 2 * i + 3])
        expected[:, 2 * i : 2 * i + 3] += g[:, i]
    np.testing.assert_allclose(gx, expected)
    x = ic.arange(4.0)
    x.unfold(0, 2, 2)[1].fill_(9)
    assert x.tolist() == [0, 1, 9, 9]
    for wrong in (lambda: x.unfold(0, 5, 1), lambda: x.unfold(0, 2, 0), lambda: x.unfold(0, -1, 1)):
        with pytest.raises(ValueError, match="of `unfold`"):
            wrong()


def test_diagonals_are_views():
    x = ic.zeros(2, 3, 3)
    x.diagonal(1, 1, 2).fill_(5)
    assert x.tolist() == [[[0, 5, 0], [0, 0, 5], [0, 0, 0]]] * 2
    with pytest.raises(ValueError, match="`dim1` 1 and `dim2` -2"):
        x.diagonal(0, 1, -2)


def test_a_number_has_a_dim_to_move():
    x = ic.tensor(3.0)
    for y in (x.movedim(0, -1), x.moveaxis(-1, 0), x.swapaxes(0, -1), x.swapdims(0, 0)):
        assert y.shape == () and y.storage is x.storage
    assert x.unfold(0, 1, 1).tolist() == x.ravel().tolist() == [3] and x.unfold(0, 0, 1).shape == (0,)


def test_broadcast_to_is_a_view():
    x = ic.tensor([[1.0], [2.0], [3.0]])
    y = ic.broadcast_to(x, size=[3, 4])
    assert y.shape == (3, 4) and y.stride() == [1, 0] and y.storage is x.storage
    x += 1
    assert y.tolist() == [[2] * 4, [3] * 4, [4] * 4]
    for write in (lambda: y.add_(1), lambda: y.fill_(1), lambda: y.copy_(ic.ones(3, 4)), lambda: ic.add(y, 1, out=y)):
        with pytest.raises(ValueError, match="share memory, so call"):
            write()
    assert ic.broadcast_to(y.clone().add_(1), (2, 3, 4)).sum().item() == 2 * 4 * (3 + 4 + 5)


def test_a_broadcast_tensor_is_copied_to_memory_laid_out_like_it():
    memory = np.zeros((3, 2), np.float32)
    place = dict(dtype=ic.float32, device=ic.device("cpu", 0))
    for value in (1.0, 2.0, 3.0):  # the first call, the one that is kept, and one that comes from there
        y = ic.broadcast_to(ic.tensor([[[value]], [[2.0]], [[3.0]]]), (3, 4, 2))
        ic.strided_from_blob(memory.ctypes.data, [3, 4, 2], [2, 0, 0], **place).copy_(y)
        assert memory.tolist() == [[value, 0], [2, 0], [3, 0]]
    with pytest.raises(ValueError, match="share memory"):
        ic.strided_from_blob(memory.ctypes.data, [3, 4, 2], [2, 0, 1], **place).copy_(ic.ones(3, 4, 2))
    x = ic.zeros(3, 1, 2, requires_grad=True) * 1
    with pytest.raises(ValueError, match="share memory"):  # whose gradient would be that of one of four
        x.expand(3, 4, 2).copy_(ic.ones(3, 1, 2).expand(3, 4, 2))


def test_repeats_of_any_form(rng):
    array = rng.standard_normal((2, 3))
    x = ic.from_numpy(array)
    for found in (
        x.repeat(2, 1, 2),
        x.repeat((2, 1, 2)),
        x.repeat([2, 1, 2]),
        x.repeat(repeats=(2, 1, 2)),
        x.tile(2, 1, 2),
    ):
        np.testing.assert_array_equal(found.numpy(), np.tile(array, (2, 1, 2)))
    np.testing.assert_array_equal(ic.tile(x, (2,)).numpy(), np.tile(array, 2))
    np.testing.assert_array_equal(ic.tile(x, dims=()).numpy(), array)
    assert ic.tile(x, ()).storage is not x.storage
    for wrong, error in (
        (lambda: x.repeat(2), ValueError),
        (lambda: x.repeat(1, -1), ValueError),
        (lambda: x.tile(1.5), TypeError),
    ):
        with pytest.raises(error, match=r"`(repeats|dims)` of `(repeat|tile)`"):
            wrong()


# ---- nn.functional -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", "sigmoid tanh tanhshrink softplus softsign log_softmax relu6 hardswish hardtanh selu".split()
)
def test_activations_write_to_out(name, rng):
    x = tensor(rng.standard_normal((3, 17)), "float32")
    function, out, named = getattr(F, name), ic.empty(3, 17), {"dim": 1} if name == "log_softmax" else {}
    assert function(x, **named, out=out) is out and out.tolist() == function(x, **named).tolist()
    if name in ("relu6", "hardswish", "hardtanh", "selu"):
        with pytest.raises(ValueError, match="`inplace` and `out`"):
            function(x, inplace=True, out=out)


def test_activations_have_the_defaults_of_pytorch():
    x = ic.tensor([-1.0, 2.0])
    np.testing.assert_allclose(ic.elu(x).numpy(), [np.expm1(-1), 2], rtol=1e-6)
    np.testing.assert_allclose(x.celu().numpy(), [np.expm1(-1), 2], rtol=1e-6)
    np.testing.assert_allclose(ic.softplus(x).numpy(), np.log1p(np.exp([-1, 2])), rtol=1e-6)


def test_whole_reductions_of_turned_tensors_read_them_as_they_lie(rng):
    x = ic.from_numpy(rng.standard_normal((6, 5, 7)).astype(np.float32))
    for order in itertools.permutations(range(3)):
        for y in (x.permute(*order), x.permute(*order)[1:4], x[:, :1].expand(6, 3, 7).permute(*order)):
            for _ in range(2):  # the first call, and the one that is kept
                for name in ("sum", "amax", "prod", "any", "logsumexp"):
                    options = {"dim": (0, 1, 2)} if name == "logsumexp" else {}
                    found, expected = (getattr(t, name)(**options).item() for t in (y, y.contiguous()))
                    assert found == pytest.approx(expected, rel=1e-4), name
            assert y.sum(dim=(2, 0, 1), keepdim=True).shape == (1, 1, 1)
    g = ic.randn(3, 4, requires_grad=True)
    (g.T.sum() * 2).backward()
    assert g.grad.tolist() == [[2] * 4] * 3


def test_equal_of_turned_tensors(rng):
    x = ic.from_numpy(rng.standard_normal((40, 60)).astype(np.float32))
    y = x.clone()
    for _ in range(3):
        assert ic.equal(x.T, y.T) and ic.equal(x.T, y.T.contiguous()) and ic.equal(x[:, :50].T, y[:, :50].T)
    y[39, 59] += 1
    for _ in range(3):
        assert not ic.equal(x.T, y.T) and not ic.equal(x.T, y.T.contiguous())
        assert ic.equal(x[:, :50].T, y[:, :50].T) and ic.equal(x[:1].expand(3, 60).T, y[:1].expand(3, 60).T)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("alpha", [1.0, 2.5, -0.7])
def test_celu_of_vectors_of_one_sign(alpha, dtype):
    x = np.random.default_rng(4).uniform(0, 2, 64)
    odd = np.array([np.nan, 0.0, -0.0, 3.0, -3.0, 1.0, -1.0, 0.5] * 8)
    for values in (x, -x, 0 * x, -0 * x, np.where(x > 1, np.nan, x), odd):
        t = ic.from_numpy(values).to(dtype=getattr(ic, dtype))
        exact = t.to(ic.float64).numpy()
        expected = np.where(exact > 0, exact, alpha * np.expm1(exact / alpha))
        found = t.celu(alpha).to(ic.float64).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
