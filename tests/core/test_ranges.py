"""`arange` and `linspace`: counts, integer dtypes beside fractions, wrong arguments."""

import numpy as np
import pytest

import infinicore as ic

RANGES = [
    ((0.5, 5.5), "int64", [0, 1, 2, 3, 4]),
    ((0, 5, 1.5), "int64", [0, 1, 2, 3, 4]),  # the step is 1 before the values are counted
    ((0, 5, 1.5), "int32", [0, 1, 2, 3]),  # and here after it
    ((0, 5, 0.5), "int32", [0] * 10),
    ((-2.5, 5.7, 1.5), "int8", [-2, -1, 0, 1, 2, 3]),
    ((5, 0.5, -1.5), "uint8", [5, 4, 3]),
    ((5, 0.5, -1.5), "int64", [5, 4, 3, 2, 1]),
    ((0, 1, 0.25), "float32", [0, 0.25, 0.5, 0.75]),
    ((0, 1, 0.25), "bfloat16", [0, 0.25, 0.5, 0.75]),
    ((2**53, 2**53 + 3), "int64", [2**53, 2**53 + 1, 2**53 + 2]),
    ((3, 3), "int64", []),
]


@pytest.mark.parametrize("args, dtype, expected", RANGES)
def test_arange(args, dtype, expected):
    x = ic.arange(*args, dtype=ic.dtype(dtype))
    assert x.dtype is ic.dtype(dtype) and x.tolist() == expected


def test_numbers_of_any_kind():
    assert ic.arange(ic.tensor(3)).tolist() == ic.arange(np.int32(3)).tolist() == [0, 1, 2]
    assert ic.arange(ic.tensor(3.0)).dtype is ic.arange(np.float64(3)).dtype is ic.float32
    assert ic.linspace(ic.tensor(0), np.float32(3), 4).tolist() == [0, 1, 2, 3]


SPACES = [
    ((0, 10, 5), "int64", [0, 2, 5, 7, 10]),
    ((0.9, 10.9, 5), "int64", [0, 2, 5, 7, 10]),
    ((-5.5, 5.5, 8), "int32", [-5, -3, -2, 0, 0, 2, 3, 5]),
    ((7.5, 0, 3), "uint8", [7, 3, 0]),
    ((1.9, 3, 1), "int16", [1]),
    ((0, 3, 0), "int32", []),
    ((0, 1, 3), "float32", [0, 0.5, 1]),
]


@pytest.mark.parametrize("args, dtype, expected", SPACES)
def test_linspace(args, dtype, expected):
    x = ic.linspace(*args, dtype=ic.dtype(dtype))
    assert x.dtype is ic.dtype(dtype) and x.tolist() == expected


def test_as_pytorch(rng):
    torch = pytest.importorskip("torch")
    for name in ("int8", "int16", "int32", "int64", "uint8", "float32", "float64"):
        for _ in range(100):
            start, end, step = (round(v, rng.integers(3)) for v in rng.uniform(1, 20, 3))
            start, end = (start, end) if name == "uint8" else (start - 10, end - 10)
            step = step / 4 if end >= start else -step / 4
            if name == "int64" and int(step) == 0:
                step = 1 if end >= start else -1  # PyTorch 2.11 divides by it, which ends the process
            for function, args in (("arange", (start, end, step)), ("linspace", (start, end, int(rng.integers(40))))):
                try:
                    expected = getattr(torch, function)(*args, dtype=getattr(torch, name)).numpy()
                except (ValueError, RuntimeError):
                    with pytest.raises(ValueError, match="`step`"):
                        getattr(ic, function)(*args, dtype=name)
                    continue
                result = getattr(ic, function)(*args, dtype=name).numpy()
                tolerance = 1e-5 if name.startswith("float") else 0
                np.testing.assert_allclose(result, expected, tolerance, tolerance, err_msg=f"{function}{args} {name}")


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: ic.arange(0, -3, 2), ValueError, "`end`"),
        (lambda: ic.arange(0.9, 0.2, dtype=ic.int64), ValueError, "`end`"),
        (lambda: ic.arange(0, 5, 0.5, dtype=ic.int64), ValueError, "`step`"),
        (lambda: ic.arange(0, float("inf")), ValueError, "`end`"),
        (lambda: ic.arange("3"), TypeError, "`end`"),
        (lambda: ic.arange(ic.zeros(2), 3), TypeError, "`start`"),
        (lambda: ic.linspace(ic.zeros(2), 3, 4), TypeError, "`start`"),
        (lambda: ic.linspace(0, 3, -1), ValueError, "`steps`"),
        (lambda: ic.linspace(-3, 3, 4, dtype=ic.uint8), ValueError, "`start` -3"),
        (lambda: ic.linspace(0, 300, 4, dtype=ic.uint8), ValueError, "`end` 300"),
    ],
)
def test_wrong_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call()
