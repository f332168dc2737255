"""Random floats of each dtype: which numbers there can be, and where they end."""

import numpy as np
import pytest

import infinicore as ic

DIGITS = {"float8_e5m2": 3, "float8_e4m3": 4, "bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def numbers(x):
    return x.to(ic.float64).numpy()


@pytest.mark.parametrize("dtype", DIGITS)
def test_uniform_numbers_stay_below_their_end(dtype):
    """Numbers of [0, 1) that are rounded to bfloat16 would be 1 once in 512 times: they are 0 then, as in PyTorch."""
    ic.manual_seed(3)
    kind = getattr(ic, dtype)
    x = numbers(ic.rand(100_000, dtype=kind))
    assert kind.digits == DIGITS[dtype] and x.min() >= 0 and x.max() < 1
    assert DIGITS[dtype] > 11 or x.max() == 1 - 2.0 ** -DIGITS[dtype]
    assert x.mean() == pytest.approx(0.5, abs=0.01 + 2.0 ** -DIGITS[dtype])
    for low, high in ((2, 3), (-1, 1), (0, 0.3), (100, 101), (-3, -2.9)):
        y = numbers(ic.empty(100_000, dtype=kind).uniform_(low, high))
        low, high = numbers(ic.tensor([low, high], dtype=kind))
        assert y.min() >= low and (y.max() < high or low == high), (low, high)
    assert (numbers(ic.empty(9, dtype=kind).uniform_(5, 5)) == 5).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_uniform_numbers_are_those_of_torch(dtype):
    torch = pytest.importorskip("torch")
    for low, high in ((0, 1), (2, 3), (-1, 1), (-3, -2.9)):
        theirs = torch.empty(200_000, dtype=getattr(torch, dtype)).uniform_(low, high).double().numpy()
        ours = numbers(ic.empty(200_000, dtype=getattr(ic, dtype)).uniform_(low, high))
        edges = np.linspace(low, high, 9)
        shares = [np.histogram(x, edges)[0] / x.size for x in (ours, theirs)]
        np.testing.assert_allclose(*shares, atol=0.01)
        assert (ours == low).mean() == pytest.approx((theirs == low).mean(), rel=0.3, abs=1e-3)
        assert np.isin(ours[np.abs(ours) > 0.1], theirs).mean() > 0.99


@pytest.mark.parametrize("draw", ["rand", "randn", "uniform_", "normal_", "exponential_", "cauchy_", "log_normal_"])
def test_float64_has_all_its_digits(draw):
    x = getattr(ic, draw)(1000, dtype="float64") if draw in ("rand", "randn") else None
    x = numbers(getattr(ic.empty(1000, dtype="float64"), draw)() if x is None else x)
    assert (x != x.astype(np.float32)).mean() > 0.9 and len(np.unique(x)) == 1000


def test_normal_numbers_of_float64():
    x = np.sort(numbers(ic.randn(20_000, dtype="float64")))
    stats = pytest.importorskip("scipy.stats")
    assert stats.kstest(x, "norm").pvalue > 1e-4


def test_random_integers_that_a_float_holds():
    for dtype, digits in DIGITS.items():
        x = numbers(ic.empty(5000, dtype=dtype).random_())
        assert x.min() >= 0 and x.max() <= 2.0**digits and (x == np.floor(x)).all()


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: ic.rand(3, dtype=ic.int64), "`dtype` of `rand` must be a floating-point or complex dtype, got"),
        (lambda: ic.randn(3, dtype=ic.bool), "`dtype` of `randn` must be"),
        (lambda: ic.rand_like(ic.arange(4)), "use `randint`"),
        (lambda: ic.randn_like(ic.arange(4)), "use `randint`"),
        (lambda: ic.arange(4).uniform_(), "`uniform_` needs a tensor of floats"),
        (lambda: ic.arange(4).exponential_(), "`exponential_` needs a tensor of floats"),
    ],
)
def test_integers_are_no_uniform_numbers(call, sentence):
    with pytest.raises(TypeError, match=sentence):
        call()


def test_bounds_that_a_dtype_does_not_hold():
    x = ic.empty(3, dtype="float16")
    for low, high in ((0, 1e5), (-1e5, 0), (-6e4, 6e4), (0, float("inf")), (float("nan"), 1)):
        with pytest.raises(ValueError, match="of `uniform_`"):
            x.uniform_(low, high)


def test_integers_that_a_dtype_does_not_hold():
    """They would be others, silently: 300 as a byte is 44."""
    for call in (
        lambda: ic.randint(0, 300, (5,), dtype="uint8"),
        lambda: ic.randint(-5, 5, (5,), dtype="uint8"),
        lambda: ic.randint(0, 3, (5,), dtype="bool"),
        lambda: ic.randint_like(ic.zeros(3, dtype="int8"), 200),
        lambda: ic.randint(0, 100_000, (5,), dtype="float16"),
        lambda: ic.empty(3, dtype="uint8").random_(0, 300),
        lambda: ic.randperm(300, dtype="uint8"),
        lambda: ic.randperm(5000, dtype="float16"),
        lambda: ic.randperm(3, dtype="bool"),
    ):
        with pytest.raises(ValueError, match="holds"):
            call()
    assert sorted(ic.randperm(256, dtype="uint8").tolist()) == list(range(256))
    assert sorted(ic.randperm(2049, dtype="float16").tolist()) == list(range(2049))
    assert ic.randperm(0, dtype="bool").shape == (0,)
    assert set(ic.randint(-128, 128, (9999,), dtype="int8").tolist()) == set(range(-128, 128))


def test_the_dtype_of_normal_numbers():
    x, std = ic.zeros(3, dtype="bfloat16"), ic.ones(3, dtype="float64")
    assert ic.normal(x, std).dtype is ic.bfloat16 and ic.normal(0.0, std).dtype is ic.float64
    out = ic.empty(4, dtype="float64")
    assert ic.normal(2.0, 0.0, (4,), out=out) is out and out.tolist() == [2.0] * 4
