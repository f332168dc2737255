"""Limits: beyond the range of integers, of other dtypes and shapes, in their own memory."""

import numpy as np
import pytest

import infinicore as ic


def test_clamp_beyond_the_dtype_is_no_limit():
    x = ic.tensor([5, 100, 200], dtype="uint8")
    for _ in range(3):
        assert x.clamp(-3, 300).tolist() == [5, 100, 200] and x.clamp(-3, 300).dtype is ic.uint8
        assert x.clamp(7, 300).tolist() == [7, 100, 200] and x.clamp(max=150).tolist() == [5, 100, 150]
        with pytest.raises(ValueError, match=r"`min` of `clamp` is 300"):
            x.clamp(300)
        with pytest.raises(ValueError, match=r"`max` of `clamp` is -1"):
            x.clamp(max=-1)


def test_clamp_promotes_its_limits():
    torch = pytest.importorskip("torch")
    for values, low, high in [
        ([5, 100], 0.5, 20.5),
        ([5, 100], 1, 20.5),
        ([True, False], 0, 1),
        ([True, False], [True, True], None),
        ([5, 100], [6.0, 7.0], None),
        ([5.0, 100.0], [6, 7], None),
        ([5, 100], [[6], [7]], [50]),
        ([[5, 100]], [[6], [7]], [[7, 90], [3, 9]]),
        ([5.0, float("nan")], None, [1, 2]),
    ]:
        arguments = [[make(v) if isinstance(v, list) else v for v in (low, high)] for make in (torch.tensor, ic.tensor)]
        expected = torch.tensor(values).clamp(*arguments[0])
        found = ic.tensor(values).clamp(*arguments[1])
        assert found.dtype is ic.dtype(expected.dtype)
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_clamp_into_its_own_limit():
    x, low, high = ic.tensor([1.0, 5.0, 9.0]), ic.tensor([2.0, 2.0, 2.0]), ic.tensor([6.0, 4.0, 7.0])
    assert ic.clamp(x, low, high, out=high) is high and high.tolist() == [2.0, 4.0, 7.0]
    x.requires_grad_()
    x.clamp(low, ic.tensor(7)).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]


def test_a_permuted_dense_input_keeps_its_layout():
    x = ic.from_numpy(np.random.default_rng(1).standard_normal((4, 5, 6)).astype(np.float32)).permute(2, 0, 1)
    for _ in range(2):  # the second call of this layout is a known one
        for limits in ((-0.5, 0.5), (None, 0.5), (-0.5, None)):
            y = ic.clamp(x, *limits)
            assert tuple(y.stride()) == tuple(x.stride())
            np.testing.assert_array_equal(y.numpy(), np.clip(x.numpy(), *limits))
        for low in (ic.zeros(5), ic.zeros(2, 1, 1, 1)):
            y = ic.clamp(x, low)
            np.testing.assert_array_equal(y.numpy(), np.broadcast_to(np.maximum(x.numpy(), 0), y.shape))
