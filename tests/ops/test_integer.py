"""Truth values, bits, shifts and division with remainder: as PyTorch has them, in every dtype."""

import numpy as np
import pytest
from infinicore.kernels.table.registry import ALL, FLOATS, INTEGERS

import infinicore as ic
from infinicore import autograd
from infinicore.dispatch.functions import FUNCTIONS

SIGNED = [d for d in INTEGERS if d[0] == "i"]
DIVISIONS = ["floor_divide", "trunc_divide", "remainder", "fmod"]


def values(dtype):
    """Pairs of all numbers that are special for an integer dtype, and of some that are not."""
    info = np.iinfo(dtype)
    some = [0, 1, 2, 3, 7, 8, 31, 63, 100, info.max, info.max - 1, info.max // 3]
    some += [-1, -2, -3, -7, -64, info.min, info.min + 1] if info.min else []
    return np.array(np.meshgrid(np.array(some, dtype), np.array(some, dtype))).reshape(2, -1)


def layouts(array):
    """Tensors of the values of an array in memory of several kinds."""
    yield ic.from_numpy(array)
    gaps = np.zeros((array.size, 3), array.dtype)
    gaps[:, 1] = array
    yield ic.from_numpy(gaps)[:, 1]


def exact(result, expected):
    assert result.dtype is ic.dtype(expected.dtype)
    np.testing.assert_array_equal(result.numpy(), expected)


# ---- truth values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_logical_ops_ask_whether_elements_are_zero(dtype):
    a = np.array([0, 1, 2, 0, 4, 1, 0, 3] * 5).astype(ic.dtype(dtype).numpy)
    b = np.array([0, 2, 1, 3, 0, 1, 1, 4] * 5).astype(a.dtype)
    for x, y in zip(layouts(a), layouts(b)):
        exact(ic.logical_and(x, y), (a != 0) & (b != 0))
        exact(ic.logical_or(x, y), (a != 0) | (b != 0))
        exact(x.logical_xor(y), (a != 0) ^ (b != 0))
        exact(x.logical_not(), a == 0)
        exact(ic.logical_and(x, y, out=ic.zeros(40, dtype="int16")), ((a != 0) & (b != 0)).astype("i2"))
        z = x.clone()
        assert z.logical_not_() is z
        np.testing.assert_array_equal(z.numpy(), (a == 0).astype(a.dtype))


def test_nan_is_true_and_dtypes_mix():
    x = ic.tensor([float("nan"), 0.0, -0.0, 0.5])
    assert x.logical_not().tolist() == [False, True, True, False]
    assert ic.logical_and(x, ic.tensor([1, 1, 1, 2])).tolist() == [True, False, False, True]
    assert ic.logical_or(x, ic.tensor([False, True, False, True])).tolist() == [True, True, False, True]
    assert ic.logical_and(ic.tensor([256, 1]), ic.tensor([1, 2], dtype="uint8")).tolist() == [True, True]


# ---- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_of_integers(dtype):
    a, b = values(dtype)
    for x, y in zip(layouts(a), layouts(b)):
        exact(x & y, a & b)
        exact(x | y, a | b)
        exact(x ^ y, a ^ b)
        exact(~x, ~a)
        exact(x << y, np.left_shift(a, b))
        exact(x >> y, np.right_shift(a, b))
        exact(x & 5, a & 5)
        exact(6 | x, a | 6)
        exact(3 ^ x, a ^ 3)
        exact(x << 2, np.left_shift(a, 2))
        exact(x >> 1, np.right_shift(a, 1))
        exact(1 << y, np.left_shift(np.ones_like(b), b))
        exact(100 >> y, np.right_shift(np.full_like(b, 100), b))


def test_bits_of_bools_are_truth_values():
    a, b = ic.tensor([True, True, False, False]), ic.tensor([True, False, True, False])
    assert (a & b).tolist() == [True, False, False, False] and (a & b).dtype is ic.bool
    assert (a | b).tolist() == [True, True, True, False]
    assert (a ^ b).tolist() == [False, True, True, False]
    assert (~a).tolist() == [False, False, True, True] and (~a).dtype is ic.bool
    assert (a & True).dtype is ic.bool and (True ^ a).tolist() == [False, False, True, True]
    assert (a & 3).tolist() == [1, 1, 0, 0] and (a & 3).dtype is ic.int64
    assert (a | ic.tensor([2, 0, 2, 0], dtype="uint8")).tolist() == [3, 1, 2, 0]
    assert (a << 2).tolist() == [4, 4, 0, 0]


def test_shifts_beyond_the_bits():
    x = ic.tensor([5, -5])
    for n in (64, 100, -1):
        assert (x << n).tolist() == [0, 0]
        assert (x >> n).tolist() == [0, -1]


def test_in_place_forms():
    x = ic.tensor([12, 10, -7])
    same = x
    x &= 14
    assert x.tolist() == [12, 10, 8]
    x |= ic.tensor([1, 0, 1])
    assert x.tolist() == [13, 10, 9]
    x ^= 3
    assert x.tolist() == [14, 9, 10]
    x <<= 2
    assert x.tolist() == [56, 36, 40]
    x >>= ic.tensor([1, 2, 3])
    assert x.tolist() == [28, 9, 5]
    x //= 2
    assert x.tolist() == [14, 4, 2]
    x %= 3
    assert x.tolist() == [2, 1, 2]
    assert x is same
    assert x.bitwise_or_(4).bitwise_left_shift_(1).floor_divide_(-3).tolist() == [-4, -4, -4]
    y = ic.tensor([-7.5, 7.5])
    y //= 2
    assert y.tolist() == [-4.0, 3.0]
    y %= -3
    assert y.tolist() == [-1.0, -0.0]
    assert y.bitwise_xor_ and ic.tensor([7, -7]).div_(2, rounding_mode="trunc").tolist() == [3, -3]


# ---- division with remainder -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_of_integers(dtype):
    a, b = values(dtype)
    a, b = a[b != 0], b[b != 0]
    with np.errstate(all="ignore"):
        floor, rest, fmod = np.floor_divide(a, b), np.remainder(a, b), np.fmod(a, b)
        trunc = ((a.astype(object) - fmod.astype(object)) // b.astype(object)).tolist()
        trunc = np.array([int(v) & (2 ** np.iinfo(dtype).bits - 1) for v in trunc], np.uint64).astype(dtype)
    for x, y in zip(layouts(a), layouts(b)):
        exact(x // y, floor)
        exact(x % y, rest)
        exact(x.fmod(y), fmod)
        exact(ic.div(x, y, rounding_mode="floor"), floor)
        exact(x.div(y, rounding_mode="trunc"), trunc)
        exact(100 // y, np.floor_divide(np.full_like(b, 100), b))
        exact(100 % y, np.remainder(np.full_like(b, 100), b))
        exact(x // 7, np.floor_divide(a, np.array(7, dtype)))
        exact(ic.floor_divide(x, y, out=ic.zeros(len(a))).to("float64"), floor.astype("f4").astype("f8"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_division_of_floats(dtype, rng):
    some = [0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 2.0, -3.0, 7.5, 1e4, -6e4, 6e-8, np.inf, -np.inf, np.nan, 1e30, -3e38]
    some += list(rng.uniform(-100, 100, 20))
    with np.errstate(all="ignore"):
        a, b = np.array(np.meshgrid(some, some)).reshape(2, -1).astype(ic.dtype(dtype).numpy)
        x, y = ic.from_numpy(a), ic.from_numpy(b)
        wide = "f8" if dtype == "float64" else "f4"
        a, b = a.astype(wide), b.astype(wide)
        fmod, trunc = np.fmod(a, b), np.trunc(a / b)
        rest = np.where((fmod != 0) & ((fmod < 0) != (b < 0)), fmod + b, fmod)
        floor = np.floor_divide(a, b)
    for result, expected in (
        (x // y, floor),
        (x % y, rest),
        (ic.fmod(x, y), fmod),
        (x.div(y, rounding_mode="trunc"), trunc),
        (ic.div(x, y, rounding_mode="floor"), floor),
    ):
        with np.errstate(all="ignore"):
            expected = expected.astype(ic.dtype(dtype).numpy).astype("f8")
        ours = result.to("float64").numpy()
        np.testing.assert_array_equal(ours, expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(ours[number]), np.signbit(expected[number]))  # zeros have one


def test_fmod_of_float32_is_exact(rng):
    bits = rng.integers(0, 1 << 32, (2, 20000), dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        near = np.abs(bits[1]) * rng.integers(1, 1000, 20000).astype("f4")
        for a in (bits[0], near, np.nextafter(near, np.float32(0))):
            np.testing.assert_array_equal(
                ic.fmod(ic.from_numpy(a), ic.from_numpy(bits[1])).numpy(), np.fmod(a, bits[1])
            )


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint16", "uint64"])
def test_an_integer_divided_by_zero_is_an_error(name, dtype):
    function = FUNCTIONS[name]
    x = ic.ones(70, dtype=dtype)
    for at in (0, 40, 69):
        y = ic.ones(70, dtype=dtype)
        y[at] = 0
        wide = ic.ones(70, 2, dtype=dtype)
        wide[:, 0] = y
        for call in (
            lambda: function(x, y),
            lambda: function(x, wide[:, 0]),
            lambda: function(x.clone(), y, out=ic.zeros(70, dtype=dtype)),
            lambda: function(x.unsqueeze(0), y.unsqueeze(1)),
            lambda: function(x, 0),
            lambda: function(5, y),
        ):
            for _ in range(3):  # a call is learned when it comes again
                with pytest.raises(ValueError, match=f"`other` of `{name}` holds a 0") as caught:
                    call()
                assert "\n" not in str(caught.value)
    assert function(x[:0], 0).shape == (0,)
    assert function(x[3:20], ic.ones(17, dtype=dtype)).dtype is x.dtype  # nothing stays behind


def test_zero_divisors_on_threads_and_in_a_graph():
    ic.set_num_threads(2)
    x, y = ic.ones(200_000, dtype="int32"), ic.ones(200_000, dtype="int32")
    for at in (0, 199_999):
        y[at] = 0
        with pytest.raises(ValueError, match="holds a 0"):
            x // y
        y[at] = 1
    assert bool((x // y == 1).all())
    a, b = ic.tensor([7, 8]), ic.tensor([2, 3])
    ic.start_graph_recording()
    quotient = a // b
    graph = ic.stop_graph_recording()
    graph.run()
    assert quotient.tolist() == [3, 2]
    b[1] = 0
    with pytest.raises(ValueError, match="holds a 0"):
        graph.run()


def test_floats_divided_by_zero():
    x = ic.tensor([1.0, -1.0, 0.0])
    np.testing.assert_array_equal((x // 0).numpy(), np.array([np.inf, -np.inf, np.nan], "f4"))
    assert np.isnan((x % 0).numpy()).all() and np.isnan(ic.fmod(x, 0).numpy()).all()


def test_dtypes_of_quotients():
    i, b = ic.tensor([7, -7], dtype="int16"), ic.tensor([True, True])
    assert (i // 2).dtype is ic.int16 and (i // 2.0).dtype is ic.float32
    assert (b // 2).dtype is ic.int64 and (i % ic.tensor([2.5, 2.5])).dtype is ic.float32
    assert (i // ic.tensor([2, 2])).dtype is ic.int64
    assert (i // ic.tensor(2)).dtype is ic.int16
    assert ic.div(i, 2).dtype is ic.float32 and ic.div(i, 2, rounding_mode=None).tolist() == [3.5, -3.5]
    assert ic.true_divide(i, 2).tolist() == i.divide(2).tolist() == [3.5, -3.5]
    assert ic.divide(i, 2, rounding_mode="floor").tolist() == [3, -4]


# ---- derivatives -----------------------------------------------------------------------------------


def test_gradients_of_remainders_and_quotients():
    x = ic.tensor([7.0, -7.0, 7.5], dtype="float64").requires_grad_()
    y = ic.tensor([2.0, 2.0, -2.0], dtype="float64").requires_grad_()
    for function, of_y in ((ic.remainder, [-3.0, 4.0, 4.0]), (ic.fmod, [-3.0, 3.0, 3.0])):
        one, two = autograd.grad(function(x, y).sum(), (x, y))
        assert one.tolist() == [1.0] * 3 and two.tolist() == of_y
    for mode in ("floor", "trunc"):
        one, two = autograd.grad(ic.div(x, y, rounding_mode=mode).sum(), (x, y))
        assert one.tolist() == two.tolist() == [0.0] * 3
    one, two = autograd.grad(ic.div(x, y).sum(), (x, y))
    assert one.tolist() == [0.5, 0.5, -0.5]
    z = x * 1.0
    z %= 4
    z.sum().backward()
    assert x.grad.tolist() == [1.0] * 3


# ---- errors ----------------------------------------------------------------------------------------

FLOAT, INT, BOOL = lambda: ic.ones(2), lambda: ic.tensor([3, 4]), lambda: ic.tensor([True, False])


@pytest.mark.parametrize(
    "call",
    [
        lambda: FLOAT() & FLOAT(),
        lambda: FLOAT() | 1,
        lambda: INT() & 1.0,
        lambda: 1.5 ^ INT(),
        lambda: ~FLOAT(),
        lambda: FLOAT() << 1,
        lambda: INT() >> 1.5,
        lambda: BOOL() << BOOL(),
        lambda: BOOL() // BOOL(),
        lambda: BOOL() % BOOL(),
        lambda: ic.fmod(BOOL(), BOOL()),
        lambda: ic.div(BOOL(), BOOL(), rounding_mode="trunc"),
        lambda: ic.div(INT(), 2, mode="trunc"),
        lambda: INT() & "a",
        lambda: INT() & None,
        lambda: INT().div_(2),
        lambda: INT().floor_divide_(1.5),
        lambda: FLOAT().bitwise_and_(1),
        lambda: ic.logical_and(INT(), "a"),
        lambda: ic.logical_not(3),
    ],
)
def test_wrong_dtypes(call):
    with pytest.raises(TypeError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_wrong_rounding_mode():
    with pytest.raises(ValueError, match="`rounding_mode` of `div` must be None, 'floor' or 'trunc', got 'ceil'"):
        ic.div(INT(), 2, rounding_mode="ceil")


def test_unary_plus():
    x = INT()
    assert +x is x and ic.positive(x) is x and x.positive() is x
    with pytest.raises(TypeError, match=r"`positive`.* takes numbers, got a bool tensor"):
        +BOOL()


# ---- beside PyTorch --------------------------------------------------------------------------------

BINARY = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", *DIVISIONS]
TORCH = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


PAIRED = [n for n in BINARY if n != "trunc_divide"] + ["logical_and", "logical_xor"]


@pytest.mark.parametrize("part", ["a fifth", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PAIRED)
def test_pairs_of_dtypes_beside_torch(name, part):
    """Errors of all pairs; results of a fifth of them, another one for each op, since each is a kernel."""
    torch = pytest.importorskip("torch")
    ours, theirs = getattr(ic, name), getattr(torch, name)
    numbers = np.array([[7, 5, 1, 100], [2, 3, 1, 7]])
    for i, one in enumerate(TORCH):
        for j, two in enumerate(TORCH):
            # of each dtype two pairs in either place, and of five ops in a row one has a pair
            whole = part == "all" or (i + 3 * j + PAIRED.index(name)) % 5 == 0
            a, b = (torch.tensor(n).to(getattr(torch, d)) for n, d in zip(numbers, (one, two)))
            x, y = (ic.tensor(n).to(d) for n, d in zip(numbers, (one, two)))
            try:
                expected = theirs(a, b)
            except (RuntimeError, NotImplementedError):
                with pytest.raises(TypeError):
                    ours(x, y)
                continue
            if whole:
                result = ours(x, y)
                assert result.dtype.name == str(expected.dtype).removeprefix("torch."), (one, two)
                assert result.tolist() == expected.tolist(), (one, two)
