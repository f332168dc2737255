"""Activations that limit: integers, whose dtype they keep."""

import numpy as np
import pytest

import infinicore
import infinicore.nn.functional as F

INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_limits_of_integers_keep_the_dtype(dtype):
    signed = dtype != "uint8"
    low = -4 if signed else 0
    wide = np.arange(low, 10, dtype=dtype)
    for x in (infinicore.from_numpy(wide), infinicore.from_numpy(np.repeat(wide, 2))[::2]):
        v = wide.astype(int)
        for result, expected in (
            (F.relu(x), np.maximum(v, 0)),
            (F.relu6(x), np.clip(v, 0, 6)),
            (F.hardtanh(x, 1, 4), np.clip(v, 1, 4)),
            (F.hardtanh(x, 0.9, 4.9), np.clip(v, 0, 4)),
            (F.threshold(x, 2, 7), np.where(v > 2, v, 7)),
            (F.threshold(x, 2.7, 7.9), np.where(v > 2, v, 7)),
            (infinicore.threshold(x, 2.7, 7.9), np.where(v > 2, v, 7)),
        ):
            assert result.dtype is x.dtype
            np.testing.assert_array_equal(result.numpy(), expected)
    assert F.relu6(x, inplace=True) is x and x.tolist() == np.clip(v, 0, 6).tolist()
    if signed:
        assert F.hardtanh(infinicore.from_numpy(wide)).tolist() == np.clip(v, -1, 1).tolist()
    for call in (
        lambda: F.hardtanh(x, -(2**70), 1), lambda: F.threshold(x, 2**70, 1), lambda: F.threshold(x, 1, float("nan")),
        *([] if signed else [lambda: F.hardtanh(x), lambda: F.threshold(x, -1, 0)]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must fit into the dtype of `input`"):
            call()
    for f in (F.relu6, F.hardtanh, F.relu):
        with pytest.raises(TypeError, match="bool"):
            f(infinicore.tensor([True]))


def test_hardtanh_of_one_value():
    x = infinicore.tensor([-2.0, 1.0, 3.0])
    assert F.hardtanh(x, 1.0, 1.0).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="`min_val`"):
        F.hardtanh(x, 1.0, 0.5)
