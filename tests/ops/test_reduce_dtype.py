"""Reductions and scans with `dtype=`, and what `any` and `all` give of bytes and over no dims."""

import numpy as np
import pytest

import infinicore as ic


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum"])
@pytest.mark.parametrize("source", ["bool", "int8", "uint8", "int64", "float32"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64", "float32", "float16"])
def test_dtype_is_that_of_the_result(name, source, dtype, rng):
    x = rng.integers(0, 5, (3, 70)).astype(source)
    dims = (0, -1) if name == "cumsum" else (None, 0, -1)
    for array in (x, x[:, ::3]):
        wide = array.astype(dtype)
        if dtype == "float16" and name != "sum":
            wide = wide[:, :2]
            array = array[:, :2]
        for dim in dims:
            with np.errstate(all="ignore"):
                exact = wide.astype("float64") if wide.dtype.kind == "f" else wide
                expected = getattr(np, name)(exact, axis=dim, dtype=exact.dtype)
            y = getattr(ic, name)(ic.from_numpy(array), dim, dtype=dtype)
            assert y.dtype is ic.dtype(dtype) and y.shape == expected.shape
            np.testing.assert_allclose(y.numpy(), expected.astype(dtype), rtol=1e-3 if dtype == "float16" else 1e-6)


def test_results_in_bool_and_in_out():
    x = ic.tensor([[128, 128], [0, 0]], dtype="uint8")
    assert x.sum(1, dtype=ic.bool).tolist() == [True, False] and x.prod(dtype=ic.bool).item() is False
    out = ic.zeros(2, dtype="int8")
    assert ic.sum(x, 1, dtype="int8", out=out) is out and out.tolist() == [0, 0]
    assert x.sum(1).dtype is ic.int64 and x.sum(1).tolist() == [256, 0]
    with pytest.raises(TypeError, match="int32"):
        ic.mean(x, dtype="int32")


@pytest.mark.parametrize("name", ["any", "all"])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32"])
def test_any_and_all_of_bytes_are_bytes_and_no_dims_are_none(name, dtype):
    array = np.array([[0, 3, 1], [0, 0, 1]]).astype(dtype)
    for x, t in ((array, ic.from_numpy(array)), (array.T, ic.from_numpy(array).T)):
        function, reference = getattr(ic, name), getattr(np, name)
        for dim in (None, 0, -1, (0, 1)):
            found = function(t, dim)
            assert found.dtype is (ic.uint8 if dtype == "uint8" else ic.bool)
            np.testing.assert_array_equal(found.numpy(), reference(x, axis=dim))
        for dim in ((), []):
            for keepdim in (False, True):
                np.testing.assert_array_equal(function(t, dim, keepdim).numpy(), x != 0)
    assert ic.sum(ic.ones(2, 3), ()).item() == 6 and ic.amax(ic.ones(2, 3), ()).item() == 1
    assert getattr(ic, name)(ic.tensor(3, dtype="uint8"), ()).item() == 1
