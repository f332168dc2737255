"""Every elementwise op of the table: values, dtypes, layouts, special values, `out=`."""

import functools

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore.dispatch.functions import FUNCTIONS

from ..in_turn import in_turn

ELEMENTWISE = [op for op in OPS.values() if op.scalar and op.result != "given"]
SIZES = [1, 3, 17, 257, 1000]
CHECKED = ("float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8", "bool")
CASES = [(op, dtype) for op in ELEMENTWISE for dtype in op.dtypes if dtype in CHECKED]


def public(op):
    """The public function of a scalar rule; a loss without its mean."""
    function = FUNCTIONS[op.name]
    return functools.partial(function, reduction="none") if op.family == "loss" else function


def draw(rng, op, dtype, shape):
    """Arrays for the inputs of an op, in its domain."""
    low, high = op.domain
    arrays = []
    for name in op.parameters:
        kind = "bool" if name == "condition" else dtype
        if kind == "bool":
            arrays.append(rng.integers(0, 2, shape).astype(bool))
        elif kind.startswith(("int", "uint")):
            lowest = max(int(np.ceil(low)), 0 if kind[0] == "u" or low >= 0 else -100)
            lowest = max(lowest, 1) if op.divisor or op.name in ("div", "log") else lowest
            arrays.append(rng.integers(lowest, 5, shape).astype(kind))
        else:
            arrays.append(np.asarray(rng.uniform(low, high, shape)).astype(ic.dtype(kind).numpy))
    return arrays


def exact(op, arrays, result):
    """The reference in float64 (integers and bools as they are)."""
    wide = [
        a if a.dtype.kind in "iub" and a.dtype.name in ("bool", "int32", "int64", "uint8") else a.astype(np.float64)
        for a in arrays
    ]
    if op.result == "float":
        wide = [a.astype(np.float64) for a in wide]
    with np.errstate(all="ignore"):
        return op.ref(*wide)


def check(op, dtype, result, expected):
    rtol, atol = op.tolerance_for(result.dtype.name)
    ours = result.cpu().numpy()
    if result.dtype.is_floating_point:
        np.testing.assert_allclose(ours.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(ours, expected.astype(ours.dtype))


@pytest.mark.parametrize("op, dtype", in_turn(CASES))
def test_values_sizes_and_layouts(op, dtype, rng, place):
    function = lambda *tensors: public(op)(*place(tensors))
    for size in SIZES:
        arrays = draw(rng, op, dtype, size)
        check(op, dtype, function(*map(ic.from_numpy, arrays)), exact(op, arrays, dtype))
    for make in (
        lambda s: draw(rng, op, dtype, s),  # contiguous
        lambda s: [a.T for a in draw(rng, op, dtype, s[::-1])],  # transposed
        lambda s: [a[1::2, ::3] for a in draw(rng, op, dtype, (2 * s[0] + 1, 3 * s[1]))],  # strided
        lambda s: [np.broadcast_to(a, s) for a in draw(rng, op, dtype, (1, s[1]))],  # stride 0, outer
        lambda s: [np.broadcast_to(a, s) for a in draw(rng, op, dtype, (s[0], 1))],  # stride 0, inner
        lambda s: [a[::-1, ::-1] for a in draw(rng, op, dtype, s)],  # negative strides
    ):
        arrays = make((5, 300))
        arrays[-1] = np.ascontiguousarray(arrays[-1]) if len(arrays) > 1 else arrays[-1]
        check(op, dtype, function(*map(strided, arrays)), exact(op, arrays, dtype))
    for shape in ((), (0,), (3, 0, 2)):
        arrays = draw(rng, op, dtype, shape)
        result = function(*map(ic.from_numpy, arrays))
        assert result.shape == shape
        check(op, dtype, result, np.asarray(exact(op, arrays, dtype)))


def strided(array):
    """A tensor with the strides of `array`, also where NumPy forbids writing."""
    steps = tuple(s // array.itemsize for s in array.strides)
    t = ic.strided_from_blob(array.ctypes.data, array.shape, steps, dtype=ic.dtype(array.dtype))
    t.storage.owner = array
    return t


ALIASING = [op for op in ELEMENTWISE if "float32" in op.dtypes and op.result != "bool"]


@pytest.mark.parametrize("op", ALIASING, ids=lambda op: op.name)
def test_out_may_alias_inputs_exactly_or_partially(op, rng, place):
    function = public(op)
    arrays = draw(rng, op, "float32", 500)
    expected = exact(op, arrays, "float32")
    for j, array in enumerate(arrays):
        if array.dtype == bool:
            continue
        tensors = [place(ic.tensor(a)) for a in arrays]
        assert function(*tensors, out=tensors[j]) is tensors[j]
        check(op, "float32", tensors[j], expected)
        tensors = [place(ic.tensor(a)) for a in arrays]
        memory = place(ic.zeros(501))
        memory[:500] = tensors[j]
        tensors[j] = memory[:500]
        check(op, "float32", function(*tensors, out=memory[1:]), expected)
    padded = place(ic.zeros(500, 2))
    check(op, "float32", function(*place([ic.tensor(a) for a in arrays]), out=padded[:, 1]), expected)
    assert padded[:, 0].tolist() == [0] * 500


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", ["add", "mul", "exp", "log", "tanh", "erf", "sigmoid", "silu", "sqrt", "maximum", "lt", "sin", "abs"]
)
def test_nan_and_infinity(name, dtype):
    op = OPS[name]
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e4, -6e4])
    arrays = [values] if len(op.parameters) == 1 else [np.repeat(values, 9), np.tile(values, 9)]
    with np.errstate(all="ignore"):
        rounded = [a.astype(ic.dtype(dtype).numpy) for a in arrays]
        expected = op.ref(*[a.astype(np.float64) for a in rounded])
        expected = np.asarray(expected).astype(ic.dtype(dtype).numpy if op.result != "bool" else bool)
    if name == "silu":
        expected[2] = np.nan  # -inf * 0
    ours = getattr(ic, name)(*map(ic.from_numpy, rounded)).numpy()
    if op.result == "bool":
        np.testing.assert_array_equal(ours, expected)
    else:
        rtol, atol = op.tolerance_for(dtype)
        np.testing.assert_allclose(ours.astype("f8"), expected.astype("f8"), rtol=max(rtol, 1e-5), atol=atol)


FLOATING = ["float16", "bfloat16", "float32", "float64", "float8_e4m3", "float8_e5m2"]


@pytest.mark.parametrize("source", [*FLOATING, "int32", "uint8", "bool"])
@pytest.mark.parametrize("target", [*FLOATING, "int64", "int8", "bool"])
def test_cast(source, target, rng):
    values = rng.uniform(0, 100, 133)
    values[::7] = 0
    if source in FLOATING and target in FLOATING:
        values[1::7] *= -1e-3
    array = values.astype(ic.dtype(source).numpy)
    ours = ic.cast(ic.from_numpy(array), target).numpy()
    expected = array.astype(np.float32 if array.dtype != np.float64 else np.float64).astype(ic.dtype(target).numpy)
    np.testing.assert_array_equal(ours.view(f"u{ours.itemsize}"), expected.view(f"u{ours.itemsize}"))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_rounding_of_small_floats_is_that_of_ml_dtypes(name, rng):
    target = ic.dtype(name).numpy
    bits = rng.integers(0, 1 << 32, 200000, dtype=np.uint32)
    bits = bits[~np.isnan(bits.view(np.float32))]
    edges = np.arange(0, 1 << (8 * target.itemsize), dtype=f"u{target.itemsize}").view(target).astype(np.float32)
    values = np.concatenate(
        [
            bits.view(np.float32),
            edges,
            edges * np.float32(1.03),
            np.float32([0, -0.0, 448, 464, 465, 480, 57344, 61440]),
        ]
    )
    with np.errstate(all="ignore"):
        expected = values.astype(target)
    ours = ic.cast(ic.from_numpy(values), name).numpy()
    nan = np.isnan(values)
    np.testing.assert_array_equal(np.isnan(ours.astype("f4")), np.isnan(expected.astype("f4")))
    np.testing.assert_array_equal(ours[~nan].view(f"u{target.itemsize}"), expected[~nan].view(f"u{target.itemsize}"))
    wide = ic.cast(ic.from_numpy(expected), "float32").numpy()
    np.testing.assert_array_equal(wide, expected.astype(np.float32))


def test_numbers_below_the_normal_ones_are_rounded(rng):
    """In vectors with normal numbers and without: the instruction of some CPUs would make zeros of them."""
    values = rng.integers(0, 1 << 23, 4096, dtype=np.uint32).view(np.float32)
    values[rng.integers(0, 4096, 64)] = rng.standard_normal(64)
    ours = ic.cast(ic.from_numpy(values), "bfloat16").numpy()
    np.testing.assert_array_equal(ours.view("u2"), values.astype(ours.dtype).view("u2"))
    assert (ours.view("u2") != 0).mean() > 0.9


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.exact], ids=lambda op: op.name)
def test_exact_results_are_not_rounded(op, rng):
    """Of all numbers of bfloat16, results are those of float32, and NaN where these are."""
    every = np.arange(1 << 16, dtype=np.uint16).view(ic.bfloat16.numpy)
    given = [every, rng.permutation(every)][: len(op.parameters)]
    function = public(op)
    ours = function(*(ic.from_numpy(x) for x in given)).numpy()
    wanted = function(*(ic.from_numpy(x.astype(np.float32)) for x in given)).numpy()
    np.testing.assert_array_equal(ours.astype(np.float32), wanted)
    whole = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(ours)[whole], np.signbit(wanted)[whole])


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: ic.add(ic.ones(2), ic.ones(3)), ValueError),
        (lambda: ic.add(ic.ones(2), "a"), TypeError),
        (lambda: ic.exp(3.0), TypeError),
        (lambda: ic.exp(ic.ones(2, dtype="float8_e4m3")), TypeError),
        (lambda: ic.add(ic.ones(2), ic.ones(2), out=ic.ones(3)), ValueError),
        (lambda: ic.add(ic.ones(2), ic.ones(2), out=ic.ones(2, dtype="int32")), TypeError),
        (lambda: ic.add(ic.ones(2), ic.ones(2), out=ic.ones(1).expand(2)), ValueError),
        (lambda: ic.where(ic.ones(2), ic.ones(2), ic.ones(2)), TypeError),
        (lambda: ic.sub(ic.ones(2, dtype="bool"), ic.ones(2, dtype="bool")), TypeError),
    ],
)
def test_wrong_arguments(call, error):
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_many_dims_and_many_threads(rng):
    ic.set_num_threads(2)
    a = rng.standard_normal((2, 3, 1, 4, 5, 1, 7, 2)).astype("f4")
    b = rng.standard_normal((3, 6, 1, 5, 3, 1, 1)).astype("f4")
    np.testing.assert_array_equal((ic.from_numpy(a) + ic.from_numpy(b)).numpy(), a + b)
    big = rng.standard_normal((700, 301)).astype("f4")
    t = ic.from_numpy(big)
    np.testing.assert_array_equal((t.T + t.T[:1]).numpy(), big.T + big.T[:1])
    np.testing.assert_array_equal((t * t[:, :1]).numpy(), big * big[:, :1])


POWERS = (2, 3, -1, -2, 0.5, -0.5)
SPECIAL = [0.0, -0.0, 3.0, -2.0, np.inf, -np.inf, np.nan, 1e-30, 0.7]


@pytest.mark.parametrize("exponent", [*POWERS, *map(float, POWERS[:4]), 1.5, 4, 0, -3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64", "int64", "bool"])
def test_powers_by_numbers_are_those_of_torch(dtype, exponent):
    torch = pytest.importorskip("torch")
    if dtype in ("int64", "bool") and not (isinstance(exponent, int) and exponent >= 0):
        pytest.skip("integers have no negative powers, and PyTorch's of fractions are of other dtypes")
    values = [0, 1, 3, -2] if dtype == "int64" else [True, False] if dtype == "bool" else SPECIAL
    values = [1 + 2j, -0.5j, 3.0, 0.3 - 0.1j] if dtype == "complex64" else values
    found = []
    for module in (ic, torch):
        x = module.tensor(values, dtype=getattr(module, dtype))
        y = x**exponent
        np.testing.assert_array_equal(np.array(module.pow(x, exponent=exponent).tolist()), np.array(y.tolist()))
        found.append((str(y.dtype).split(".")[-1], np.array(y.tolist())))
    assert found[0][0] == found[1][0]
    rtol = {"bfloat16": 8e-3, "float32": 1e-6, "complex64": 2e-6}.get(dtype, 1e-14)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=rtol)
    if dtype in ("float32", "float64"):
        zero = np.array(SPECIAL) == 0
        np.testing.assert_array_equal(np.signbit(found[0][1][zero]), np.signbit(found[1][1][zero]))


@pytest.mark.parametrize("exponent", POWERS)
def test_powers_by_numbers_are_roots_and_products(exponent, rng):
    """With derivatives of their own, in place, into `out`, and with autocast and tensors as exponents as before."""
    x = ic.from_numpy(rng.uniform(0.5, 2, (5, 7))).requires_grad_()
    y = x**exponent
    general = x ** ic.full((), float(exponent), dtype="float64")
    np.testing.assert_allclose(y.detach().numpy(), general.detach().numpy(), rtol=1e-14)
    (found,), (expected,) = (ic.autograd.grad(z.sum(), x, create_graph=True) for z in (y, general))
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-13)
    (twice,), (expected,) = (ic.autograd.grad(z.sum(), x) for z in (found, expected))
    np.testing.assert_allclose(twice.numpy(), expected.numpy(), rtol=1e-12)
    plain = x.detach()
    into = ic.empty_like(plain)
    assert ic.pow(plain, exponent, out=into) is into
    np.testing.assert_array_equal(into.numpy(), y.detach().numpy())
    np.testing.assert_array_equal(plain.clone().pow_(exponent).numpy(), into.numpy())
    for arguments, named in (((plain,), {}), ((plain, 2, 3), {}), ((plain,), {"other": 2})):
        with pytest.raises(TypeError):
            ic.pow(*arguments, **named)
