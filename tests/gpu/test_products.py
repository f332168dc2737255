"""What the host decides about products on GPUs: kernels, tiles, layouts. No GPU is needed."""

import itertools
from math import prod

import numpy as np
import pytest
from infinicore.kernels.blocks import float_bits
from infinicore.kernels.blocks.cuda import JOIN, PRODUCT, STRIDED_COPY, WGMMA
from infinicore.kernels.build import load
from infinicore.kernels.cuda import policy
from infinicore.kernels.cuda.gemm import fma, wgmma
from infinicore.kernels.cuda.plans.gemm import _operand, product
from infinicore.kernels.problems.gemm import Product

from . import emulated
from .without import Gpu


def planned(*args, **options):
    with load.on(Gpu()):
        return product(Product(*args, **options))


ROWS, TURNED = ((4096, 4096), (4096, 1)), ((4096, 4096), (1, 4096))
ODD = ["copy.rows", "copy.rows", "wgmma.nt_64"]


@pytest.mark.parametrize(
    "dtype, result, a, b, options, names",
    [
        ("float32", "float32", ROWS, TURNED, {"tf32": True}, ["wgmma.nt_256"]),
        ("float32", "float32", ROWS, ROWS, {"tf32": True}, ["copy.transpose", "wgmma.nt_256"]),
        ("float32", "float32", TURNED, ROWS, {"tf32": True}, ["copy.transpose"] * 2 + ["wgmma.nt_256"]),
        ("float32", "float32", ((64, 62), (62, 1)), ((62, 64), (1, 62)), {"tf32": True}, ODD),
        ("float32", "float32", ((16, 64), (64, 1)), ((64, 64), (1, 64)), {"tf32": True}, ["rows.product_4"]),
        ("float32", "float32", ((16, 4096), (4096, 1)), TURNED, {}, ["fma.float32_nt_16_64", "wgmma.join"]),
        ("float32", "float32", ROWS, ((4096, 16), (1, 4096)), {}, ["rows.product_4"]),
        ("int8", "int32", ROWS, TURNED, {"alpha": 1}, ["wgmma.nt_256"]),
        ("int8", "int32", ((200, 9000), (9000, 1)), ((9000, 64), (1, 9000)), {"alpha": 1}, [*ODD, "join"]),
        ("int8", "int32", ROWS, TURNED, {"alpha": 2}, ["tiled.product"]),
        ("int8", "int8", ROWS, TURNED, {"alpha": 1}, ["tiled.product"]),
        ("int8", "bfloat16", ROWS, TURNED, {"scales": (1, 1)}, ["wgmma.nt_256"]),
        ("float8_e4m3", "bfloat16", ROWS, TURNED, {"scales": (0, 1)}, ["wgmma.nt_256"]),
        ("float8_e4m3", "float32", ROWS, ROWS, {}, ["copy.transpose", "wgmma.nt_256"]),
        ("float8_e5m2", "float32", ROWS, TURNED, {}, ["tiled.product"]),
    ],
)  # fmt: skip
def test_kernels_by_the_type_of_operands(dtype, result, a, b, options, names):
    plan = planned(dtype, *a, *b, result, **options)
    found = [one.kernel.removeprefix("gemm.").removeprefix("array.") for one in plan.launches]
    assert len(found) == len(names) and all(one.endswith(name) for one, name in zip(found, names))
    for one in plan.launches:
        if "wgmma.nt" in one.kernel:
            size = {"float32": 4}.get(dtype, 1)
            depth, k = 128 // size, a[0][1]
            assert one.values[WGMMA.steps] == -(-k // depth)
            assert one.values[WGMMA.map_a + 1] == k and one.values[WGMMA.map_a + 2] == a[0][0]
            assert (one.values[WGMMA.a_step], one.values[WGMMA.b_step]) == options.get("scales", (0, 0))
            scaled = {name for _, name, _ in one.places if name.endswith("_scales")}
            assert len(scaled) == (2 if "scales" in options else 0)


def test_older_gpus_multiply_on_ordinary_units():
    class Older(Gpu):
        arch = "sm_80"

    with load.on(Older()):
        assert "fma" in product(Product("float32", *ROWS, *ROWS, "float32", tf32=True)).launches[-1].kernel
        (one,) = product(Product("int8", *ROWS, *ROWS, "bfloat16", scales=(1, 0))).launches
    assert one.kernel == "gemm.tiled.product" and (one.values[PRODUCT.a_step], one.values[PRODUCT.b_step]) == (1, 0)


@pytest.mark.parametrize("dtype, sums, result", [("int8", "int32", "float32"), ("int8", "int32", "int32")] + [
    ("float8_e4m3", "float32", "float32"), ("float32", "float32", "float32"), ("float64", "float64", "float64"),
])  # fmt: skip
@pytest.mark.parametrize("columns, steps", [(12, (1, 1)), (7, (1, 0)), (9, (0, 1))])
def test_parts_of_k_are_joined_and_scaled(dtype, sums, result, columns, steps, rng):
    splits, rows, alpha = 3, 5, 1.0 if result == "int32" else 0.5
    parts, scaled = rng.integers(-9000, 9000, (splits, rows, columns)).astype(sums), dtype in ("int8", "float8_e4m3")
    a_scales, b_scales = (rng.random(n if step else 1).astype("f4") for n, step in zip((rows, columns), steps))
    bias, c, at = rng.integers(-9, 9, columns).astype(result), np.empty((rows, columns), result), JOIN
    values = JOIN.numbers(
        rows=rows, columns=columns, splits=splits, alpha=float_bits(alpha), a_step=steps[0], b_step=steps[1]
    )
    block = np.array(values, np.int64)
    given = {at.parts: parts, at.c: c, at.bias: bias}
    if scaled and result != "int32":
        given |= {at.a_scales: a_scales, at.b_scales: b_scales}
    for place, array in given.items():
        block[place] = array.ctypes.data
    emulated._Kernel("gemm.wgmma.join", {"T": dtype, "R": result, "A": sums, "ACT": None})(
        block, rows * -(-columns // 4)
    )
    want = parts.sum(0) * alpha
    if scaled and result != "int32":
        want = want * a_scales[:, None] * b_scales
    np.testing.assert_allclose(c, want + bias, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(
    "a, b, dtype, names",
    [
        # (shape, strides) of a and b
        (((4096, 4096), (4096, 1)), ((4096, 4096), (1, 4096)), "bfloat16", ["wgmma.nt_256"]),
        (((4096, 4096), (4096, 1)), ((4096, 4096), (4096, 1)), "float16", ["wgmma.nn_256"]),
        (((768, 16384), (1, 768)), ((16384, 768), (768, 1)), "bfloat16", ["wgmma.tn_256", "wgmma.join"]),
        (((64, 64), (1, 64)), ((64, 64), (1, 64)), "bfloat16", ["wgmma.tt_64"]),
        (((65, 73), (73, 1)), ((73, 97), (1, 73)), "bfloat16", ["copy.rows", "copy.rows", "wgmma.nt_64"]),
        (((64, 96), (96, 1)), ((96, 65), (65, 1)), "bfloat16", ["copy.rows", "wgmma.nn_64"]),
        (((8, 6, 64, 64), (24576, 64, 384, 1)), ((64, 64), (1, 64)), "bfloat16", ["wgmma.nt_64"]),
        (((4, 5, 6, 8, 8), (9999, 999, 99, 8, 1)), ((8, 8), (1, 8)), "bfloat16", ["tiled.product"]),
        (((1, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "bfloat16", ["stream.product_8_1"]),
        (((2, 4096), (4096, 1)), ((4096, 14336), (1, 4096)), "bfloat16", ["stream.product_8_4"]),
        (((512, 4096), (4096, 1)), ((4096,), (1,)), "bfloat16", ["stream.product_8_1"]),
        (((512, 4104), (4104, 1)), ((4104,), (1,)), "bfloat16", ["few.product_8"]),
        (((512, 4096), (4096, 1)), ((4096,), (1,)), "float32", ["rows.product_1"]),
        (((1, 4128), (4128, 1)), ((4128, 512), (1, 4128)), "bfloat16", ["few.product_8"]),
        (((16, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "bfloat16", ["stream.product_16_1"]),
        (((17, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "bfloat16", ["wgmma.nt_64", "wgmma.join"]),
        (((4, 4095), (4095, 1)), ((4095, 512), (1, 4095)), "bfloat16", ["rows.product_4"]),
        (((512, 4096), (4096, 1)), ((4096, 2), (1, 4096)), "float16", ["stream.product_8_1"]),
        (((16, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "float32", ["rows.product_4"]),
        (((64, 64), (64, 1)), ((64, 64), (1, 64)), "float32", ["fma.float32_nt_64_64"]),
        (
            ((4096, 4096), (4096, 1)),
            ((4096, 4096), (1, 4096)),
            "float32",
            ["fma.float32_nt_128_128"],
        ),
        (((4096, 512), (512, 1)), ((512, 4096), (4096, 1)), "float32", ["fma.float32_nn_128_128"]),
        (((64, 8192), (8192, 1)), ((8192, 64), (64, 1)), "float64", ["fma.float64_nn_64_64", "wgmma.join"]),
        (((4, 5, 6, 8, 8), (9999, 999, 99, 8, 1)), ((8, 8), (1, 8)), "float64", ["fma.float64_nt_64_64"]),
        (((64, 64), (64, 1)), ((64, 64), (1, 64)), "int32", ["tiled.product"]),
        (((0, 64), (64, 1)), ((64, 64), (1, 64)), "bfloat16", ["tiled.product"]),
        (((3, 0, 64, 64), (0, 4096, 64, 1)), ((64, 64), (1, 64)), "bfloat16", ["tiled.product"]),
    ],
)
def test_kernels_by_layout_and_shape(a, b, dtype, names):
    plan = planned(dtype, *a, *b, dtype)
    found = [one.kernel.removeprefix("gemm.").removeprefix("array.") for one in plan.launches]
    assert found == names
    for one in plan.launches:
        if "wgmma.join" in one.kernel or "wgmma" not in one.kernel:
            continue
        columns = int(one.kernel.rpartition("_")[2])
        tiles = one.values[WGMMA.across] * one.values[WGMMA.down] * one.values[WGMMA.splits]
        assert one.n == tiles * policy.shape(one.kernel).cluster * prod(a[0][:-2])
        assert (one.values[WGMMA.across] - 1) * columns < b[0][-1] <= one.values[WGMMA.across] * columns
        split_steps, splits, steps = (one.values[getattr(WGMMA, f)] for f in ("split_steps", "splits", "steps"))
        assert (splits - 1) * split_steps < steps <= splits * split_steps  # no part is empty
        maps = {place: name for place, name, _ in one.places if place in (WGMMA.map_a, WGMMA.map_b)}
        copied = [name for name, _ in plan.scratch if name.endswith("_rows")]
        assert sorted(name for name in maps.values() if name.endswith("_rows")) == copied


def test_maps_lie_at_multiples_of_64_bytes_of_the_parameters():
    head = 4  # words of the launch, which come first
    assert (head + WGMMA.map_a) % 8 == (head + WGMMA.map_b) % 8 == 0


@pytest.mark.parametrize(
    "rows, k, strides, batch",
    [
        (5, 7, (7, 1), [(1, 0), (1, 0)]),
        (5, 9, (1, 5), [(1, 0), (3, 45)]),
        (5, 7, (100, 3), [(2, 1), (3, 600)]),
        (6, 8, (1, 7), [(2, 0), (3, 56)]),
    ],
)
def test_operands_that_the_copy_engine_does_not_take_are_brought_into_rows_of_whole_16_bytes(rows, k, strides, batch):
    with load.on(Gpu()):
        operand = _operand("a", "bfloat16", rows, k, *strides, batch, 128)
    values, taken = operand.copy.values, {}
    ndim = values[STRIDED_COPY.ndim]
    sizes, y, x = (values[STRIDED_COPY.dims + i * ndim : STRIDED_COPY.dims + (i + 1) * ndim] for i in range(3))
    assert operand.copy.n == prod(sizes)
    for index in itertools.product(*map(range, sizes)):
        taken[sum(map(prod, zip(index, y)))] = sum(map(prod, zip(index, x)))
    assert len(taken) == prod(sizes) and 2 * max(taken) < operand.nbytes
    for o, i, row, at in itertools.product(range(batch[0][0]), range(batch[1][0]), range(rows), range(k)):
        there = o * operand.outer + i * operand.inner + row * operand.stride + at * operand.k_stride
        assert taken[there] == o * batch[0][1] + i * batch[1][1] + row * strides[0] + at * strides[1]
    assert {name for _, name, _ in operand.copy.places} == {"a", "a_rows"}


@pytest.mark.parametrize("kernels, block", [(wgmma, WGMMA), (fma, PRODUCT)])
def test_every_tile_is_taken_once(kernels, block, monkeypatch):
    monkeypatch.setattr(kernels, "load", lambda args, place: args[place])
    monkeypatch.setattr(kernels, "in_groups", wgmma.in_groups.py_func)
    for file in {kernels, wgmma}:
        monkeypatch.setattr(file, "ratio", lambda x, y: x // y)
    for across, down, splits, matrices in ((1, 1, 1, 1), (3, 20, 2, 2), (5, 7, 1, 3), (2, 33, 3, 1)):
        args = {block.across: across, block.splits: splits}
        args[block.down if block is WGMMA else block.tiles] = down if block is WGMMA else down * across
        tiles = [kernels.tile_of.py_func(args, tile) for tile in range(across * down * splits * matrices)]
        assert sorted(tiles) == list(itertools.product(range(matrices), range(splits), range(down), range(across)))


@pytest.mark.parametrize("across, size", [(False, 2), (True, 2), (False, 1), (False, 4)])
def test_elements_are_gathered_to_the_places_where_the_copy_engine_puts_them(monkeypatch, across, size):
    rows, k, first, start, stored, depth = 200, 90, 128, 64, {}, 128 // size
    monkeypatch.setattr(wgmma, "I64", int)
    monkeypatch.setattr(wgmma, "load", lambda x, i: x[i])
    monkeypatch.setattr(wgmma, "size_of", lambda x: size)
    monkeypatch.setattr(wgmma, "ratio", lambda x, y: x // y)
    monkeypatch.setattr(wgmma, "store_element", lambda place, x, value: stored.__setitem__(place, value))
    x = [1 + i for i in range(rows * k)]
    for thread in range(128):
        monkeypatch.setattr(wgmma, "thread", lambda thread=thread: thread)
        wgmma.gather.py_func(0, x, first, 128, rows, start, k, k, 1, across)
    assert len(stored) == 128 * depth
    for row, at in itertools.product(range(128), range(depth)):
        line, place = (at, row % 64) if across else (row, at)
        plain = (row // 64 * 8192 if across else 0) + line * 128 + place * size
        inside = first + row < rows and start + at < k
        want = x[(first + row) * k + start + at] if inside else 0
        assert stored[plain ^ (plain >> 7 & 7) << 4] == want


class Place:
    """An element of an array, as kernels point to it."""

    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def __add__(self, n):
        return Place(self.data, self.at + n)

    def read(self, i, left=4):
        lanes = np.zeros(4)
        lanes[:left] = self.data[self.at + i : self.at + i + min(left, 4)]
        return lanes

    def write(self, i, value, left=4):
        self.data[self.at + i : self.at + i + min(left, 4)] = value[:left]


@pytest.mark.parametrize("rows, columns, column", [(64, 128, 64), (60, 72, 64), (64, 70, 64), (49, 66, 0)])
def test_the_epilogue_writes_each_element_of_a_piece_once(monkeypatch, rows, columns, column):
    random, row, offset = np.random.default_rng(0), 48, 8
    sums, bias = random.random((16, 64)), random.random(columns)
    residual, out = random.random(offset + rows * columns), np.full(offset + rows * columns, np.nan)
    memory = np.zeros((16, 8, 8))
    for i, j in itertools.product(range(16), range(8)):
        memory[i, j ^ (i & 7)] = sums[i, 8 * j : 8 * j + 8]  # as `store_sums` does
    args = {getattr(wgmma.WGMMA, name): value for name, value in (("rows", rows), ("columns", columns), ("alpha", 0.5))}
    args |= {WGMMA.c: out, WGMMA.residual: residual, WGMMA.bias: bias}
    names = {
        "load": lambda args, place: Given(args[place]) if place in (WGMMA.residual, WGMMA.bias) else args.get(place, 0),
        "ptr": lambda data, kind: Place(getattr(data, "data", data)),
        "address": lambda p: 0,
        "bitcast": lambda x, kind: x,
        "F32": float,
        "load_sums": lambda at, R: memory.reshape(-1)[at // 4 : at // 4 + 4],
        "column_factors": lambda at, step, column, left, alpha, T: alpha,
        "bias_of": lambda given, column, left, T, R, none: Place(given.data, column).read(0, left),
        "fill": lambda value, kind, lanes: np.full(lanes, value),
        "weighed": lambda value, factors, factor, R: value * factors,
        "activate": lambda value, ACT: ACT(value),
        "read": lambda p, i, left, like: p.read(i, left),
        "vload_aligned": lambda p, i, lanes: p.read(i),
        "write": lambda p, i, value, left: p.write(i, value, left),
        "vstore_aligned": lambda p, i, value: p.write(i, value),
    }
    for name, function in names.items():
        monkeypatch.setattr(wgmma, name, function)
    for thread in range(32):
        monkeypatch.setattr(wgmma, "thread", lambda thread=thread: thread)
        wgmma.finish.py_func(args, 0, row, column, offset, None, None, np.tanh)
    want = np.full((rows, columns), np.nan)
    piece = (slice(row, row + 16), slice(column, column + 64))
    height, width = want[piece].shape
    want[piece] = np.tanh(sums * 0.5 + np.pad(bias, (0, 64))[column : column + 64])[:height, :width]
    want[piece] += residual[offset:].reshape(rows, columns)[piece]
    np.testing.assert_array_equal(out[offset:].reshape(rows, columns), want)
    assert np.isnan(out[:offset]).all()


class Given:
    """The address of an array: something but 0."""

    def __init__(self, data):
        self.data = data

    def __ne__(self, zero):
        return True
