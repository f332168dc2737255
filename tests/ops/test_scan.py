"""Scans: layouts, dtypes, threads, and a new one from a rule."""

import numpy as np
import pytest
from infinicore.kernels.ops._rules import scan

import infinicore as ic


def tensor(*values, dtype=None):
    return ic.from_numpy(np.array(values, dtype))


def equal(result, expected):
    assert tuple(result.shape) == np.shape(expected)
    np.testing.assert_array_equal(result.numpy(), expected)


def test_running_sums(rng, threads):
    values = rng.standard_normal((5, 70, 33)).astype(np.float32)
    for x in (ic.from_numpy(values), ic.from_numpy(values).permute(1, 2, 0), ic.from_numpy(values)[:, ::3]):
        for dim in (0, 1, 2):
            expected = np.cumsum(x.numpy().astype(np.float64), dim)
            np.testing.assert_allclose(ic.cumsum(x, dim).numpy(), expected, rtol=1e-6, atol=1e-6)
    long = ic.ones(300_000) * 0.1
    assert abs(ic.cumsum(long, 0)[-1].item() - 300_000 * np.float64(np.float32(0.1))) < 2e-3
    equal(ic.cumsum(tensor(200, 100, 7, dtype=np.uint8), 0), [200, 300, 307])
    equal(ic.cumsum(tensor(True, False, True), 0), [1, 1, 2])
    equal(ic.cumsum(tensor(1, 2, 3), 0, dtype=ic.float32), [1, 3, 6])
    assert ic.cumsum(ic.zeros(0, 3), 0).shape == (0, 3)
    x = tensor(1.0, 2.0, 3.0)
    assert ic.cumsum(x, 0, reverse=True, out=x) is x
    equal(x, [6, 5, 3])


def test_a_new_scan_is_a_rule(declared, rng, threads):
    @scan(start=1, ref=np.cumprod)
    def products(a, b):
        """Running products along `dim`."""
        return a * b

    function = declared(products)
    values = rng.uniform(0.8, 1.2, (5, 70, 33))
    for dtype, tolerance in (("float64", 1e-14), ("float32", 2e-7), ("bfloat16", 8e-3)):
        x = ic.from_numpy(values).to(ic.dtype(dtype))
        for view in (x, x.permute(1, 2, 0), x[:, ::3]):
            for dim in (0, 2):
                exact = view.to(ic.float64).numpy()
                found = function(view, dim).to(ic.float64).numpy()
                np.testing.assert_allclose(found, np.cumprod(exact, dim), rtol=tolerance)
                np.testing.assert_allclose(products.rule.evaluate(exact, dim), np.cumprod(exact, dim), rtol=1e-14)
    integers = tensor([1, 2, 3], [4, 5, 6], dtype=np.int32)
    assert function(integers, 1).dtype is ic.int64
    equal(function(integers, 1), [[1, 2, 6], [4, 20, 120]])
    equal(function(integers, 0, reverse=True), [[4, 10, 18], [4, 5, 6]])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "int8", "bool"])
@pytest.mark.parametrize("size", [1, 15, 16, 50])
def test_rows_together_are_as_rows_alone(dtype, size, rng, threads):
    x = ic.from_numpy(rng.uniform(0, 3, (37, size)).astype(np.float32)).to(dtype=getattr(ic, dtype))
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        if name == "logcumsumexp" and x.dtype.kind != "f":
            continue
        for reverse in (False, True):
            function = lambda x: getattr(ic, name)(x, -1, reverse=reverse)
            alone = ic.cat([function(x[i : i + 1]) for i in range(37)], 0).tolist()
            assert function(x).tolist() == alone
            if x.dtype.kind == "f":
                assert getattr(ic, name)(y := x.clone(), -1, reverse=reverse, out=y).tolist() == alone
