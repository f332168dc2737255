"""Special functions beside SciPy, at their poles and ends, where series change, and of integers."""

import importlib

import numpy as np
import pytest

import infinicore as ic

special = pytest.importorskip("scipy.special")
ENDS = [0.0, -0.0, 1.0, -1.0, -2.0, 0.5, -0.5, 9.999, 10.001, 29.99, 30.01, -3.7, 170.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    "name, reference",
    [(n, n) for n in "digamma erfc erfcx i0 i0e i1 i1e log_ndtr ndtr entr".split()] + [("lgamma", "gammaln")],
)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 3e-13), ("float32", 2e-6)])
def test_ends_and_poles(name, reference, dtype, tolerance):
    x = np.array(ENDS, dtype)
    with np.errstate(all="ignore"):
        expected = getattr(special, reference)(x.astype("f8")).astype(dtype)
    if name in ("i0", "i1"):
        expected[-3:-1] = np.inf, np.inf if name == "i0" else -np.inf  # SciPy's are NaN
    if name == "lgamma":
        expected[-2] = np.inf  # as PyTorch and C; SciPy's is -inf
    np.testing.assert_allclose(getattr(ic, name)(ic.from_numpy(x)).numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "name, reference, x, tolerance",
    [
        ("erfc", "erfc", np.linspace(-12, 9.1, 100001), 4e-7),
        *[
            (f"{scaled}modified_bessel_k{n}", f"k{n}{e}", np.exp(np.linspace(-80, 4.4, 100001)), 1.2e-7)
            for n in (0, 1)
            for scaled, e in (("", ""), ("scaled_", "e"))
        ],
    ],
)
def test_float32_all_along(name, reference, x, tolerance):
    ends = [0.0, -0.0, 2.0, np.nextafter(np.float32(2), np.float32(3)), np.inf, np.nan, -1.0, -np.inf, 1e-45]
    for x in (x.astype("f4"), np.array(ends, "f4")):
        with np.errstate(all="ignore"):
            expected = getattr(special, reference)(x.astype("f8")).astype("f4")
        np.testing.assert_allclose(getattr(ic, name)(ic.from_numpy(x)).numpy(), expected, rtol=tolerance)


def test_inverse_of_erf(rng):
    for dtype, tolerance in (("float64", 1e-13), ("float32", 1e-6)):
        x = np.concatenate([rng.uniform(-1, 1, 2000), 1 - 10.0 ** -np.arange(1, 8), [0, 1, -1, 1.5, np.nan]]).astype(
            dtype
        )
        expected = special.erfinv(x.astype("f8"))
        np.testing.assert_allclose(ic.erfinv(ic.from_numpy(x)).numpy(), expected, rtol=tolerance, atol=1e-30)


@pytest.mark.parametrize("a", [1e-3, 0.7, 20.0, 21.0, 150.0, 5000.0])
def test_incomplete_gamma_functions(a):
    x = a * np.array([0.0, 0.01, 0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 2.0, 10.0, np.inf])
    a = np.full_like(x, a)
    for name in ("gammainc", "gammaincc"):
        ours = getattr(ic.special, name)(ic.from_numpy(a), ic.from_numpy(x)).numpy()
        np.testing.assert_allclose(ours, getattr(special, name)(a, x), rtol=1e-11, atol=1e-15)
    for one, two in ((0, 0), (0, 1), (np.inf, 1), (np.inf, np.inf), (-1, 1), (1, -1), (np.nan, 1)):
        pair = ic.tensor([float(one)]), ic.tensor([float(two)])
        np.testing.assert_equal(ic.igamma(*pair).item(), special.gammainc(float(one), float(two)))


def test_zeta_below_zero_and_polygamma():
    s = np.array([2.0, 3.0, 4.0, 2.0, 1.0, 0.5, 2.5, 2.0, 3.0])
    q = np.array([-0.5, -7.25, -1e5 - 0.5, -1e-9, 2.0, 2.0, -0.5, -3.0, 0.0])
    np.testing.assert_allclose(ic.zeta(ic.from_numpy(s), ic.from_numpy(q)).numpy(), special.zeta(s, q), rtol=1e-12)
    x = ic.tensor([0.3, 4.0], dtype="float64")
    np.testing.assert_allclose(x.polygamma(3).numpy(), special.polygamma(3, [0.3, 4.0]), rtol=1e-12)
    with pytest.raises(ValueError, match="`n` of `polygamma` must not be negative"):
        x.polygamma(-1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_limits_at_infinity(dtype):
    """zeta of infinity is that of its first term, and sin(x) / x ends at 0, also where 1e300 is no number."""
    q = ic.tensor([0.5, 1.0, 2.0, 1.5], dtype=getattr(ic, dtype))
    assert ic.special.zeta(ic.full_like(q, np.inf), q).tolist() == [np.inf, 1.0, 0.0, 0.0]
    ends = ic.tensor([np.inf, -np.inf, np.nan, 0.0], dtype=getattr(ic, dtype))
    np.testing.assert_array_equal(ic.special.spherical_bessel_j0(ends).numpy(), [0.0, 0.0, np.nan, 1.0])


def test_integers_become_float32():
    x = ic.tensor([1, 2, 3])
    for name in ("lgamma", "atan", "sinh", "erfc", "i0", "log2", "sinc", "logit"):
        y = getattr(ic, name)(x)
        assert y.dtype is ic.float32
        np.testing.assert_array_equal(y.numpy(), getattr(ic, name)(x.float()).numpy())
    assert ic.copysign(x, -1).tolist() == [-1, -2, -3] and not ic.signbit(x).any()


def test_signs_of_what_has_none():
    x = ic.tensor([np.nan, -0.0, 0.0, np.inf])
    assert ic.sign(x).tolist() == [0, 0, 0, 1] and ic.signbit(x)[1:].tolist() == [True, False, False]
    assert ic.heaviside(x, ic.tensor(0.5)).tolist() == [0, 0.5, 0.5, 1]
    np.testing.assert_equal(ic.fmax(x, ic.tensor(1.0)).tolist(), [1, 1, 1, np.inf])
    np.testing.assert_equal(ic.logaddexp(x[3:], x[3:]).tolist(), [np.inf])
    assert ic.xlogy(ic.zeros(2), ic.tensor([0.0, -1.0])).tolist() == [0, 0]
    assert ic.atan2(ic.tensor([0.0, -0.0, 1.0]), ic.tensor([-1.0, -1.0, np.inf])).tolist() == pytest.approx(
        [np.pi, -np.pi, 0.0]
    )
    mantissa, exponent = ic.frexp(ic.tensor([1e-40, -3.0, np.inf, 0.0]))
    assert mantissa.tolist() == [*np.frexp(np.float32([1e-40, -3.0, np.inf, 0.0]))[0]]
    assert exponent.tolist() == [-132, 2, 0, 0] and exponent.dtype is ic.int32


def test_names_of_scipy():
    for name in ic.special.__all__:
        assert callable(getattr(ic.special, name)), name
    assert importlib.import_module("infinicore.special").expit(ic.zeros(1)).item() == 0.5
    with pytest.raises(AttributeError, match="no attribute 'airy'"):
        ic.special.airy


def test_powers_at_the_ends_are_those_of_c(rng):
    ends = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 0.5, -0.5, 3.0, 1e-45, 3e38, 16777217.0]
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
        wide = np.power(x.astype(np.float64), y.astype(np.float64))
    for got, expected in (
        (ic.pow(ic.from_numpy(x), ic.from_numpy(y)).numpy(), expected),
        (ic.pow(ic.from_numpy(x).double(), ic.from_numpy(y).double()).numpy(), wide),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-6 if got.dtype == np.float32 else 1e-15)
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[got == 0]))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no floats of 80 bits to compare with")
@pytest.mark.parametrize(
    "base, exponent",
    {
        "usual": (lambda r, n: r.uniform(0.3, 3, n), lambda r, n: r.uniform(-4, 4, n)),
        "wide": (lambda r, n: np.exp(r.uniform(-700, 700, n)), lambda r, n: r.uniform(-1.2, 1.2, n)),
        "near 1": (lambda r, n: 1 + r.uniform(-1e-9, 1e-9, n), lambda r, n: r.uniform(-7e11, 7e11, n)),
        "below normal numbers": (lambda r, n: r.integers(0, 1 << 52, n).view("f8"), lambda r, n: r.uniform(-1, 1, n)),
        "negative": (lambda r, n: -r.uniform(0.1, 10, n), lambda r, n: np.round(r.uniform(-300, 300, n))),
        "to nothing": (lambda r, n: r.uniform(0, 1, n), lambda r, n: r.uniform(700, 760, n)),
        "any bits": (lambda r, n: r.integers(-(1 << 63), 1 << 63, n).view("f8"),) * 2,
    }.values(),
)
def test_powers_of_float64_to_an_ulp(base, exponent, rng):
    x, y = base(rng, 20000), exponent(rng, 20000)
    got = ic.pow(ic.from_numpy(x), ic.from_numpy(y)).numpy()
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        expected = exact.astype(np.float64)
        error = np.abs(got - exact) / np.spacing(np.abs(expected))
    plain = np.isfinite(expected) & (expected != 0)
    assert plain.sum() > 1000 and error[plain].max() < 0.9
    np.testing.assert_array_equal(got[~plain], expected[~plain])


def words(name):
    """All numbers of a dtype of 16 bits."""
    return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(ic.dtype(name).numpy)


def same_numbers(got, expected):
    nan = expected != expected
    np.testing.assert_array_equal(got != got, nan)
    np.testing.assert_array_equal(got[~nan].view(f"i{got.itemsize}"), expected[~nan].view(f"i{got.itemsize}"))


@pytest.mark.parametrize("name", ("bfloat16", "float16"))
def test_signs_of_every_16_bit_number(name, rng):
    x = words(name)
    for other in (rng.permutation(x), x[::-1].copy(), rng.permutation(x)):
        same_numbers(ic.copysign(ic.from_numpy(x), ic.from_numpy(other)).numpy(), np.copysign(x, other))
    same_numbers(ic.abs(ic.from_numpy(x)).numpy(), np.abs(x))
    same_numbers(ic.neg(ic.from_numpy(x)).numpy(), -x)
    assert ic.signbit(ic.from_numpy(x)).tolist() == np.signbit(x).tolist()
    rows = ic.from_numpy(x.reshape(256, 256))
    same_numbers(ic.neg(rows.T)[:, 3:200].numpy(), -x.reshape(256, 256).T[:, 3:200])
    number = ic.copysign(ic.from_numpy(x), -2.0).numpy()  # a number is no word of 16 bits
    same_numbers(number, -np.abs(x))


@pytest.mark.parametrize("name", ("bfloat16", "float16"))
def test_next_of_every_16_bit_number(name, rng):
    x = words(name)
    for other in (rng.permutation(x), np.roll(x, 1), np.roll(x, -1), np.zeros_like(x), x):
        with np.errstate(all="ignore"):
            expected = np.where(x == other, other, np.nextafter(x, other))  # NumPy's float16 keeps the first zero
        same_numbers(ic.nextafter(ic.from_numpy(x), ic.from_numpy(other)).numpy(), expected)
    with pytest.raises(TypeError, match=f"in infinicore.{name} needs one dtype, got {name} and float"):
        ic.nextafter(ic.from_numpy(x), 1.0)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32", "float64"))
def test_mantissas_and_exponents_of_any_bits(dtype, rng):
    kind = ic.dtype(dtype).numpy
    bits = 8 * np.dtype(kind).itemsize
    x = rng.integers(0, 1 << bits, 40007, dtype=f"u{bits // 8}")
    x[:5000] &= (1 << (bits // 2)) - 1  # subnormal numbers
    x = x.view(kind)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64) if bits == 16 else x
        expected, exponents = np.frexp(wide)
    mantissa, exponent = ic.frexp(ic.from_numpy(x))
    assert mantissa.dtype is ic.dtype(dtype) and exponent.dtype is ic.int32
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(mantissa.numpy().astype(wide.dtype), expected)
    np.testing.assert_array_equal(exponent.numpy(), np.where(np.isfinite(wide), exponents, 0))


def test_next_numbers(rng):
    ends = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38]
    for kind in (np.float32, np.float64):
        x, y = (a.ravel().astype(kind) for a in np.meshgrid(ends, ends))
        got = ic.nextafter(ic.from_numpy(x), ic.from_numpy(y)).numpy()
        np.testing.assert_array_equal(got, np.nextafter(x, y))
