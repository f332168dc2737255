"""Matrix products against float64 NumPy: every kernel, dtype and layout, and what must not go wrong."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from infinicore.kernels.cpu.gemm import blocking

import infinicore as ic

from . import narrower

# What the error may be, as a part of the sum of |a| |b|: the product's own rounding and the result's.
BOUNDS = {"float32": 3e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 6e-3}
DTYPES = list(BOUNDS)

# dot products (few rows, or few columns), sums of rows, blocked, with edges in every direction
SHAPES = [
    ((1, 1), (1, 1)),
    ((1, 257), (257, 300)),
    ((3, 17), (17, 1)),
    ((16, 100), (100, 33)),
    ((300, 33), (33, 3)),
    ((257, 257), (257, 257)),
    ((31, 1030), (1030, 70)),
    ((50,), (50, 21)),
    ((20, 50), (50,)),
    ((7,), (7,)),
    ((3, 1, 17, 20), (2, 20, 9)),
    ((7, 1, 40), (7, 40, 33)),
    ((5, 3, 257), (257, 17)),
    ((2, 3, 4, 50), (50,)),
    ((50,), (2, 3, 50, 4)),
    ((4, 0), (0, 3)),
    ((2, 30, 0), (0, 40)),
    ((0, 3), (3, 4)),
    ((3, 4), (4, 0)),
]


def make(rng, shape, dtype, layout="rows"):
    """A random tensor: row-major, with its last dims transposed, or with gaps between elements."""
    x = rng.standard_normal(shape)
    if len(shape) > 1 and layout == "columns":
        return ic.from_numpy(np.ascontiguousarray(np.swapaxes(x, -1, -2))).to(dtype).transpose(-1, -2)
    if layout == "gaps" and x.size:
        return ic.from_numpy(np.repeat(x, 2, -1)).to(dtype)[..., ::2]
    return ic.from_numpy(x).to(dtype)


def wide(x):
    return x.to(ic.float64).numpy()


def check(y, exact, scale, dtype):
    assert tuple(y.shape) == exact.shape
    error = np.abs(wide(y) - exact) / np.maximum(scale, 1e-300)
    assert not exact.size or error.max() < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_of_every_shape_and_layout(rng, dtype):
    kind = getattr(ic, dtype)
    for first, second in SHAPES:
        for layout_a in ("rows", "columns", "gaps"):
            for layout_b in ("rows", "columns", "gaps"):
                a, b = make(rng, first, kind, layout_a), make(rng, second, kind, layout_b)
                exact, scale = np.matmul(wide(a), wide(b)), np.matmul(abs(wide(a)), abs(wide(b)))
                check(ic.matmul(a, b), exact, scale, dtype)
                check(ic.matmul(a, b, alpha=-0.5), -0.5 * exact, scale, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_and_packed_linear(rng, dtype):
    kind = getattr(ic, dtype)
    sizes = [((), 31, 50), ((1,), 257, 5), ((3, 4), 64, 40), ((40,), 30, 3), ((2, 50), 70, 65), ((17,), 0, 6)]
    for rows, k, n in sizes:
        for layout in ("rows", "columns", "gaps"):
            x, w, b = make(rng, (*rows, k), kind, layout), make(rng, (n, k), kind, layout), make(rng, (n,), kind)
            exact = 2 * np.matmul(wide(x), wide(w).T) + wide(b)
            scale = 2 * np.matmul(abs(wide(x)), abs(wide(w)).T) + abs(wide(b))
            check(ic.linear(x, w, b, alpha=2.0), exact, scale, dtype)
            check(ic.linear_packed(x, ic.pack_weight(w), b, alpha=2.0), exact, scale, dtype)
            check(ic.linear(x, w), np.matmul(wide(x), wide(w).T), scale, dtype)


ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


# dot products, panels of them or of lanes (tiles of 1 to 4 vectors), blocked (70 and 90, where dot products are fast)
ROWS = [1, 2, 3, 7, 12, 15, 16, 17, 30, 33, 50, 64, 70, 90]


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_times_a_weight_of_many(rng, dtype):
    kind = getattr(ic, dtype)
    for m in ROWS:
        for n, k in ((65, 128), (100, 37), (64, 5), (131, 331)):
            x, w = make(rng, (m, k), kind), make(rng, (n, k), kind)
            exact, scale = wide(x) @ wide(w).T, abs(wide(x)) @ abs(wide(w)).T
            check(ic.linear(x, w), exact, scale, dtype)
            for layout in ("columns", "gaps"):
                other = make(rng, (m, k), kind, layout)
                check(ic.matmul(other, w.T), wide(other) @ wide(w).T, abs(wide(other)) @ abs(wide(w)).T, dtype)
    x, w = make(rng, (3, 5, 40), kind), make(rng, (3, 70, 40), kind)
    exact = np.matmul(wide(x), wide(w).swapaxes(1, 2))
    check(ic.matmul(x, w.transpose(1, 2)), exact, np.matmul(abs(wide(x)), abs(wide(w)).swapaxes(1, 2)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_times_a_weight_that_comes_from_memory(rng, dtype):
    """From 4 MB on, weights are read in another way, and rows that are long in a third."""
    for n, k in ((2100, 1037), (120, 20003)):
        x, w = make(rng, (1, k), dtype), make(rng, (n, k + 3), dtype)[:, :k]
        check(ic.linear(x, w), wide(x) @ wide(w).T, abs(wide(x)) @ abs(wide(w)).T, dtype)


EPILOGUES = [("float32", None), ("float32", "relu"), ("float32", "gelu_tanh"), ("bfloat16", "silu")]
EPILOGUES += [("float64", "gelu")]


@pytest.mark.parametrize("dtype, activation", EPILOGUES)
def test_epilogues_are_applied_before_the_result_is_rounded(rng, dtype, activation):
    kind, k = getattr(ic, dtype), 36
    for m, n in ((1, 70), (3, 70), (16, 70), (90, 33), (2, 8)):
        x, w, r = make(rng, (m, k), kind), make(rng, (n, k), kind), make(rng, (m, n), kind)
        b = make(rng, (n,), kind)
        y = ACTIVATIONS[activation](0.5 * wide(x) @ wide(w).T + wide(b))
        scale = abs(wide(x)) @ abs(wide(w)).T + abs(wide(b)) + abs(wide(r))
        check(ic.linear(x, w, b, alpha=0.5, activation=activation, residual=r), wide(r) + y, scale, dtype)
        check(ic.linear(x, w.T.contiguous().T, b, alpha=0.5, activation=activation), y, scale, dtype)
        packed = ic.linear_packed(x, ic.pack_weight(w), b, alpha=0.5, activation=activation, residual=r)
        check(packed, wide(r) + y, scale, dtype)
        turned = make(rng, (m, n), kind, "columns")
        y = ACTIVATIONS[activation](wide(x) @ wide(w).T)
        z = ic.linear(x, w, activation=activation, residual=turned)
        check(z, wide(turned) + y, scale + abs(wide(turned)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_k_is_summed_in_pieces(rng, dtype):
    kind = getattr(ic, dtype)
    k = 9000
    assert blocking.blocks(30, 50, k, 1, 2, dtype).kc < k
    a, b = make(rng, (30, k), kind), make(rng, (50, k), kind)
    exact, scale = wide(a) @ wide(b).T, abs(wide(a)) @ abs(wide(b)).T
    check(ic.linear(a, b), exact, scale, dtype)
    check(ic.linear_packed(a, ic.pack_weight(b)), exact, scale, dtype)
    check(ic.linear(a[:2], b), exact[:2], scale[:2], dtype)
    check(ic.linear(a, b, residual=ic.ones((30, 50), dtype=kind)), exact + 1, scale + 1, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_small_result_of_a_long_k_is_split_along_k(rng, dtype):
    kind = getattr(ic, dtype)
    for m, k, n in ((33, 9001, 40), (3, 40001, 5), (1, 8192, 1), (64, 16384, 64)):
        assert blocking.split_length(m, n, k) % 64 == 0 < blocking.split_length(m, n, k) < k
        a, b, bias = make(rng, (m, k), kind), make(rng, (n, k), kind), make(rng, (n,), kind)
        exact, scale = wide(a) @ wide(b).T, abs(wide(a)) @ abs(wide(b)).T
        check(ic.linear(a, b, bias, alpha=0.5), 0.5 * exact + wide(bias), scale, dtype)
        check(ic.matmul(a, b.T.contiguous()), exact, scale, dtype)
    before, results = ic.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            ic.set_num_threads(threads)
            results.append(wide(ic.linear(a, b)))
    finally:
        ic.set_num_threads(before)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_where_they_belong(rng, dtype):
    a, b = rng.standard_normal((20, 33)), rng.standard_normal((33, 40))
    a[3, 5], b[7, 9], a[0, 32] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = a @ b
    kind = getattr(ic, dtype)
    x, w = ic.from_numpy(a).to(kind), ic.from_numpy(b).to(kind)
    for rows in (1, 4, 20):
        for y in (ic.matmul(x[:rows], w), ic.linear(x[:rows], w.T.contiguous())):
            assert np.array_equal(np.isnan(wide(y)), np.isnan(exact[:rows]))
            assert np.array_equal(np.isinf(wide(y)), np.isinf(exact[:rows]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_panels_hold_nothing_of_earlier_work(rng, dtype):
    """What nobody reads of a product is multiplied all the same: subnormal numbers would take long on some CPUs."""
    kind = getattr(ic, dtype)
    for n, k in ((10, 128), (10, 131), (33, 40), (17, 5), (1, 64)):
        w = make(rng, (n, k), kind)
        before = ic.full(ic.pack_weight(w).data.shape, 255, dtype=ic.uint8)  # NaN of every dtype
        place = before.data_ptr()
        del before
        panels = ic.pack_weight(w).data
        assert panels.data_ptr() == place  # memory that was full of them
        assert not ic.isnan(panels.view(ic.float64 if dtype == "float64" else ic.float32)).any(), (n, k)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_lies_around_rows_takes_no_part(rng, dtype):
    """Rows of A that are read as they lie, with NaN before, behind and between them."""
    kind = getattr(ic, dtype)
    before = ic.get_num_threads()
    try:
        for m, k, between in ((32, 64, 0), (33, 34, 30), (47, 100, 28), (100, 2080, 32), (515, 96, 0), (50, 4160, 64)):
            around = ic.full((m + 4, k + between), math.nan, dtype=kind)
            around[2:-2, :k] = make(rng, (m, k), kind)
            x, w = around[2:-2, :k], make(rng, (65, k), kind)
            exact, scale = wide(x) @ wide(w).T, np.abs(wide(x)) @ np.abs(wide(w)).T
            for threads in (1, 4):
                ic.set_num_threads(threads)
                check(x @ w.t(), exact, scale, dtype)
                check(x @ w.t().contiguous(), exact, scale, dtype)
    finally:
        ic.set_num_threads(before)


def test_int8_products_are_exact(rng):
    shapes = [((33, 70), (70, 65)), ((1, 5), (5, 3)), ((3, 1, 17, 20), (2, 20, 9)), ((100, 257), (257, 300))]
    for first, second in [*shapes, ((4, 0), (0, 3)), ((14, 4), (4, 32)), ((64, 4096), (4096, 64))]:
        lowest = np.full(first, -128, np.int8), np.full(second, -128, np.int8)
        random = rng.integers(-128, 128, first, dtype=np.int8), rng.integers(-128, 128, second, dtype=np.int8)
        for a, b in (lowest, random):
            exact = np.matmul(a.astype(np.int64), b.astype(np.int64))
            x, w = ic.from_numpy(a), ic.from_numpy(b)
            turned = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (x, w)]
            for left in (x, turned[0]):
                for right in (w, turned[1]):
                    y = ic.matmul_int8(left, right)
                    assert y.dtype is ic.int32 and np.array_equal(y.numpy(), exact)
    with pytest.raises(TypeError, match="takes int8, got uint8"):
        ic.matmul_int8(ic.zeros((2, 3), dtype=ic.uint8), w)
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(4096, 64\)"):
        ic.matmul_int8(ic.zeros((2, 3), dtype=ic.int8), w)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_wrap_around(rng, dtype):
    a, b = rng.integers(0, 100, (2, 5, 20)).astype(dtype), rng.integers(0, 100, (20, 37)).astype(dtype)
    x, w = ic.from_numpy(a), ic.from_numpy(b)
    assert np.array_equal(ic.matmul(x, w).numpy(), np.matmul(a, b))
    tripled = np.matmul(a, b) * np.array(3).astype(dtype)
    assert np.array_equal(ic.matmul(x, w.T.contiguous().T, alpha=3).numpy(), tripled)
    with pytest.raises(ValueError, match="whole number"):
        ic.matmul(x, w, alpha=0.5)


def test_out_may_be_strided_or_an_input(rng):
    a, b = make(rng, (64, 64), ic.float32), make(rng, (64, 64), ic.float32)
    expected = wide(a) @ wide(b)
    out = ic.zeros((64, 128))[:, ::2]
    assert ic.matmul(a, b, out=out) is out
    np.testing.assert_allclose(wide(out), expected, atol=1e-4)
    ic.matmul(a, b, out=a)
    np.testing.assert_allclose(wide(a), expected, atol=1e-4)


MANY_THREADS = """
import numpy as np
import infinicore as ic
from infinicore.kernels.cpu.gemm import blocking

blocking.SHARED_BYTES, blocking._SHARED_LEAST = 1 << 20, (1, 1)  # so that some are packed in several launches
rng, checked, blocks = np.random.default_rng(3), 0, 0
sizes = (513, 771, 300), (2000, 1200, 2300), (600, 1100, 1030), (100, 2000, 3000), (3000, 70, 1300), (33, 3000, 2049)
sizes += (200, 1500, 1040), (256, 1100, 2100)
for dtype, epsilon in (("float32", 2.0**-24), ("float64", 2.0**-53), ("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
    kind = getattr(ic, dtype)
    for m, n, k in sizes:
        assert blocking.shares(m, n, k, 4, dtype)
        cut = blocking.shared_blocks(m, n, k, 4, dtype, True)
        blocks = max(blocks, cut.tile[0] // cut.mc)
        a, b, bias, residual = (
            ic.from_numpy(rng.standard_normal(shape)).to(kind) for shape in ((m, k), (k, n), (n,), (m, n))
        )
        wide_a, wide_b, wide_bias, wide_residual = (x.to(ic.float64).numpy() for x in (a, b, bias, residual))
        exact, scale = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
        bound = 8 * min(epsilon, 2.0**-24) * scale + 2 * epsilon * np.abs(exact) + 4 * epsilon
        for x, w in ((a, b.t().contiguous().t()), (a.t().contiguous().t(), b)):
            found = []
            for threads in (1, 4):
                ic.set_num_threads(threads)
                found.append([ic.matmul(x, w), ic.linear(x, w.t(), bias, residual=residual, activation="relu")])
            assert all(one.equal(other) for one, other in zip(*found)), (dtype, m, n, k)
            plain, whole = (y.to(ic.float64).numpy() for y in found[1])
            assert (np.abs(plain - exact) <= bound).all(), (dtype, m, n, k)
            wanted = np.maximum(exact + wide_bias, 0) + wide_residual
            assert (np.abs(whole - wanted) <= bound + 2 * epsilon * np.abs(wanted)).all(), (dtype, m, n, k)
            checked += 1
print(checked, blocks > 1)
"""


def test_many_threads_share_what_is_packed():
    """Sums are those of one thread, to the bit."""
    environment = {**os.environ, "INFINICORE_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", MANY_THREADS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "64 True\n", done.stderr[-3000:]


FEW_ROWS = """
import numpy as np
import infinicore as ic
from infinicore.kernels.cpu.gemm import blocking

blocking.SHARED_X = 1
rng, checked = np.random.default_rng(4), 0
for dtype, epsilon in (("float32", 2.0**-24), ("float64", 2.0**-53), ("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
    kind = getattr(ic, dtype)
    for m in (2, 3, 5, 8, 12, 16, 17, 24, 32, 48, 64, 65, 100, 128, 130, 192, 256):
        for n, k in ((100, 784), (70, 129), (340, 1060), (33, 33)):
            assert blocking.shares_x(m, k, 1, 4)
            x, w, bias = (ic.from_numpy(rng.standard_normal(shape)).to(kind) for shape in ((m, k), (n, k), (n,)))
            wide = [one.to(ic.float64).numpy() for one in (x, w)]
            exact, scale = wide[0] @ wide[1].T, np.abs(wide[0]) @ np.abs(wide[1]).T
            bound = 8 * min(epsilon, 2.0**-24) * scale + 2 * epsilon * np.abs(exact) + 4 * epsilon
            for rows in (x, x.t().contiguous().t()):
                found = []
                for threads in (1, 4):
                    ic.set_num_threads(threads)
                    found.append([ic.matmul(rows, w.t()), ic.linear(rows, w, bias, activation="relu")])
                assert all(one.equal(other) for one, other in zip(*found)), (dtype, m, n, k)
                assert (np.abs(found[1][0].to(ic.float64).numpy() - exact) <= bound).all(), (dtype, m, n, k)
                checked += 1
print(checked)
"""


def test_many_threads_share_few_rows():
    """Rows of x that meet a weight as panels, packed by all threads: results are those of one thread, to the bit."""
    environment = {**os.environ, "INFINICORE_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", FEW_ROWS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "544\n", done.stderr[-3000:]


def test_threads_and_graphs_give_the_same_bits(rng):
    a, b, w = (make(rng, shape, ic.float32) for shape in ((3, 150, 520), (520, 300), (2000, 520)))
    before = ic.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            ic.set_num_threads(threads)
            results.append([ic.matmul(a, b).numpy(), ic.linear(a[0], w).numpy(), ic.linear(a[0, :1], w).numpy()])
    finally:
        ic.set_num_threads(before)
    for other in results[1:]:
        for one, two in zip(results[0], other):
            assert np.array_equal(one, two)
    ic.start_graph_recording()
    try:
        y, z = ic.matmul(a, b), ic.linear(a[0, :1], w)
    finally:
        graph = ic.stop_graph_recording()
    assert np.array_equal(y.numpy(), results[0][0])
    a.copy_(a * 2.0)
    graph.run()
    assert np.array_equal(y.numpy(), 2 * results[0][0]) and np.array_equal(z.numpy(), 2 * results[0][2])


def test_errors_name_the_argument_and_both_values():
    z = ic.zeros
    cases = [
        (ValueError, r"inner sizes, got \(3, 4\) and \(5, 6\)", lambda: ic.matmul(z((3, 4)), z((5, 6)))),
        (ValueError, r"batch sizes .* \(2, 3, 4\) and \(5, 4, 6\)", lambda: ic.matmul(z((2, 3, 4)), z((5, 4, 6)))),
        (ValueError, "at least one dim", lambda: ic.matmul(z(()), z((4, 6)))),
        (TypeError, "float32 for `input` and float64 for `other`", lambda: ic.matmul(z(4), z(4, dtype=ic.float64))),
        (ValueError, r"got \(3, 4\) and \(5, 6\)", lambda: ic.linear(z((3, 4)), z((5, 6)))),
        (ValueError, r"`bias` .* \(5,\), got \(3,\)", lambda: ic.linear(z((3, 4)), z((5, 4)), z(3))),
        (TypeError, "`bias`", lambda: ic.linear(z((3, 4)), z((5, 4)), z(5, dtype=ic.float64))),
        (ValueError, "`activation` .*'gelu_tanh', got 'tanh'", lambda: ic.linear(z(4), z((5, 4)), activation="tanh")),
        (ValueError, r"`residual` .*\(3, 5\), got \(5,\)", lambda: ic.linear(z((3, 4)), z((5, 4)), residual=z(5))),
        (TypeError, "must come from `pack_weight`", lambda: ic.linear_packed(z((3, 4)), z((5, 4)))),
        (ValueError, r"`weight` must be .* \(4,\)", lambda: ic.pack_weight(z(4))),
        (TypeError, "use `linear_packed`", lambda: ic.linear(z((3, 4)), ic.pack_weight(z((5, 4))))),
        (TypeError, "takes float32.*, got bool", lambda: ic.linear(z(4, dtype=ic.bool), z((5, 4), dtype=ic.bool))),
        (TypeError, "got bool", lambda: ic.matmul(z(4, dtype=ic.bool), z(4, dtype=ic.bool))),
        (TypeError, "`other` of `matmul` must be a tensor, got ndarray", lambda: ic.matmul(z(4), np.zeros(4))),
        (TypeError, "`weight` of `linear` must be a tensor, got NoneType", lambda: ic.linear(z((3, 4)), None)),
    ]
    for kind, sentence, call in cases:
        with pytest.raises(kind, match=sentence):
            call()


def test_blocks_cover_the_product():
    sizes = [(1, 1, 0, 1, 2), (512, 5632, 2048, 1, 2), (1000, 30, 9000, 3, 7), (64, 64, 64, 100, 4)]
    for m, n, k, batch, threads in sizes:
        for dtype in DTYPES:
            cut = blocking.blocks(m, n, k, batch, threads, dtype)
            assert cut.grid[0] * cut.tile[0] >= m and cut.grid[1] * cut.tile[1] >= n
            assert cut.items == cut.grid[0] * cut.grid[1] * batch
            assert cut.scratch == min(threads, cut.items) * cut.thread_bytes and cut.grain < 0
            rows = blocking.TILE_ROWS if blocking.tiles(dtype) else blocking.ROWS
            assert cut.mc % rows == 0 and cut.nc % blocking.across(dtype) == 0


@pytest.mark.slow
@narrower.CHOICES
def test_narrower_instruction_sets(choice, width):
    portable = "float32 or float64 or bfloat16 or int8"
    chosen = {"avx512": narrower.DOTS, "avx2": "float or int8", "portable": portable}[choice]
    narrower.run(choice, width, f"({chosen}) and not narrower", __file__)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_long_vectors_are_multiplied_in_chunks(dtype, rng):
    for size in (2 * 16384, 3 * 16384 + 5):
        a, b = (ic.from_numpy(rng.uniform(0.5, 1, size)).to(dtype=dtype) for _ in range(2))
        expected = a.to(dtype="float64").numpy() @ b.to(dtype="float64").numpy()
        y = ic.matmul(a, b)
        assert y.shape == () and y.dtype is a.dtype
        np.testing.assert_allclose(
            y.item(), expected, rtol={"float32": 1e-6, "float64": 1e-13, "bfloat16": 1e-2}[dtype]
        )
    np.testing.assert_allclose(
        ic.dot(a[::2], b[::2]).item(),
        a[::2].to(dtype="float64").numpy() @ b[::2].to(dtype="float64").numpy(),
        rtol=1e-2,
    )
