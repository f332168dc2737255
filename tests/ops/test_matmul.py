"""Matrix products against float64 NumPy: every kernel, dtype and layout, and what must not go wrong."""

import os
import subprocess
import sys

import numpy as np
import pytest
from infinicore.kernels.cpu import blocking

import infinicore as ic

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


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_k_is_summed_in_pieces(rng, dtype):
    kind = getattr(ic, dtype)
    k = 9000
    assert blocking.plan(30, 50, k, 1, 2, dtype).kc < k
    a, b = make(rng, (30, k), kind), make(rng, (50, k), kind)
    exact, scale = wide(a) @ wide(b).T, abs(wide(a)) @ abs(wide(b)).T
    check(ic.linear(a, b), exact, scale, dtype)
    check(ic.linear_packed(a, ic.pack_weight(b)), exact, scale, dtype)
    check(ic.linear(a[:2], b), exact[:2], scale[:2], dtype)


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
        (TypeError, "must come from `pack_weight`", lambda: ic.linear_packed(z((3, 4)), z((5, 4)))),
        (ValueError, r"`weight` must be .* \(4,\)", lambda: ic.pack_weight(z(4))),
        (TypeError, "use `linear_packed`", lambda: ic.linear(z((3, 4)), ic.pack_weight(z((5, 4))))),
        (TypeError, "takes float32.*, got int32", lambda: ic.linear(z(4, dtype=ic.int32), z((5, 4), dtype=ic.int32))),
        (TypeError, "got bool", lambda: ic.matmul(z(4, dtype=ic.bool), z(4, dtype=ic.bool))),
        (TypeError, "`other` of `matmul` must be a tensor, got ndarray", lambda: ic.matmul(z(4), np.zeros(4))),
    ]
    for kind, sentence, call in cases:
        with pytest.raises(kind, match=sentence):
            call()


def test_plans_cover_the_product():
    sizes = [(1, 1, 0, 1, 2), (512, 5632, 2048, 1, 2), (1000, 30, 9000, 3, 7), (64, 64, 64, 100, 4)]
    for m, n, k, batch, threads in sizes:
        for dtype in DTYPES:
            plan = blocking.plan(m, n, k, batch, threads, dtype)
            assert plan.grid[0] * plan.tile[0] >= m and plan.grid[1] * plan.tile[1] >= n
            assert plan.items == plan.grid[0] * plan.grid[1] * batch
            assert (plan.items - 1) // plan.items_per_slice < plan.slices <= threads
            assert plan.mc % blocking.ROWS == 0 and plan.nc % blocking.across(dtype) == 0


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_smaller_instruction_sets(isa):
    chosen = "float32 or float64 or bfloat16" if isa == "portable" else "float"
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-p", "no:cacheprovider", "-k", chosen]
    done = subprocess.run(command, env={**os.environ, "INFINICORE_ISA": isa}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
