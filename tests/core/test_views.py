"""Views as functions and methods, scaled additions, results with names."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore import autograd

VIEWS = [op for op in OPS.values() if op.family == "view"]


def listed(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("op", VIEWS, ids=lambda op: op.name)
def test_views_share_memory(op, rng):
    """As functions and as methods: what is written through them shows in the tensor, which counts as written to."""
    for (array, *args), kwargs in op.samples(rng):
        x = ic.from_numpy(array.copy())
        for views in (listed(getattr(ic, op.name)(x, *args, **kwargs)), listed(getattr(x, op.name)(*args, **kwargs))):
            expected = listed(op.ref(array, *args, **kwargs))
            assert [y.numpy().tolist() for y in views] == [np.asarray(y).tolist() for y in expected]
            for y in views:
                assert y.storage is x.storage
        first = next((y for y in views if y.numel()), None)
        if first is not None:
            before = x._version
            first[(0,) * first.ndim] = 77.0
            assert x._version > before and 77.0 in x.numpy()


@pytest.mark.parametrize("op", VIEWS, ids=lambda op: op.name)
def test_views_take_tensors_alone(op, rng):
    (_, *args), kwargs = next(iter(op.samples(rng)))
    with pytest.raises(TypeError, match=f"`input` of `{op.name}` must be a tensor, got list"):
        getattr(ic, op.name)([1.0], *args, **kwargs)


@pytest.mark.parametrize("name", ["reshape", "flatten", "unflatten"])
def test_shapes_that_no_view_has_are_copied(name, rng):
    args = {"reshape": (12,), "flatten": (), "unflatten": (0, (2, 2))}[name]
    array = rng.standard_normal((3, 4))
    x = ic.from_numpy(array).T
    y = getattr(x, name)(*args)
    assert (y.storage is x.storage) == (name == "unflatten")
    np.testing.assert_array_equal(y.numpy(), array.T.reshape(y.shape))
    with pytest.raises(ValueError, match="needs a copy"):
        x.view(12)


@pytest.mark.parametrize("shape, dim", [((0,), 0), ((2, 0), 1), ((0, 3), 0)])
def test_pieces_of_nothing(shape, dim):
    """As many as `chunk` is asked for, as in PyTorch; one of `split`."""
    x = ic.zeros(*shape).requires_grad_()
    for count, pieces in ((3, x.chunk(3, dim)), (1, x.split(2, dim)), (1, x.split(0, dim)), (2, x.split([0, 0], dim))):
        assert [y.shape for y in pieces] == [list(shape)] * count
        sum(y.sum() for y in pieces).backward()
        assert x.grad.shape == list(shape)
    assert x.split([], dim) == ()
    with pytest.raises(ValueError, match=r"`split_size_or_sections` must be positive, got 0"):
        ic.zeros(3).split(0)


def test_dims_have_names():
    x = ic.zeros(2, 3)
    assert ic.permute(x, dims=(1, 0)).shape == x.permute(dims=(1, 0)).shape == [3, 2]
    assert x.reshape(shape=(3, 2)).shape == [3, 2]
    assert x.transpose(dim0=0, dim1=1).shape == x.expand(sizes=(1, 2, 3))[0].T.shape


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.permute(0, 1.0), lambda x: x.reshape("a"), lambda x: x.narrow(0, 0.5, 1),
        lambda x: x.select(0, 0.5),
        lambda x: x.transpose(0, None), lambda x: x.split(1.5), lambda x: x.chunk("2"), lambda x: x.expand(2, 3.0),
    ],
)  # fmt: skip
def test_what_is_no_integer_is_refused(call):
    with pytest.raises(TypeError, match=r"must .* integer"):
        call(ic.zeros(2, 3))


def test_gradients_of_views_can_be_differentiated(rng):
    """The gradient of a part is that part of what comes, at any order; parts that nothing reaches get zeros."""
    x = ic.from_numpy(rng.standard_normal((4, 6))).requires_grad_()
    first, _, third = x.split([1, 2, 3], 1)
    y = (first**3).sum() + (third.narrow(0, 1, 2) ** 3).sum()
    for order, factor in ((1, 3.0), (2, 6.0), (3, 6.0)):
        (g,) = autograd.grad(y, (x,), create_graph=True)
        expected = np.zeros((4, 6))
        expected[:, :1] = factor * x.detach().numpy()[:, :1] ** (3 - order)
        expected[1:3, 3:] = factor * x.detach().numpy()[1:3, 3:] ** (3 - order)
        np.testing.assert_allclose(g.detach().numpy(), expected, rtol=1e-12)
        y = g.sum()


def test_scaled_additions(rng):
    a, b = (rng.standard_normal((3, 4)) for _ in range(2))
    x, y = ic.from_numpy(a.copy()), ic.from_numpy(b)
    np.testing.assert_allclose(x.add(y, alpha=0.5).numpy(), a + 0.5 * b)
    np.testing.assert_allclose(x.sub(y, alpha=2).numpy(), a - 2 * b)
    assert x.add_(y, alpha=3) is x and x.sub_(2.0, alpha=0.5) is x
    np.testing.assert_allclose(x.numpy(), a + 3 * b - 1.0)
    out = ic.empty((3, 4), dtype=ic.float64)
    assert y.add(y, alpha=2, out=out) is out
    np.testing.assert_allclose(out.numpy(), 3 * b)


def test_results_with_names(rng):
    x = ic.from_numpy(rng.standard_normal((3, 4))).requires_grad_()
    for found in (x.max(dim=1), ic.min(x, 0), x.sort(dim=0), ic.topk(x, 2)):
        values, indices = found
        assert found.values is values and found.indices is indices and indices.dtype is ic.int64
        assert values.requires_grad and not indices.requires_grad
    assert repr(x.max(dim=1)).startswith("max(values=")
    assert x.max().shape == ()


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (3, 4, 5)])
def test_transpose_takes_the_dims_that_numpy_takes(shape, rng):
    """Of matrices too, which have a way of their own."""
    a = rng.standard_normal(shape)
    x, ndim = ic.from_numpy(a), len(shape)
    for dim0 in range(-6, 7):
        for dim1 in range(-6, 7):
            if all(-max(1, ndim) <= d < max(1, ndim) for d in (dim0, dim1)):  # a number has dim 0, as in PyTorch
                expected = np.swapaxes(a, dim0, dim1) if ndim else a
                np.testing.assert_array_equal(x.transpose(dim0, dim1).numpy(), expected)
            else:
                with pytest.raises(IndexError, match=f"for a tensor of {ndim} dims, got "):
                    x.transpose(dim0, dim1)
