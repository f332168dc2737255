"""Products on another device, `host2` or with `--device cuda` a GPU: sizes and layouts of all its kernels."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.nn import functional as F

from ..ops.panels import random_weight
from . import compared

# of the largest result, for rounding of results and of sums
ROUNDING = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 5e-3, "float16": 7e-4}
SIZES = [
    (1, 1, 1),
    (1, 4096, 64),
    (2, 300, 1031),
    (5, 257, 96),
    (16, 33, 520),
    (17, 70, 4096),  # few tiles: k is cut
    (33, 65, 17),
    (64, 64, 64),
    (129, 257, 100),
    (300, 200, 1000),
    (1000, 3, 40),
    (7, 5, 0),
]


def laid_out(values, dtype, device, layout):
    """A tensor [rows, columns] with these values: in rows, in columns, or in a part of larger rows."""
    x = ic.from_numpy(values).to(dtype).to(device)
    if layout == "columns":
        return x.t().contiguous().t()
    if layout == "part":
        wide = ic.zeros(x.shape[0], x.shape[1] + 5, dtype=x.dtype, device=device)
        wide[:, 3 : 3 + x.shape[1]] = x
        return wide[:, 3 : 3 + x.shape[1]]
    return x


def agree(got, want, dtype, terms=1024):
    """Within rounding, whose errors grow as the root of how many `terms` a sum adds up one after the other."""
    got, room = got.cpu().to(ic.float64).numpy(), ROUNDING[dtype] * max(1.0, terms / 1024) ** 0.5
    assert got.shape == want.shape
    if want.size:
        np.testing.assert_allclose(got, want, rtol=0, atol=room * (np.abs(want).max() + 1e-3))


def rounded(x):
    return x.cpu().to(ic.float64).numpy()


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("m, n, k", SIZES)
def test_layouts(m, n, k, dtype, there, rng):
    layouts = (("rows", "columns"), ("rows", "rows"), ("columns", "rows"), ("columns", "columns"), ("part", "part"))
    for one, two in layouts:
        a = laid_out(rng.standard_normal((m, k)), getattr(ic, dtype), there, one)
        b = laid_out(rng.standard_normal((k, n)), getattr(ic, dtype), there, two)
        agree(ic.matmul(a, b), rounded(a) @ rounded(b), dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_batches(dtype, there, rng):
    x = ic.from_numpy(rng.standard_normal((3, 1, 70, 50))).to(getattr(ic, dtype)).to(there)[..., ::2]
    y = ic.from_numpy(rng.standard_normal((1, 4, 25, 90))).to(getattr(ic, dtype)).to(there)
    agree(ic.matmul(x, y), rounded(x) @ rounded(y), dtype)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("rows, columns, k", [(1, 77, 72), (6, 130, 264), (20, 64, 4096), (150, 130, 70)])
def test_what_follows_a_product(rows, columns, k, dtype, there, rng):
    kind = getattr(ic, dtype)
    x, w, b, c = (
        ic.from_numpy(rng.standard_normal(shape)).to(kind).to(there)
        for shape in ((rows, k), (columns, k), (columns,), (rows, columns))
    )
    agree(F.linear(x, w, b), rounded(x) @ rounded(w).T + rounded(b), dtype)
    agree(ic.addmm(c, x, w.t(), alpha=0.5), rounded(c) + 0.5 * (rounded(x) @ rounded(w).T), dtype)


BYTES = [
    (1, 1, 1), (5, 257, 96), (17, 70, 4096), (33, 65, 17), (129, 257, 100), (300, 200, 1000), (256, 512, 384), (7, 5, 0)
]  # fmt: skip


@pytest.fixture
def tf32():
    ic.backends.cuda.matmul.allow_tf32 = True
    yield
    ic.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("m, n, k", SIZES)
def test_tf32(m, n, k, there, rng, tf32):
    for one, two in (("rows", "columns"), ("rows", "rows"), ("columns", "rows"), ("part", "part")):
        a = laid_out(rng.standard_normal((m, k)), ic.float32, there, one)
        b = laid_out(rng.standard_normal((k, n)), ic.float32, there, two)
        got, want = rounded(ic.matmul(a, b)), rounded(a) @ rounded(b)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-3 * (np.abs(want).max(initial=0.0) + 1))


def test_tf32_is_for_whom_asks(there, rng):
    """The same call, before, while and after it is allowed: what was learned of it is forgotten."""
    a, b = (ic.from_numpy(rng.standard_normal((200, 300)).astype(np.float32)).to(there) for _ in range(2))
    c, want, errors = ic.from_numpy(rng.standard_normal(200).astype(np.float32)).to(there), None, []
    for precision in ("highest", "high", "highest"):
        ic.set_float32_matmul_precision(precision)
        for _ in range(3):
            got = rounded(F.linear(a, b, c))
        want = rounded(a) @ rounded(b).T + rounded(c)
        errors.append(np.abs(got - want).max() / np.abs(want).max())
    assert errors[0] == errors[2] < 2e-6 and errors[1] < 1e-3
    units = there.type == "cuda" and ic.cuda.get_device_capability(there) == (9, 0)
    assert (errors[1] > 2e-5) == units


@pytest.mark.parametrize("m, n, k", BYTES)
def test_integers_of_8_bits(m, n, k, there, rng):
    layouts = (("rows", "columns"), ("rows", "rows"), ("columns", "rows"), ("columns", "columns"), ("part", "part"))
    for one, two in layouts:
        a = laid_out(rng.integers(-128, 128, (m, k), np.int8), ic.int8, there, one)
        b = laid_out(rng.integers(-128, 128, (k, n), np.int8), ic.int8, there, two)
        want = a.cpu().numpy().astype(np.int64) @ b.cpu().numpy().astype(np.int64)
        np.testing.assert_array_equal(ic.matmul_int8(a, b).cpu().numpy(), want)
    a, b = (ic.from_numpy(rng.integers(-128, 128, (2, 3, *shape), np.int8)).to(there) for shape in ((9, 40), (40, 21)))
    want = a.cpu().numpy().astype(np.int64) @ b.cpu().numpy().astype(np.int64)
    np.testing.assert_array_equal(ic.matmul_int8(a, b).cpu().numpy(), want)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k", BYTES)
def test_scaled_products(m, n, k, dtype, there, rng):
    kind = getattr(ic, dtype)
    float8 = [ic.from_numpy(rng.standard_normal(shape)).to(ic.float8_e4m3) for shape in ((m, k), (n, k))]
    exact = [x.to(ic.float64).numpy() for x in float8]
    a, b = (x.to(there) for x in float8)
    bias = ic.from_numpy(rng.standard_normal(n)).to(kind).to(there)
    for one, two in (((m, 1), (1, n)), ((1,), ()), ((1, 1), (1, n))):
        scales = [ic.from_numpy(rng.random(shape).astype(np.float32)).to(there) for shape in (one, two)]
        want = exact[0] @ exact[1].T * rounded(scales[0]) * rounded(scales[1]) + rounded(bias)
        got = rounded(ic.scaled_mm(a, b.t(), *scales, bias, out_dtype=dtype))
        room = max(ROUNDING[dtype], 1e-3)  # the units add with 14 bits
        np.testing.assert_allclose(got, want, rtol=0, atol=room * (np.abs(want).max(initial=0.0) + 1e-3))
    weight = ic.from_numpy(rng.integers(-127, 128, (n, k), np.int8)).to(there)
    x = ic.from_numpy(rng.standard_normal((m, k))).to(kind)
    scale = ic.from_numpy(rng.random((n, 1)).astype(np.float32))
    want = rounded(ic.linear_w8a8i8(x, weight.cpu(), scale, bias.cpu()))
    got = rounded(ic.linear_w8a8i8(x.to(there), weight, scale.to(there), bias))
    np.testing.assert_allclose(got, want, rtol=0, atol=ROUNDING[dtype] * (np.abs(want).max(initial=0.0) + 1e-3))


def test_results_are_the_same_each_time(there, rng):
    a, b = (
        ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(there) for shape in ((40, 5000), (5000, 50))
    )
    first = rounded(ic.matmul(a, b))
    for _ in range(3):
        np.testing.assert_array_equal(rounded(ic.matmul(a, b)), first)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    "name, shift, k",
    [("int8", 31, 1500), ("int8", 31, 33), ("int4", 0, 1300), ("int4", 2, 2048), ("q8_0", 0, 96), ("q4_1", 0, 1031)]
    + [("q4_k", 0, 2560), ("uint4", 2, 640), ("uint8", 1, 1088), ("q6_k", 0, 512), ("iq4_nl", 0, 160)]
    + [("q5_0", 0, 96), ("q5_k", 0, 256), ("q3_k", 0, 512), ("q2_k", 0, 256), ("mxfp4", 0, 96)]
    + [("int8", 31, 2048), ("int4", 0, 4096), ("int4", 2, 1024), ("q8_0", 0, 768), ("q4_0", 0, 512), ("q4_1", 0, 1280)]
    + [("q4_k", 0, 2048), ("uint4", 2, 1024), ("uint4", 0, 256), ("uint8", 1, 768)],  # by the copy engine
)
def test_quantised_weights(name, shift, k, dtype, there, rng):
    for rows, n in ((1, 5), (7, 16), (8, 33), (16, 300), (20, 130)):
        weight, exact = random_weight(name, n, k, rng, shift)
        x = ic.from_numpy(rng.standard_normal((rows, k))).to(getattr(ic, dtype)).to(there)
        bias = ic.from_numpy(rng.standard_normal(n)).to(getattr(ic, dtype)).to(there)
        wanted = rounded(x) @ exact.T
        for own in (bias, None):
            y = ic.linear_quantized(x, weight.to(there), own, activations="float")
            # float32 by 20 rows of int4 is a chain of 2048 multiply-adds with AVX2: 2.01e-6, as any such chain
            agree(y, wanted + (0 if own is None else rounded(own)), dtype, k if dtype == "float32" else 1024)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name, shift, k", [("int8", 31, 2048), ("int4", 0, 1024), ("q4_1", 0, 512), ("uint4", 2, 512)])
def test_rows_of_any_size_by_quantised_weights(name, shift, k, dtype, there, rng):
    weight, exact = random_weight(name, 40, k, rng, shift)
    for count in (2, 16):
        compared.check_rows_of_any_size(there, weight, exact, dtype, rng, ROUNDING[dtype], count)


@pytest.mark.parametrize("rows", [1, 11])
def test_several_quantised_weights_side_by_side(rows, there, rng):
    """Three in a launch, the last one in a second."""
    sizes, k = (48, 100, 16, 33), 512
    weights, exact = zip(*(random_weight("int4", n, k, rng, 0) for n in sizes))
    x = ic.from_numpy(rng.standard_normal((rows, k))).to(ic.bfloat16).to(there)
    bias = ic.from_numpy(rng.standard_normal(sum(sizes))).to(ic.bfloat16).to(there)
    y = ic.linear_quantized(x, [weight.to(there) for weight in weights], bias, activations="float")
    agree(y, rounded(x) @ np.concatenate(exact).T + rounded(bias), "bfloat16")


FEW = [(1, 100, 128), (8, 20000, 512), (9, 4097, 320), (16, 333, 2048), (3, 9000, 1088)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows, n, k", FEW)
def test_few_rows_by_the_copy_engine(rows, n, k, dtype, there, rng):
    """Matrices of one share and of several, and what lies at no multiple of 16 bytes."""
    kind = getattr(ic, dtype)
    for begin in (0, 1):
        w = ic.from_numpy(rng.standard_normal(n * k + begin).astype(np.float32)).to(kind).to(there)[begin:].view(n, k)
        x = ic.from_numpy(rng.standard_normal(rows * k + begin).astype(np.float32)).to(kind).to(there)
        x, bias = x[begin:].view(rows, k), ic.from_numpy(rng.standard_normal(n)).to(kind).to(there)
        wanted = rounded(x) @ rounded(w).T
        agree(ic.linear(x, w, bias), wanted + rounded(bias), dtype)
        agree(ic.matmul(w, x.t()), wanted.T, dtype)
