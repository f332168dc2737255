"""`infinicore.testing`: the same verdicts, and first lines, as PyTorch's."""

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")

ONE = [1.0, 2.0, 3.0]
# (make of a library: actual, expected), options
PAIRS = {
    "equal": (lambda t: (t.tensor(ONE), t.tensor(ONE)), {}),
    "within": (lambda t: (t.tensor(ONE), t.tensor(ONE) + 1e-6), {}),
    "beyond": (lambda t: (t.tensor(ONE), t.tensor([1.0, 2.1, 3.0])), {}),
    "within what is given": (lambda t: (t.tensor(ONE), t.tensor([1.0, 2.1, 3.0])), {"rtol": 0, "atol": 0.2}),
    "half": (lambda t: (t.tensor(ONE).half(), t.tensor([1.0, 2.001, 3.0]).half()), {}),
    "integers": (lambda t: (t.tensor([1, 2]), t.tensor([1, 3])), {}),
    "large integers": (lambda t: (t.tensor([2**62]), t.tensor([-(2**62)])), {}),
    "bytes": (lambda t: (t.tensor([1, 2]).to(t.uint8), t.tensor([1, 3]).to(t.uint8)), {}),
    "bools": (lambda t: (t.tensor([True, False]), t.tensor([True, True])), {}),
    "NaN": (lambda t: (t.tensor([float("nan")]), t.tensor([float("nan")])), {}),
    "equal NaN": (lambda t: (t.tensor([float("nan")]), t.tensor([float("nan")])), {"equal_nan": True}),
    "NaN and a number": (lambda t: (t.tensor([float("nan")]), t.tensor([1.0])), {"equal_nan": True}),
    "infinity": (lambda t: (t.tensor([float("inf")]), t.tensor([float("inf")])), {}),
    "infinity and a number": (lambda t: (t.tensor([float("inf")]), t.tensor([1.0])), {}),
    "a number and infinity": (lambda t: (t.tensor([1.0]), t.tensor([float("inf")])), {}),
    "other sizes": (lambda t: (t.tensor(ONE), t.tensor(ONE[:2])), {}),
    "no broadcasting": (lambda t: (t.ones(3), t.ones(1)), {}),
    "other dtypes": (lambda t: (t.tensor(ONE), t.tensor(ONE).double()), {}),
    "dtypes unchecked": (lambda t: (t.tensor(ONE), t.tensor(ONE).double()), {"check_dtype": False}),
    "other strides": (lambda t: (t.ones(2, 2), t.ones(2, 2).t()), {"check_stride": True}),
    "strides unchecked": (lambda t: (t.ones(2, 3), t.ones(3, 2).t()), {}),
    "numbers": (lambda t: (1.0, 1.0 + 1e-9), {}),
    "other numbers": (lambda t: (1, 2), {}),
    "lists": (lambda t: ([t.ones(2), 1.0], [t.ones(2), 1.0]), {}),
    "other lists": (lambda t: ([t.ones(2), 1.0], [t.ones(2), 2.0]), {}),
    "lengths": (lambda t: ([t.ones(2)], [t.ones(2), t.ones(2)]), {}),
    "mappings": (lambda t: ({"a": t.ones(2)}, {"a": t.ones(2)}), {}),
    "other mappings": (lambda t: ({"a": t.ones(2)}, {"a": t.zeros(2)}), {}),
    "other keys": (lambda t: ({"a": t.ones(2)}, {"b": t.ones(2)}), {}),
    "arrays": (lambda t: (np.ones(2), np.ones(2)), {}),
    "complex": (lambda t: (t.tensor([1 + 1j]), t.tensor([1 + 1.1j])), {}),
    "of nothing": (lambda t: (t.ones(0), t.ones(0)), {}),
    "gradients": (lambda t: (t.ones(2, requires_grad=True), t.ones(2)), {}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_verdicts(name):
    make, options = PAIRS[name]
    said = []
    for lib in (ic, torch):
        try:
            lib.testing.assert_close(*make(lib), **options)
            said.append(None)
        except AssertionError as error:
            said.append(str(error).splitlines()[0].split(":")[0])
    assert said[0] == said[1] or all("mappings do not match" in words for words in said)


def test_words():
    with pytest.raises(AssertionError) as found:
        ic.testing.assert_close(ic.tensor([1.0, 2.5, 3.0]), ic.tensor(ONE))
    lines = str(found.value).splitlines()
    assert lines[2] == "Mismatched elements: 1 / 3 (33.3%)"
    assert lines[3] == "Greatest absolute difference: 0.5 at index (1,) (up to 1e-05 allowed)"
    assert lines[4] == "Greatest relative difference: 0.25 at index (1,) (up to 1.3e-06 allowed)"
    with pytest.raises(AssertionError, match=r"^mine$"):
        ic.testing.assert_close(1, 2, msg="mine")
    with pytest.raises(AssertionError, match=r"^mine: Scalars"):
        ic.testing.assert_close(1, 2, msg=lambda words: f"mine: {words}")
    with pytest.raises(AssertionError, match=r"for item \['a'\]\nThe failure occurred for item \[1\]"):
        ic.testing.assert_close({"a": [1, 2]}, {"a": [1, 3]})
    with pytest.raises(ValueError, match="`rtol` and `atol`"):
        ic.testing.assert_close(1, 2, rtol=0.1)
    with pytest.raises(TypeError, match="takes tensors and numbers"):
        ic.testing.assert_close("a", "a")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "uint8", "int64", "bool", "complex64"])
def test_made(dtype):
    for options in ({}, {"low": 1, "high": 3}, {"noncontiguous": True}, {"exclude_zero": True}):
        mine, theirs = (
            lib.testing.make_tensor((4, 5), dtype=getattr(lib, dtype), device="cpu", **options) for lib in (ic, torch)
        )
        assert (mine.dtype.name, tuple(mine.shape)) == (
            dtype,
            (4, 5),
        ) and mine.is_contiguous() == theirs.is_contiguous()
        values = [x.to(lib.complex64).numpy() for lib, x in ((ic, mine), (torch, theirs))]
        if "low" in options and dtype not in ("bool", "complex64"):
            assert all((v.real >= 1).all() and (v.real <= 3).all() for v in values)
        if "exclude_zero" in options:
            assert all((v != 0).all() for v in values)
    assert ic.testing.make_tensor(3, dtype=ic.float32, requires_grad=True).requires_grad
    with pytest.raises(ValueError, match="`low`"):
        ic.testing.make_tensor(3, dtype=ic.float32, low=2, high=1)
