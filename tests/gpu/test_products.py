"""What the host decides about products on GPUs: kernels, tiles, layouts. No GPU is needed."""

import itertools
from math import prod

import numpy as np
import pytest
from infinicore.kernels.blocks.cuda import PRODUCT, STRIDED_COPY, WGMMA
from infinicore.kernels.build import load
from infinicore.kernels.cuda import policy
from infinicore.kernels.cuda.gemm import fma, wgmma
from infinicore.kernels.cuda.plans.gemm import _operand, product
from infinicore.kernels.problems.gemm import Product

from .without import Gpu


def planned(*args, **options):
    with load.on(Gpu()):
        return product(Product(*args, **options))


@pytest.mark.parametrize(
    "a, b, dtype, names",
    [
        # (shape, strides) of a and b
        (((4096, 4096), (4096, 1)), ((4096, 4096), (1, 4096)), "bfloat16", ["wgmma.nt_256"]),
        (((4096, 4096), (4096, 1)), ((4096, 4096), (4096, 1)), "float16", ["wgmma.nn_256"]),
        (((768, 16384), (1, 768)), ((16384, 768), (768, 1)), "bfloat16", ["wgmma.tn_256", "wgmma.join"]),
        (((64, 64), (1, 64)), ((64, 64), (1, 64)), "bfloat16", ["wgmma.tt_64"]),
        (((65, 73), (73, 1)), ((73, 97), (1, 73)), "bfloat16", ["copy.strided", "copy.strided", "wgmma.nt_64"]),
        (((64, 96), (96, 1)), ((96, 65), (65, 1)), "bfloat16", ["copy.strided", "wgmma.nn_64"]),
        (((8, 6, 64, 64), (24576, 64, 384, 1)), ((64, 64), (1, 64)), "bfloat16", ["wgmma.nt_64"]),
        (((4, 5, 6, 8, 8), (9999, 999, 99, 8, 1)), ((8, 8), (1, 8)), "bfloat16", ["tiled.product"]),
        (((1, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "bfloat16", ["few.product_8"]),
        (((16, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "bfloat16", ["few.product_16"]),
        (((17, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "bfloat16", ["wgmma.nt_64", "wgmma.join"]),
        (((4, 4095), (4095, 1)), ((4095, 512), (1, 4095)), "bfloat16", ["rows.product_4"]),
        (((512, 4096), (4096, 1)), ((4096, 2), (1, 4096)), "float16", ["few.product_8"]),
        (((16, 4096), (4096, 1)), ((4096, 512), (1, 4096)), "float32", ["rows.product_4"]),
        (((64, 64), (64, 1)), ((64, 64), (1, 64)), "float32", ["fma.float32_64_64"]),
        (
            ((4096, 4096), (4096, 1)),
            ((4096, 4096), (1, 4096)),
            "float32",
            ["copy.transpose"] * 2 + ["fma.float32_128_128"],
        ),
        (((4096, 512), (512, 1)), ((512, 768), (768, 1)), "float32", ["fma.float32_128_128"]),
        (((64, 8192), (8192, 1)), ((8192, 64), (64, 1)), "float64", ["fma.float64_64_64", "wgmma.join"]),
        (((4, 5, 6, 8, 8), (9999, 999, 99, 8, 1)), ((8, 8), (1, 8)), "float64", ["fma.float64_64_64"]),
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


@pytest.mark.parametrize("across", [False, True])
def test_elements_are_gathered_to_the_places_where_the_copy_engine_puts_them(monkeypatch, across):
    rows, k, first, start, stored = 200, 90, 128, 64, {}
    for name in ("U16", "I64"):
        monkeypatch.setattr(wgmma, name, int)
    monkeypatch.setattr(wgmma, "load", lambda x, i: x[i])
    monkeypatch.setattr(wgmma, "store_short", stored.__setitem__)
    x = [1 + i for i in range(rows * k)]
    for thread in range(128):
        monkeypatch.setattr(wgmma, "thread", lambda thread=thread: thread)
        wgmma.gather.py_func(0, x, first, 128, rows, start, k, k, 1, across)
    assert len(stored) == 128 * 64
    for row, at in itertools.product(range(128), range(64)):
        line, place = (at, row % 64) if across else (row, at)
        plain = (row // 64 * 8192 if across else 0) + line * 128 + place * 2
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
        "load": lambda args, place: Given(args[place]) if place in (WGMMA.residual, WGMMA.bias) else args[place],
        "ptr": lambda data, kind: Place(getattr(data, "data", data)),
        "address": lambda p: 0,
        "bitcast": lambda x, kind: x,
        "F32": float,
        "fill": lambda value, kind, lanes: np.full(lanes, value),
        "load_sums": lambda at: memory.reshape(-1)[at // 4 : at // 4 + 4],
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
