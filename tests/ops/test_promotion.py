"""The dtype of an operation, of every pair of operands: dtypes with and without dims, and numbers, beside PyTorch's."""

import itertools
import sys

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
import infinicore.dispatch

DTYPES = ("bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
          "complex64 complex128").split()  # fmt: skip
TENSORS = [(name, shape) for name in DTYPES for shape in ((), (2,))]
NUMBERS = [True, 2, 2.5, 1j]
BINARY = ("add", "sub", "mul", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "where")
# PyTorch has no kernels for these, or promotes them with no other integers; here they are as any other integers.
BEYOND = (
    "not implemented for 'UInt",
    "not implemented for 'ComplexHalf",
    "Promotion for uint16",
    "invalid combination of argu",
    "must be Tensor",
)


def theirs(torch, x):
    return torch.ones(x[1], dtype=getattr(torch, x[0])) if isinstance(x, tuple) else x


def ours(x):
    return ic.ones(x[1], dtype=x[0]) if isinstance(x, tuple) else x


@pytest.mark.parametrize("name", BINARY)
def test_result_dtypes_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    planned = sys.modules["infinicore.dispatch.elementwise"]._result_types
    condition = (torch.ones(2, dtype=torch.bool),) * (name == "where")
    wrong = []
    for pair in itertools.product([*TENSORS, *NUMBERS], repeat=2):
        if name != "where" and not any(isinstance(x, tuple) for x in pair):
            continue
        try:
            with np.errstate(all="ignore"):
                expected = str(getattr(torch, name)(*condition, *[theirs(torch, x) for x in pair]).dtype)[6:]
        except (RuntimeError, TypeError) as error:
            if any(reason in str(error) for reason in BEYOND):
                continue
            expected = None
        if expected == "complex32":
            expected = "complex64"  # of float16 and something complex; there are no halves here
        if name == "pow" and pair[1] is True and expected == "bool":
            continue  # bool ** True is a copy there, while bools have no powers else
        layouts = [(ic.dtype(x[0]), x[1], (1,) * len(x[1])) if isinstance(x, tuple) else type(x) for x in pair]
        try:
            found = planned(OPS[name], layouts)[1].name
        except TypeError:
            found = None
        if found != expected:
            wrong.append((pair, found, expected))
    assert not wrong


def test_result_type():
    torch = pytest.importorskip("torch")
    for pair in itertools.product([*TENSORS, *NUMBERS], repeat=2):
        try:
            expected = torch.result_type(*[theirs(torch, x) for x in pair])
        except (RuntimeError, TypeError):
            continue
        expected = torch.complex64 if expected is torch.complex32 else expected
        assert ic.result_type(*map(ours, pair)) is ic.dtype(expected), pair


@pytest.mark.parametrize("name", ["add", "mul", "lt", "where", "maximum"])
def test_values_of_a_sample_of_pairs(name, rng):
    torch = pytest.importorskip("torch")
    pairs = list(itertools.product(TENSORS, [*TENSORS, *NUMBERS]))
    values = np.array([3.0, 0.0])
    for place in rng.choice(len(pairs), 12, replace=False):
        pair, mine, other = pairs[place], [], []
        for x in pair:
            if not isinstance(x, tuple):
                x = torch.tensor(x) if name == "maximum" else x
                other.append(x)
                mine.append(ic.from_torch(x) if name == "maximum" else x)
                continue
            other.append(torch.tensor(values[0] if not x[1] else values).to(getattr(torch, x[0])))
            mine.append(ic.from_torch(other[-1]))
        if name == "where":
            mine.insert(0, ic.tensor([True, False]))
            other.insert(0, torch.tensor([True, False]))
        try:
            expected = getattr(torch, name)(*other)
        except (RuntimeError, TypeError):
            continue
        found = getattr(ic, name)(*mine)
        assert found.dtype is ic.dtype(expected.dtype) and found.tolist() == expected.tolist(), pair


# ---- powers of integers --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integer_powers_are_integers(dtype, rng):
    low = 0 if dtype[0] == "u" else -5
    base, exponent = (rng.integers(low if k == 0 else 0, 70, (7, 41)).astype(dtype) for k in (0, 1))
    with np.errstate(all="ignore"):
        expected = base**exponent
        for a, b, c in ((base, exponent, expected), (base.T, exponent.T, expected.T)):
            y = ic.pow(ic.from_numpy(a), ic.from_numpy(b))
            assert y.dtype is ic.dtype(dtype)
            np.testing.assert_array_equal(y.numpy(), c)
        for _ in range(3):  # a call that comes again may take another way
            np.testing.assert_array_equal((ic.from_numpy(base) ** 5).numpy(), base ** np.array(5, dtype))


def test_integer_powers_keep_all_digits_and_refuse_negative_exponents():
    assert (ic.tensor([3]) ** 39).tolist() == [3**39]
    assert (2 ** ic.tensor([10, 62])).tolist() == [1 << 10, 1 << 62]
    assert (ic.tensor([3]) ** 0.5).dtype is ic.float32 and (ic.tensor([True]) ** 2).dtype is ic.int64
    x = ic.tensor([3, 4], dtype="int32")
    x **= 2
    assert x.tolist() == [9, 16] and x.dtype is ic.int32
    for _ in range(4):
        assert (x**1).tolist() == [9, 16]
        with pytest.raises(ValueError, match=r"`exponent` of `pow` is -1"):
            x**-1
    with pytest.raises(ValueError, match=r"`exponent` of `pow` is 300"):
        ic.tensor([3], dtype="uint8") ** 300
    bases, exponents = ic.tensor([1, -1, -1, 0, 2, 3]), ic.tensor([-1, -1, -2, -1, -3, 0])
    assert (bases**exponents).tolist() == [1, -1, 1, 0, 0, 1]


def test_powers_of_floats_by_integers_have_gradients():
    x = ic.tensor([2.0, -3.0], requires_grad=True)
    (x ** ic.tensor([3, 2])).sum().backward()
    assert x.grad.tolist() == [12.0, -6.0]


def test_bools():
    a, b = ic.tensor([True, True, False]), ic.tensor([True, False, False])
    assert ic.maximum(a, b).tolist() == [True, True, False] and ic.minimum(a, b).tolist() == [True, False, False]
    assert ic.maximum(a, b).dtype is ic.bool
    for call in (lambda: a - b, lambda: 1 - a, lambda: ic.ones(3) - a, lambda: ic.ones(3) - True, lambda: a**b):
        with pytest.raises(TypeError, match="bool"):
            call()
