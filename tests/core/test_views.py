"""Methods that are functions as well, scaled additions, results with names."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.tensor.tensor import METHODS

ARGUMENTS = {
    "broadcast_to": ((2, 3, 4),), "chunk": (2, 1), "expand": (2, 3, 4), "flatten": (0,), "movedim": (0, 1),
    "narrow": (1, 1, 2), "permute": (1, 0), "reshape": (4, 3), "select": (0, 1), "split": (2, 1), "transpose": (0, 1),
    "unflatten": (1, (2, 2)), "unsqueeze": (1,),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_functions_of_methods(name, rng):
    x = ic.from_numpy(rng.standard_normal((3, 4)))
    args = ARGUMENTS.get(name, ())
    one, two = getattr(ic, name)(x, *args), getattr(x, name)(*args)
    for a, b in zip(one, two) if isinstance(one, tuple) else [(one, two)]:
        assert a.shape == b.shape and (name == "clone" or a.data_ptr() == b.data_ptr())
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(TypeError, match=f"`input` of `{name}` must be a tensor, got list"):
        getattr(ic, name)([1.0], *args)


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
