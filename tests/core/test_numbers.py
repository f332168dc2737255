"""NumPy's numbers and arrays beside tensors, and numbers that a dtype cannot hold."""

import numpy as np
import pytest

import infinicore as ic


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.float16(2), np.int64(2), np.int8(2), np.uint8(2)])
def test_numbers_of_numpy_are_numbers_on_either_side(number):
    x = ic.tensor([1.0, 3.0], requires_grad=True)
    for call, expected in (
        (lambda: number * x, [2.0, 6.0]),
        (lambda: x * number, [2.0, 6.0]),
        (lambda: number - x, [1.0, -1.0]),
        (lambda: number / x, [2.0, 2 / 3]),
        (lambda: number**x, [2.0, 8.0]),
        (lambda: x**number, [1.0, 9.0]),
    ):
        y = call()
        assert type(y) is ic.Tensor and y.dtype is ic.float32 and y.requires_grad
        np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-6)
    (number * x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert (number < x).tolist() == [False, True] and (x == number).tolist() == [False, False]
    assert (ic.tensor([3], dtype="int8") * number).dtype is (ic.int8 if number.dtype.kind in "iu" else ic.float32)


def test_arrays_beside_tensors_keep_the_graph():
    x, array = ic.tensor([1.0, 3.0], requires_grad=True), np.array([2.0, 4.0])
    for call, expected, slope in (
        (lambda: x + array, [3.0, 7.0], [1, 1]),
        (lambda: array + x, [3.0, 7.0], [1, 1]),
        (lambda: array - x, [1.0, 1.0], [-1, -1]),
        (lambda: x - array, [-1.0, -1.0], [1, 1]),
        (lambda: array * x, [2.0, 12.0], [2, 4]),
        (lambda: array / x, [2.0, 4 / 3], [-2, -4 / 9]),
        (lambda: np.multiply(x, array), [2.0, 12.0], [2, 4]),
        (lambda: np.square(x), [1.0, 9.0], [2, 6]),
    ):
        x.grad = None
        y = call()
        np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-6)
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-6)
    assert (x + array).dtype is ic.float64 and (x + array.astype("f4")).dtype is ic.float32
    assert (array > x).tolist() == [True, True] and (x == array).tolist() == [False, False]
    with pytest.raises(ValueError, match="broadcast"):
        x + np.ones(3)


def test_what_stands_beside_a_tensor_is_a_copy():
    x, array = ic.tensor([1.0, 3.0], requires_grad=True), np.array([2.0, 4.0], dtype="f4")
    y = (array * x).sum()
    array[:] = 100
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_arrays_in_place():
    x = ic.tensor([1.0, 3.0])
    same = x
    x += np.array([1.0, 2.0])
    x *= np.float64(2)
    assert x is same and x.tolist() == [4.0, 10.0] and x.dtype is ic.float32


def test_other_functions_of_numpy_give_arrays_or_refuse_to_lose_gradients():
    x = ic.tensor([1.0, -3.0])
    assert isinstance(np.cbrt(x), np.ndarray) and np.add.reduce(x) == -2.0
    array = np.ones(2)
    array += x
    assert array.tolist() == [2.0, -2.0]
    x.requires_grad_()
    for call in (lambda: np.cbrt(x), lambda: np.add.reduce(x), lambda: np.add(array, x, out=array)):
        with pytest.raises(TypeError, match="detach"):
            call()
    with ic.no_grad():
        assert np.cbrt(x).shape == (2,)


@pytest.mark.parametrize(
    "data, dtype",
    [
        (np.float64(1), "float64"),
        ([np.float64(1)], "float64"),
        ([[np.float64(1), 2.0]], "float64"),
        ([np.float32(1)], "float32"),
        ([np.float16(1), 2], "float16"),
        ([np.float16(1), 2.5], "float32"),
        ([np.int8(1)], "int8"),
        ([np.int8(1), 1], "int64"),
        ([np.ones(2), np.zeros(2)], "float64"),
        ([np.ones(2, "f4")], "float32"),
        ([1, 2.5], "float32"),
        ([True, 2], "int64"),
        ([], "float32"),
        ([[], []], "float32"),
        (np.ones(2), "float64"),
        (range(3), "int64"),
    ],
)
def test_dtypes_of_data(data, dtype):
    assert ic.tensor(data).dtype is ic.dtype(dtype)
    np.testing.assert_array_equal(ic.tensor(data).numpy(), np.array(data))


def test_tensors_in_data():
    for make, dtype in (
        (lambda: [ic.tensor(1.0, dtype="float64"), 2], "float64"),
        (lambda: [ic.tensor(1.0), 2], "float32"),
        (lambda: [[ic.tensor(1), 2.0]], "float32"),
    ):
        t = ic.tensor(make())
        assert t.dtype is ic.dtype(dtype) and t.reshape(2).tolist() == [1, 2]


def test_full_of_a_tensor_or_a_number_of_numpy():
    assert ic.full((2,), ic.tensor(1.5)).tolist() == [1.5, 1.5]
    for value, dtype in ((np.float32(1.5), "float32"), (np.float64(1.5), "float32"), (np.int8(3), "int64")):
        t = ic.full((2,), value)
        assert t.dtype is ic.dtype(dtype) and t.tolist() == [value] * 2
    assert ic.full((2,), np.True_).dtype is ic.bool and ic.full((), 7, dtype="float16").item() == 7
    assert ic.full_like(ic.zeros(2), ic.tensor(2.5)).tolist() == [2.5, 2.5]
    with pytest.raises(TypeError, match="0-dim"):
        ic.full((2,), ic.ones(1))


def test_filling_with_a_tensor_reads_it_anew_and_has_a_gradient():
    value, x = ic.tensor(1.0), ic.zeros(2)
    x.fill_(value)
    value += 1
    assert x.fill_(value).tolist() == [2.0, 2.0]
    value.requires_grad_()
    (x.clone().fill_(value) * 3).sum().backward()
    assert value.grad.item() == 6.0
    with pytest.raises(ValueError, match="0-dim"):
        x.fill_(ic.ones(2))


UNFIT = [("uint8", 300), ("uint8", -300), ("uint8", 255.7), ("int8", 128), ("int32", 2**31), ("int64", 2**63),
         ("int64", float("nan")), ("int16", float("inf")), ("int64", 1e30)]  # fmt: skip


@pytest.mark.parametrize("dtype, value", UNFIT)
def test_numbers_that_do_not_fit_are_errors(dtype, value):
    x = ic.zeros(3, dtype=dtype)
    for call in (
        lambda: ic.tensor([1, value], dtype=dtype),
        lambda: ic.tensor(value, dtype=dtype),
        lambda: ic.full((2,), value, dtype=dtype),
        lambda: x.fill_(value),
        lambda: x.__setitem__(1, value),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"the number .* does not fit into infinicore.{dtype}"):
                call()
    assert x.tolist() == [0, 0, 0]


def test_numbers_that_fit():
    assert ic.tensor([255, 0, 2.7], dtype="uint8").tolist() == [255, 0, 2]
    assert ic.tensor([-(2**63), 2**63 - 1]).tolist() == [-(2**63), 2**63 - 1]
    assert ic.tensor([2**64 - 1], dtype="uint64").tolist() == [2**64 - 1]
    assert ic.tensor([[2**63 + 9], [7]], dtype="uint64").tolist() == [[2**63 + 9], [7]]  # NumPy: floats
    assert ic.tensor([-1, -255], dtype="uint8").tolist() == [255, 1]  # two's complement, as in PyTorch
    assert ic.zeros(2, dtype="int8").fill_(-128.0).tolist() == [-128, -128]
    assert ic.tensor([2, 0.5], dtype="bool").tolist() == [True, True]
    assert ic.tensor(np.array([300]), dtype="uint8").tolist() == [44]  # an array is cast
    assert ic.tensor([1e40]).tolist() == [float("inf")]
    with pytest.raises(ValueError, match="9223372036854775808"):
        ic.tensor([2**63])
