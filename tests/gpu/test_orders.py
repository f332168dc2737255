"""Sorts, elements by rank and by frequency, and first ones of runs, thread by thread on the host."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import array as arrays
from infinicore.kernels.cuda.plans import reduce as reductions

import infinicore as ic
from infinicore.core import backend
from infinicore.dispatch.functions import FUNCTIONS

from . import threads
from .compared import TOLERANCE, equal
from .looking_back import RUN_WORDS, WORDS, look_back, look_back_at_runs


@pytest.mark.in_turn("shape")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "float16", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(9, 1), (5, 67), (2, 1201), (3, 2, 40)])
def test_modes(device, rng, shape, dtype):
    """Of rows of a warp, of a block, and along another dim; NaN, zeros of both signs, an element that stands once."""
    x = rng.integers(-3, 4, shape) * rng.integers(0, 2, shape).astype("f8")
    if "float" in dtype:
        x[0, ..., :20] = np.nan

    def run(x):
        x = x.to(dtype=dtype)
        x = -x if "float" in dtype else x
        return *ic.mode(x), *ic.mode(x, 0, True), *ic.mode(x[..., ::2], -1)

    equal(device, run, x, tolerance=0.0)
    assert any(name.startswith("reduce.modes.modes") for name in device.backend.kernels.used)


def test_modes_of_long_rows(device, rng, monkeypatch):
    """In parts, of which runs lie in several."""
    monkeypatch.setattr(reductions, "_CHUNK", 512)
    x = np.concatenate([np.repeat(rng.permutation(40), 50), rng.integers(50, 99, 900)]).reshape(1, -1)
    equal(device, lambda x: ic.mode(x.to(dtype="float32")), rng.permutation(x[0])[None], tolerance=0.0)
    assert any(name.startswith("reduce.modes.join") for name in device.backend.kernels.used)


@pytest.mark.in_turn("shape")
@pytest.mark.parametrize("dtype", [*TOLERANCE, "int8", "int32", "int64"])
@pytest.mark.parametrize("shape", [(3, 37), (2, 3001)])
def test_elements_by_rank(device, rng, shape, dtype):
    """Of equal ones that which the sort has there; medians where there are NaN; rows that begin beside vectors."""
    x = np.round(rng.standard_normal(shape) * (9 if dtype == "int8" else 40))
    if dtype in TOLERANCE:
        x[0] = rng.standard_normal(shape[1])
        x[1, 3], x[1, 20], x[0, 7] = np.nan, np.nan, -np.inf
    ranks = rng.integers(0, shape[1], (shape[0], 3))

    def run(x, ranks):
        x = x.to(dtype=dtype)
        found = *FUNCTIONS["ranked"](x, ranks), *ic.kthvalue(x, 4, 1), *ic.median(x, 1), *ic.nanmedian(x[:, 1:], 1)
        return *found, *((ic.quantile(x, 0.3, 1),) if dtype in ("float32", "float64") else ())

    equal(device, run, x, ranks, tolerance=1e-6 if dtype in ("float32", "float64") else 0.0)
    assert any(name.startswith("reduce.select.select") for name in device.backend.kernels.used)


def test_ranks_of_few_long_rows(device, rng, monkeypatch):
    """By a sort; and ranks that do not exist."""
    monkeypatch.setattr(reductions, "_ALONE", 100)
    x, ranks = rng.standard_normal((2, 300)), rng.integers(0, 300, (2, 2))
    equal(device, lambda x, ranks: FUNCTIONS["ranked"](x.to(dtype="float32"), ranks), x, ranks)
    x[0, [2, 50, 299]], x[1] = np.nan, np.nan
    medians = lambda x: [*ic.median(x, 1), *ic.nanmedian(x, 1), *ic.kthvalue(x, 297, 1), ic.median(x[0, 3:50])]
    equal(device, lambda x: medians(x.to(dtype="float32")), x)
    assert any(name.startswith("reduce.select.pick") for name in device.backend.kernels.used)
    with pytest.raises(ValueError, match="`ranks` of `ranked` must be from 0 to 299"):
        FUNCTIONS["ranked"](ic.zeros(2, 300, device=device), ic.as_tensor(ranks + 300, device=device))[0].cpu()


@pytest.mark.in_turn("shape")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(2, 100), (1, 1500), (1, 5000)])
def test_sorted_rows(device, rng, shape, dtype):
    """In shared memory, by blocks of each size; the first ones without a sort."""
    x = np.round(rng.standard_normal(shape) * 50) if dtype != "uint8" else rng.integers(0, 200, shape)
    x = x.astype("f8")
    if dtype in TOLERANCE:
        x[0, 3:9], x[0, 30:40] = np.nan, -0.0

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.sort(x, 1), *ic.topk(x, 20, 1), *ic.topk(x[:, 1:], 7, 1, False)

    equal(device, run, x)
    used = device.backend.kernels.used
    room = "1024" if shape[1] == 100 else "4096" if shape[1] == 1500 and dtype != "int64" else ""
    assert any(name.startswith(f"reduce.radix.rows_{room}") for name in used) or dtype == "int64"
    assert any(name.startswith("reduce.first.first") for name in used)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("kind", ["random", "ties", "sorted", "equal"])
def test_first_ones_by_a_sieve(device, rng, dtype, kind):
    """Of rows that begin anywhere, also of few that are cut; where too many may be among them, by digits."""
    x = rng.standard_normal((2, 9000)) * 40
    x = {"random": x, "ties": np.round(x / 4), "sorted": np.sort(x, 1), "equal": np.round(x / 1000)}[kind]
    x = np.abs(x) if dtype == "uint8" else x
    if dtype in TOLERANCE and kind == "random":
        x[0, 5:9], x[1, 3], x[0, 20] = np.nan, -np.inf, np.inf

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.topk(x[:, :2500], 33, 1), *ic.topk(x[:, 1:2100], 60, 1, False), *ic.topk(x, 5, 1)

    equal(device, run, x)
    assert any(name.startswith("reduce.first.first") for name in device.backend.kernels.used)


@pytest.mark.in_turn("each")
@pytest.mark.parametrize("each", [2, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int16", "uint8", "float64"])
def test_sorted_tiles(device, rng, monkeypatch, dtype, each):
    """Rows that are cut into tiles, the last of which has few elements; few elements of a thread, and many."""
    monkeypatch.setattr(reductions, "_ROOMS", ())
    monkeypatch.setattr(reductions, "_SLOTS", 264 if each == 2 else 0)
    x = np.round(rng.standard_normal((2, 1100)) * 50) if each == 2 else rng.standard_normal((1, 8195)) * 1e3
    x = np.abs(x) % 256 if dtype == "uint8" else x
    if dtype in TOLERANCE:
        x[0, 3:9], x[0, 30:40], x[0, 90:93], x[0, 99] = np.nan, -0.0, 0.0, -np.inf
        x[0, 50:60] = np.copysign(np.nan, -1)

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.sort(x, 1), *ic.sort(x[:, 1:], 1, descending=True), ic.argsort(x[:, ::2], 1), *ic.topk(x, 600, 1)

    equal(device, run if each == 2 else lambda x: ic.sort(x.to(dtype=dtype), 1), x)
    assert any(name.startswith("reduce.sweep.move") for name in device.backend.kernels.used)


@pytest.mark.parametrize("tile", [1, 2, 5, 12])
def test_tiles_look_back(device, rng, tile):
    """Blocks run in their order here, and find the sum before them at once; others find counts of many tiles first."""
    flag, counts, found = 5 << 32, rng.integers(0, 1 << 20, (tile, 256)), np.zeros(256, "i8")
    sums, last = np.cumsum(counts, 0), rng.integers(0, tile, 256)  # the last tile that has told its sum
    summed = np.arange(tile)[:, None] <= last
    words = np.where(summed, sums + (1 << 32), counts) + flag
    block = np.array([words.ctypes.data, found.ctypes.data, tile, flag])
    assert len(block) == WORDS.WIDTH
    assert threads.Kernel(look_back._source, look_back.shape).run(block.ctypes.data, 256) == 0
    np.testing.assert_array_equal(found, sums[-1])


def test_modes_of_sorted_tiles(device, rng, monkeypatch):
    monkeypatch.setattr(reductions, "_ROOMS", ())
    x = np.round(rng.standard_normal((20, 80)))
    equal(device, lambda x: ic.mode(x.to(dtype="bfloat16"), 1), x)


@pytest.mark.in_turn("kinds")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("kinds", [1, 3, 100000])
def test_first_of_runs(device, rng, monkeypatch, dtype, kinds):
    """In one launch: of a few long runs, of many short ones; NaN is a run of its own, -0 is 0. With a copy, without."""
    monkeypatch.setattr(backend, "SPARE", 0 if kinds == 3 else backend.SPARE)
    if kinds > 1:  # two tiles, or three, for each block; otherwise one
        monkeypatch.setattr(arrays, "FIRSTS_BLOCKS", (2 if kinds == 3 else 1) / device.backend.kernels.multiprocessors)
    x = np.sort(rng.integers(0, kinds, 17001)) * 1.0
    if dtype in TOLERANCE:
        x[20:25], x[:2], x[2:4] = np.nan, -0.0, 0.0
    x = x > 1 if dtype == "bool" else x % 256 if dtype == "uint8" else x

    def run(x):
        x = x.to(dtype=dtype)
        return ic.unique_consecutive(x), ic.unique_consecutive(x[1:16385]), ic.unique_consecutive(x[3:5000:1])

    equal(device, run, x)
    assert any(name.startswith("array.firsts.first_of_runs") for name in device.backend.kernels.used)


def test_tiles_of_runs_look_back(device, rng):
    """Over many tiles that know their own count alone."""
    counts, found = rng.integers(0, 8192, 300), np.zeros(32, "i8")
    for tile, last in ((1, 0), (32, 0), (33, 0), (34, 33), (300, 7), (300, 270)):
        words = np.where(np.arange(300) <= last, np.cumsum(counts) * 4 + 2, counts * 4 + 1)
        block = np.array([words.ctypes.data, found.ctypes.data, tile])
        assert len(block) == RUN_WORDS.WIDTH
        assert threads.Kernel(look_back_at_runs._source, look_back_at_runs.shape).run(block.ctypes.data, 1) == 0
        np.testing.assert_array_equal(found, counts[:tile].sum())


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("size, begin", [(5, 0), (8200, 0), (8201, 1), (70000, 0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_first_of_the_most_likely_tokens(device, rng, dtype, size, begin):
    """Of several rounds of loads, of rows that begin beside vectors, and of equal numbers, -0.0 and 0.0 among them."""
    rows = rng.integers(-40, 40, (3, size)).astype(np.float32)
    rows[1] = -np.abs(rows[1])
    rows[1][rng.integers(0, size, 3)] = [-0.0, 0.0, 0.0]
    rows[2] = -np.inf
    rows[2][-1] = -3
    x = ic.zeros(3 * size + begin, dtype=getattr(ic, dtype)).to(device)[begin:].view(3, size)
    x.copy_(ic.from_numpy(rows))
    np.testing.assert_array_equal(ic.sample_tokens(x).cpu().numpy(), rows.argmax(1))
    assert any(name.startswith("reduce.sample.greedy") for name in device.backend.kernels.used)
