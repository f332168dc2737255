"""Products of few rows by the copy engine and the matrix units of warps, thread by thread on the host (`units.py`)."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.distributed.gpu import Peers
from infinicore.kernels.blocks.comm import SUM
from infinicore.kernels.blocks.cuda import PEERS
from infinicore.kernels.cpu.gemm.blocking import LANES
from infinicore.kernels.cuda import fuse
from infinicore.kernels.cuda.comm import sizes as comm

import infinicore as ic
from infinicore.nn import functional as F

from ..ops.panels import random_weight
from . import compared, units

pytestmark = pytest.mark.skipif(units.SHARED >> 31 > 0, reason="memory that 32 bits reach is to be had on x86-64 alone")
ROUNDING = {"bfloat16": 5e-3, "float16": 7e-4}


def rounded(x):
    return x.cpu().to(ic.float64).numpy()


def agree(got, want, dtype):
    np.testing.assert_allclose(rounded(got), want, rtol=0, atol=ROUNDING[dtype] * np.abs(want).max())


def tensor(rng, shape, dtype, there):
    return ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(getattr(ic, dtype)).to(there)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)  # each compiles a kernel or two, 5 s


@pytest.mark.parametrize(
    "rows, n, k, begin, dtype",
    [(1, 40, 128, 0, "bfloat16"), slow(3, 24, 320, 1, "float16"), slow(16, 40, 192, 0, "float16")]
    + [slow(11, 9, 64, 1, "bfloat16")],
)
def test_floats(rows, n, k, begin, dtype, device, rng):
    """`begin` 1: at no multiple of 16 bytes, where a warp copies."""
    w = tensor(rng, n * k + begin, dtype, device)[begin:].view(n, k)
    x, bias = tensor(rng, rows * k + begin, dtype, device)[begin:].view(rows, k), tensor(rng, n, dtype, device)
    agree(ic.linear(x, w, bias), rounded(x) @ rounded(w).T + rounded(bias), dtype)
    assert any(name.startswith("gemm.stream.product") for name in device.backend.kernels.used)


@pytest.mark.skipif(LANES != 16, reason="panels have 16 rows with AVX-512 alone")
@pytest.mark.parametrize(
    "name, shift, k, dtype",
    [("int4", 0, 256, "bfloat16"), slow("int4", 0, 256, "float16"), slow("int4", 2, 512, "bfloat16")]
    + [slow("int8", 31, 256, dtype) for dtype in ROUNDING]
    + [slow("q8_0", 0, 256, "bfloat16"), slow("q4_1", 0, 256, "bfloat16"), slow("q4_1", 0, 256, "float16")]
    + [slow("q4_k", 0, 512, "bfloat16"), slow("uint4", 2, 512, "bfloat16"), slow("uint8", 1, 256, "bfloat16")]
    + [slow("uint8", 1, 256, "float16")],
)
def test_quantised_weights(name, shift, k, dtype, device, rng):
    for rows, sizes in ((1, (21,)), (9, (16, 5, 20))):
        weights, exact = zip(*(random_weight(name, n, k, rng, shift) for n in sizes))
        x, bias = tensor(rng, (rows, k), dtype, device), tensor(rng, sum(sizes), dtype, device)
        y = ic.linear_quantized(x, [weight.to(device) for weight in weights], bias, activations="float")
        agree(y, rounded(x) @ np.concatenate(exact).T + rounded(bias), dtype)
    used = [name.partition("-")[0].rpartition("_")[0] for name in device.backend.kernels.used]
    assert used == ["quant.stream.product_2", "quant.floats.product_16"]


@pytest.mark.skipif(LANES != 16, reason="panels have 16 rows with AVX-512 alone")
@pytest.mark.parametrize(
    "name, dtype",
    [("int4", "bfloat16"), slow("int8", "bfloat16"), slow("int8", "float16"), slow("q4_1", "float16")]
    + [slow("q4_1", "bfloat16")],
)
def test_rows_of_any_size_by_quantised_weights(name, dtype, device, rng):
    weight, exact = random_weight(name, 20, 256, rng, 31 if name == "int8" else 0)
    for count, kernel in ((2, "quant.stream.product_2_"), (11, "quant.floats.product_16_")):
        compared.check_rows_of_any_size(device, weight, exact, dtype, rng, ROUNDING[dtype], count)
        assert any(name.startswith(kernel) for name in device.backend.kernels.used)


def replayed(there, function):
    """(what a function returns, the same after its launches ran again as a graph joins them, names of these)."""
    kernels = there.backend.kernels
    ic.start_graph_recording(there)
    found = function()
    graph = ic.stop_graph_recording()
    before = [x.clone() for x in found]
    for x in found:
        x.fill_(float("nan"))
    rows, _kept = fuse.joined(list(graph.rows()), kernels, {})
    for handle, args, _, n in rows:
        assert ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(handle)(args, 0, n) == 0
    return before, found, [kernels.name_of(handle).partition("-")[0] for handle, *_ in rows]


def same_bits(before, after):
    for one, other in zip(before, after, strict=True):
        bits = [x.cpu().view(ic.int16).numpy() for x in (one, other)]
        np.testing.assert_array_equal(*bits)


def some_weight(kind, n, k, dtype, there, rng):
    """(a product with a random matrix of floats, or with a quantised weight; the name of its file of kernels)."""
    if kind == "floats":
        w = tensor(rng, (n, k), dtype, there)
        return lambda x: ic.linear(x, w), "gemm.stream"
    if LANES != 16:
        pytest.skip("panels have 16 rows with AVX-512 alone")
    weights = [random_weight(kind, size, k, rng, 31 if kind == "int8" else 0)[0].to(there) for size in (n, 19)]
    return lambda x: ic.linear_quantized(x, weights, activations="float"), "quant.stream"


TOKENS = {"gemm.stream": 8, "quant.stream": 2}  # rows of x that kernels which make x may have

# teams of a warp, of 128 and 256 threads; rows of which some threads have fewer vectors than others
MADE = [("floats", 1, 320, "bfloat16"), slow("floats", 2, 2048, "float16"), slow("floats", 2, 4096, "bfloat16")]
MADE += [slow("int4", 1, 512, "bfloat16"), slow("int8", 2, 2560, "float16"), slow("floats", 1, 1280, "bfloat16")]


@pytest.mark.parametrize("kind, rows, k, dtype", MADE)
def test_norms_on_the_way(kind, rows, k, dtype, device, rng):
    """x is that of the separate launches to the last bit, and so are the sum and the result."""
    multiply, family = some_weight(kind, 21, k, dtype, device, rng)
    a, b, weight = (tensor(rng, shape, dtype, device) for shape in ((rows, k), (rows, k), (k,)))

    def turns():
        y, total = ic.add_rms_norm(a, b, weight, 1e-5)
        product = multiply(y)
        z = F.rms_norm(total, (k,), weight)
        return [y, total, product, z, multiply(z)]

    before, after, names = replayed(device, turns)
    assert len(names) == 2 and all(name.startswith(f"{family}.normed_{TOKENS[family]}_") for name in names)
    same_bits(before, after)


@pytest.mark.parametrize("kind, rows, k, dtype", MADE)
def test_gates_on_the_way(kind, rows, k, dtype, device, rng):
    multiply, family = some_weight(kind, 21, k, dtype, device, rng)
    x = tensor(rng, (rows, 2 * k), dtype, device)

    def run():
        y = ic.silu_and_mul(x)
        return [y, multiply(y)]

    before, after, names = replayed(device, run)
    assert len(names) == 1 and names[0].startswith(f"{family}.gated_{TOKENS[family]}_")
    same_bits(before, after)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    "kind, rows, k, half, dtype",
    [("floats", 1, 320, 40, "bfloat16"), slow("floats", 2, 1280, 88, "float16"), slow("floats", 7, 320, 24, "bfloat16")]
    + [("int4", 1, 512, 40, "bfloat16"), slow("int4", 2, 512, 88, "float16"), slow("int8", 7, 256, 24, "bfloat16")]
    + [slow("q4_k", 1, 512, 32, "bfloat16"), slow("int4", 1, 512, 216, "bfloat16")],
)
def test_gates_behind_a_product(kind, rows, k, half, dtype, normed, device, rng, monkeypatch):
    """To the last bit; each block makes up to two rows of a norm."""
    if kind != "floats":  # blocks enough for all panels need no gate of their own: here are one or two
        monkeypatch.setattr(device.backend.kernels, "multiprocessors", 1 if half < 100 else 2)
    bias = tensor(rng, 2 * half, dtype, device)
    x, weight = tensor(rng, (rows, k), dtype, device), tensor(rng, k, dtype, device)
    if kind == "floats":
        w = tensor(rng, (2 * half, k), dtype, device)
    elif LANES != 16:
        pytest.skip("panels have 16 rows with AVX-512 alone")
    else:
        weights = [random_weight(kind, half, k, rng, 31 if kind == "int8" else 0)[0].to(device) for _ in range(2)]

    def run():
        a = F.rms_norm(x, (k,), weight) if normed else x
        y = ic.linear(a, w, bias) if kind == "floats" else ic.linear_quantized(a, weights, bias, activations="float")
        return [y, ic.silu_and_mul(y)] + [a] * normed

    before, after, names = replayed(device, run)
    together, family = normed and rows <= fuse.MOST_MADE, "gemm.stream"
    assert len(names) == 1 + (normed and not together)
    if kind != "floats":
        family = "quant.stream" if rows <= 2 else "quant.floats"
    tokens = 2 if family == "quant.stream" else 8
    assert names[-1].startswith(f"{family}.{'normed_' * together}gating_{tokens}_")
    same_bits(before, after)


@pytest.mark.parametrize("rows, n, k, dtype", [(1, 40, 320, "bfloat16"), slow(7, 88, 1280, "float16")])
def test_products_of_aligned_rows(rows, n, k, dtype, device, rng):
    w, x = tensor(rng, (n, k), dtype, device), tensor(rng, (rows, k), dtype, device)
    before, after, names = replayed(device, lambda: [ic.linear(x, w)])
    assert names[0].startswith("gemm.stream.lean_8_")
    same_bits(before, after)


@pytest.mark.parametrize(
    "size, rotated, how", [(64, 64, "halves"), slow(40, 24, "interleaved"), slow(40, 24, "halves")]
)
def test_keys_that_are_turned_on_their_way_to_the_cache(size, rotated, how, device, rng):
    """Three tokens, one of which is padding, to blocks of 4; heads of queries, keys and values lie in rows."""
    heads, shared, tokens = 3, 2, 3
    x = tensor(rng, (tokens, heads + 2 * shared, size), "bfloat16", device)
    tables = [tensor(rng, (9, rotated // 2), "float32", device) for _ in range(2)]
    places = [ic.as_tensor(np.array(values), device=device) for values in ([4, 0, 8], [9, -1, 2])]

    def run(x, positions, slots, *tables):
        packed, zeros = x.clone(), ic.zeros(3, shared, 4, size, dtype=ic.bfloat16, device=x.device)
        query, key, value = packed.split([heads, shared, shared], dim=1)
        caches = zeros.clone(), zeros.clone()
        ic.rope_qk(query, key, positions, *tables, algo=int(how == "halves"))
        ic.paged_caching(*caches, key, value, slots)
        return [packed, *caches]

    before, after, names = replayed(device, lambda: run(x, *places, *tables))
    assert names.count(f"attention.rope.rope_{how}_write") == 1 and "attention.kvcache.write" not in names
    same_bits(before, after)
    for got, want in zip(after, run(*(t.cpu() for t in (x, *places, *tables)))):
        agree(got, rounded(want), "bfloat16")


class Rank:
    """A rank's launches: a product, its sum over ranks, a norm, another product and maybe a gate."""

    def __init__(self, peers, n, k, dtype, gate, device, rng):
        self.peers, self.device, self.gate = peers, device, gate
        self.w, self.x = tensor(rng, (n, k), dtype, device), tensor(rng, (1, k), dtype, device)
        self.residual, self.weight = tensor(rng, (1, n), dtype, device), tensor(rng, (n,), dtype, device)
        self.behind = tensor(rng, (48, n), dtype, device)
        self._graphs = []

    def launches(self, function):
        """The rows of what a function launches; what it returns."""
        ic.start_graph_recording(self.device)
        found = function()
        self._graphs.append(ic.stop_graph_recording())
        return list(self._graphs[-1].rows()), found

    def tell(self):
        """The launches of the first product, and of the sum that is not run: its part."""
        rows, self.part = self.launches(lambda: ic.linear(self.x, self.w))
        handle, values, blocks = self.peers._plan(self.part.numel(), self.part.dtype, SUM)
        self.block = (ctypes.c_int64 * len(values))(*values)
        self.block[PEERS.x] = self.block[PEERS.y] = self.part.data_ptr()
        self.rows = [*rows, (handle, ctypes.addressof(self.block), len(values), blocks)]
        return self.part

    def hear(self, total):
        """The rest, with a sum that was made elsewhere."""
        self.part.copy_(total)

        def run():
            y, residual = ic.add_rms_norm(self.part, self.residual, self.weight, 1e-5)
            z = ic.linear(y, self.behind)
            return [residual, y, z] + ([ic.silu_and_mul(z)] if self.gate else [])

        rows, self.found = self.launches(run)
        self.rows, self.found = self.rows + rows, [self.part, *self.found]
        self.wanted = [x.clone() for x in self.found]
        for x in self.found:
            x.fill_(float("nan"))

    def join(self):
        kernels, errors = self.device.backend.kernels, {}
        errors[kernels.name_of(self.rows[1][0])] = {2: "it waited"}
        self.joined, self._kept = fuse.joined(self.rows, kernels, errors)
        self.errors = {handle: errors[kernels.name_of(handle)] for handle, *_ in self.joined}
        return [kernels.name_of(handle).partition("-")[0] for handle, *_ in self.joined]

    def run(self, number):
        handle, args, _, n = self.joined[number]
        return ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(handle)(args, 0, n)


@pytest.mark.parametrize(
    "size, n, dtype, gate",
    [(2, 320, "bfloat16", True), slow(2, 4096, "bfloat16", False), slow(3, 2560, "float16", True)],
)
def test_sums_over_gpus_on_the_way(size, n, dtype, gate, device, rng):
    """They have the bits of `all_reduce_few`, round after round, and leave its count where it would be."""
    memory = [np.zeros(comm.WINDOW_BYTES // 8, np.int64) for _ in range(size)]
    windows = [-(-x.ctypes.data // 16) * 16 for x in memory]
    ranks = [
        Rank(Peers(device.backend, rank, size, windows, 1e-5), n, 128, dtype, gate, device, rng) for rank in range(size)
    ]
    total = sum(rank.tell().to(ic.float32) for rank in ranks).to(getattr(ic, dtype))
    for rank in ranks:
        rank.hear(total)
        names = rank.join()
        assert [name.rpartition("_8_")[0] for name in names] == [
            "gemm.stream.telling", "gemm.stream.heard_gating" if gate else "gemm.stream.heard"
        ]  # fmt: skip
    for turn in range(1, 4):
        assert [rank.run(0) for rank in ranks] == [0] * size
        for rank in ranks:
            assert rank.run(1) == 0
            same_bits(rank.wanted, rank.found)
            for x in rank.found:
                x.fill_(float("nan"))
        pieces = -(-2 * n // comm.TOLD_BYTES)
        for begin in windows:
            window = np.ctypeslib.as_array((ctypes.c_int64 * (comm.BROKEN + 1)).from_address(begin))
            counts = window[: comm.BROKEN].reshape(-1, comm.RECORD)[:, comm.COUNT]
            assert list(counts) == [turn] * pieces + [0] * (comm.BLOCKS - pieces) and not window[comm.BROKEN]
    first = ranks[0]
    # the first block waits for what nobody tells in this round (code 2), the others see that it has given up
    assert first.run(0) == 0 and first.run(1) == comm.GAVE_UP
    gave_up = [ctypes.c_int64.from_address(begin + 8 * comm.BROKEN).value for begin in windows]
    assert gave_up == [1] * size
    assert str(first.errors[first.joined[1][0]].get(2)) == "it waited"
