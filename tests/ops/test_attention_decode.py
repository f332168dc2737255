"""Decoding: few query rows over long caches, keys shared out among threads, every width of rows and instruction set."""

import re
import shutil

import numpy as np
import pytest
from infinicore.kernels.build import isa, jit, rates, render
from infinicore.kernels.cpu import plans
from infinicore.kernels.ops._attention import reference
from infinicore.kernels.problems.attention import Attention

import infinicore as ic

from . import narrower

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "bfloat16": 2e-2, "float16": 2e-3}


def wide(x):
    return x.to(ic.float64).numpy()


def ints(values):
    return ic.from_numpy(np.asarray(values, np.int64))


def close(result, expected, tolerance):
    np.testing.assert_allclose(wide(result), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max(initial=0)))


class Case:
    """Sequences of `lens` keys in a static cache [B, Hkv, room, D], the rest of which is NaN, and their queries."""

    def __init__(self, rng, lens, counts, heads, kv_heads, size, size_v, dtype):
        self.lens, self.counts = list(lens), list(counts)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.dtype, room = ic.dtype(dtype), max(max(lens), 1) + 3
        self.q = self._tensor(rng.standard_normal((self.starts[-1], heads, size)))
        k, v = (np.full((len(lens), kv_heads, room, d), np.nan) for d in (size, size_v))
        for i, length in enumerate(lens):
            k[i, :, :length] = rng.standard_normal((kv_heads, length, size))
            v[i, :, :length] = rng.standard_normal((kv_heads, length, size_v))
        self.k, self.v = self._tensor(k), self._tensor(v)

    def _tensor(self, x):
        return ic.from_numpy(x.astype(np.float32)).to(self.dtype)

    def run(self, **options):
        return ic.cached_attention(self.q, self.k, self.v, ints(self.starts), ints(self.lens), **options)

    def expected(self, k=None, v=None, window=None, alibi_slopes=None):
        scale, rows = self.q.shape[-1] ** -0.5, []
        slopes = None if alibi_slopes is None else wide(alibi_slopes)
        keys, values = wide(self.k) if k is None else k, wide(self.v) if v is None else v
        for i, length in enumerate(self.lens):
            q = wide(self.q)[self.starts[i] : self.starts[i + 1]]
            one = (x[i, :, :length].swapaxes(0, 1) for x in (keys, values))
            rows.append(reference(q, *one, scale, 1, window or 0, slopes))
        return np.concatenate(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_groups(dtype, group, rng):
    case = Case(rng, (1, 7, 64, 129), (1,) * 4, 2 * group, 2, 64, 64, dtype)
    close(case.run(), case.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("size", [16, 17, 33, 64, 80, 96, 128, 200, 256])
def test_head_sizes_and_odd_lengths(dtype, size, rng):
    for size_v in (size, size - 3):
        case = Case(rng, (65, 3, 203), (1,) * 3, 8, 1, size, size_v, dtype)
        close(case.run(), case.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 1, 5, 70])
@pytest.mark.parametrize("alibi", [False, True])
def test_several_tokens_windows_and_slopes(dtype, window, alibi, rng):
    for heads, kv_heads, counts in ((2, 2, (3, 1, 2)), (4, 2, (2, 4, 1)), (16, 2, (1, 2, 1))):
        case = Case(rng, (9, 200, 66), counts, heads, kv_heads, 48, 48, dtype)
        slopes = ic.from_numpy(rng.random(heads).astype(np.float32)) if alibi else None
        options = {"window": window, "alibi_slopes": slopes}
        close(case.run(max_seqlen_q=max(counts), **options), case.expected(**options), TOLERANCE[dtype])


@pytest.fixture
def share(monkeypatch):
    """Sets into how many shares keys are cut, whatever their number and that of the threads."""

    def set_units(units):
        planner = plans.attention.attention
        monkeypatch.setitem(plans.attention.PLANNERS, Attention, lambda problem, threads: planner(problem, units))
        monkeypatch.setattr(plans.attention, "GRAIN_NS", 1e-3)
        monkeypatch.setattr(ic.device("cpu").backend, "plans", {})  # none that was made before, and none for others

    return set_units


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("units", [1, 2, 3, 5, 7, 40])
def test_shares_of_keys(dtype, units, share, rng):
    share(units)
    for lens, counts in (((1000,), (1,)), ((130, 1, 0, 640, 65), (1, 1, 1, 1, 1)), ((300, 200), (2, 3))):
        case = Case(rng, lens, counts, 8, 2, 64, 40, dtype)
        close(case.run(max_seqlen_q=max(counts)), case.expected(), TOLERANCE[dtype])
        close(case.run(max_seqlen_q=max(counts), window=99), case.expected(window=99), TOLERANCE[dtype])


def test_rows_without_keys_and_padding_are_zero_in_every_share(share, rng):
    share(3)
    case = Case(rng, (0, 500, 0), (1, 1, 1), 8, 2, 64, 64, "float32")
    case.q = ic.cat([case.q, case.q], dim=0)  # three tokens after the last sequence
    result = case.run(max_seqlen_q=1).numpy()
    assert not result[[0, 2, 3, 4, 5]].any()
    np.testing.assert_allclose(result[1], case.expected()[1], atol=2e-6)


def test_a_recorded_step_cuts_new_lengths_anew(share, rng):
    share(5)
    case = Case(rng, (900, 700), (1, 1), 8, 2, 64, 64, "float32")
    starts, lens, out = ints(case.starts), ints([1, 1]), ic.empty(case.q.shape, dtype=ic.float32)
    ic.start_graph_recording()
    ic.cached_attention(case.q, case.k, case.v, starts, lens, out=out, max_seqlen_q=1)
    graph = ic.stop_graph_recording()
    for lengths in ((900, 700), (3, 0), (64, 65), (0, 700), (899, 1)):
        lens.numpy()[:] = case.lens[:] = lengths
        graph.run()
        close(out, case.expected(), 2e-6)
    lens.numpy()[1] = 904
    with pytest.raises(ValueError, match=r"`kv_lens`.*903"):
        graph.run()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_any_size_in_shares(dtype, share, rng):
    share(3)
    case = Case(rng, (150, 1, 333), (1, 1, 1), 8, 2, 64, 64, dtype)
    for block_size in (1, 5, 16, 64):
        width = -(-336 // block_size)
        table = rng.permutation(3 * width + 2)[: 3 * width].reshape(3, width)
        caches = []
        for x in (case.k, case.v):
            padded = np.full((3, 2, width * block_size, 64), np.nan, np.float32)
            padded[:, :, : x.shape[2]] = x.to(ic.float32).numpy()
            cache = np.full((3 * width + 2, 2, block_size, 64), np.nan, np.float32)
            cache[table] = padded.reshape(3, 2, width, block_size, 64).swapaxes(1, 2)
            caches.append(ic.from_numpy(cache).to(ic.dtype(dtype)))
        result = ic.paged_attention(case.q, *caches, ints(table), ints(case.lens), scale=0.125)
        close(result, case.expected(), TOLERANCE[dtype])


def test_nan_and_large_scores_stay_in_their_rows(share, rng):
    share(4)
    case = Case(rng, (400, 400), (1, 1), 8, 2, 64, 64, "float32")
    clean = case.run().numpy().copy()
    case.k.numpy()[0, 1, 397, 5] = np.nan  # the last share of one head of one sequence
    case.v.numpy()[1, 0, 3, 7] = np.inf
    result = case.run().numpy()
    assert np.isnan(result[0, 4:]).all() and (result[1, :4, 7] == np.inf).all()
    np.testing.assert_array_equal(result[0, :4], clean[0, :4])
    np.testing.assert_array_equal(result[1, 4:], clean[1, 4:])
    case.k.numpy()[1, 1, 200] = 1e4 * case.q.numpy()[1, 4]  # one key takes all
    np.testing.assert_allclose(case.run(scale=1.0).numpy()[1, 4], case.v.numpy()[1, 1, 200], rtol=1e-6)


# ---- int8 caches -------------------------------------------------------------------------------


class Int8Case(Case):
    """The same, stored by `paged_caching` as int8; its scales are NaN where nothing was stored."""

    def __init__(self, rng, lens, counts, heads, kv_heads, size, size_v, dtype, block_size=None):
        super().__init__(rng, lens, counts, heads, kv_heads, size, size_v, dtype)
        room, batch = self.k.shape[2], len(lens)
        block_size = block_size or room
        width = -(-room // block_size)
        blocks = batch * width
        self.table = rng.permutation(blocks).reshape(batch, width)
        place = np.concatenate([np.arange(n) for n in lens])
        seq = np.repeat(np.arange(batch), lens)
        slots = self.table[seq, place // block_size] * block_size + place % block_size
        self.scales = {n: ic.from_numpy(np.full((blocks, kv_heads, block_size), np.nan, np.float32)) for n in NAMES}
        self.stored = [ic.full((blocks, kv_heads, block_size, d), -128, dtype=ic.int8) for d in (size, size_v)]
        new = [self._tensor(wide(x).swapaxes(1, 2)[seq, place]) for x in (self.k, self.v)]
        ic.paged_caching(*self.stored, *new, ints(slots), **self.scales)
        self.new, self.slots, self.block_size = new, slots, block_size

    def dequantised(self):
        """Keys and values [B, Hkv, room, D] as float64."""
        both = []
        for x, scale in zip(self.stored, self.scales.values()):
            x = (wide(x) * wide(scale)[..., None])[self.table]
            both.append(x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1, x.shape[-1]))
        return both

    def run(self, **options):
        given = ints(self.starts), ints(self.lens), ints(self.table)
        return ic.cached_attention(self.q, *self.stored, *given, **self.scales, **options)


NAMES = ("k_scales", "v_scales")


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size, block_size", [(64, None), (33, 5), (128, 16)])
def test_int8_storing_and_attention(dtype, size, block_size, rng):
    counts = (1, 2, 30)
    case = Int8Case(rng, (100, 3, 70), counts, 8, 2, size, size + 7, dtype, block_size)
    for x, scale, stored in zip(case.new, case.scales.values(), case.stored):
        places = case.slots // case.block_size, slice(None), case.slots % case.block_size
        found = wide(stored)[places] * wide(scale)[places][..., None]
        step = np.abs(wide(x)).max(-1, keepdims=True) / 127
        assert (np.abs(found - wide(x)) <= step * (0.5 + 1e-4)).all()
        assert np.isfinite(wide(scale)).sum() == x.shape[0] * x.shape[1]  # nothing else was written
    # Of the dequantised cache, attention is as exact as of any other: tiles, streamed rows, and both.
    k, v = case.dequantised()
    for hints in ({}, {"max_seqlen_q": 30}, {"window": 20}):
        window = hints.get("window")
        close(case.run(**hints), case.expected(k, v, window=window), TOLERANCE[dtype])
    # Of the exact one, it is off by what 8 bits lose: 1/254 of the largest element, in keys and values.
    assert np.abs(wide(case.run()) - case.expected()).max() < 0.04


@pytest.mark.parametrize("units", [1, 3])
def test_int8_decoding_in_shares(units, share, rng):
    share(units)
    for heads in (2, 8, 32):
        case = Int8Case(rng, (1, 700, 64), (1, 1, 1), heads, 2, 64, 64, "bfloat16")
        close(case.run(max_seqlen_q=1), case.expected(*case.dequantised()), TOLERANCE["bfloat16"])
        given = [case.q, *case.stored, ints(case.table), ints(case.lens)]
        result = ic.paged_attention(*given, scale=0.125, **case.scales)
        close(result, case.expected(*case.dequantised()), TOLERANCE["bfloat16"])


def test_int8_scales_of_special_values():
    k = np.ones((6, 1, 20), np.float32)
    k[0], k[1, 0, 3], k[2, 0, 3], k[3], k[4], k[5] = 0, np.nan, np.inf, 1e-38, 3e38, np.linspace(-127, 127, 20)
    cache, scales = ic.zeros((1, 1, 6, 20), dtype=ic.int8), ic.zeros((1, 1, 6), dtype=ic.float32)
    again, more = ic.zeros((1, 20, 1, 6), dtype=ic.int8).permute((0, 2, 3, 1)), ic.zeros((1, 1, 6), dtype=ic.float32)
    k = ic.from_numpy(k)
    ic.paged_caching(cache, again, k, k, ints(range(6)), k_scales=scales, v_scales=more)
    np.testing.assert_array_equal(cache.numpy(), again.numpy())
    np.testing.assert_array_equal(scales.numpy(), more.numpy())
    with np.errstate(invalid="ignore"):
        found = cache.numpy()[0, 0] * scales.numpy()[0, 0, :, None]
    assert not found[0].any() and np.isnan(found[1:3]).all() and np.abs(found[3]).max() < 1e-30
    np.testing.assert_allclose(found[4], 3e38, rtol=1e-6)
    np.testing.assert_array_equal(cache.numpy()[0, 0, 5], np.round(np.linspace(-127, 127, 20).astype(np.float32)))
    strided = ic.zeros((1, 1, 6), dtype=ic.float32)
    ic.kv_caching(cache, again, *(k.permute((1, 0, 2)).unsqueeze(0),) * 2, ints([0]), k_scales=strided, v_scales=more)
    np.testing.assert_array_equal(strided.numpy(), scales.numpy())


def test_bad_int8_caches_name_the_argument(rng):
    case = Int8Case(rng, (5, 5), (1, 1), 2, 1, 16, 16, "float32")
    scales, given = case.scales, (ints(case.starts), ints(case.lens), ints(case.table))
    k, v = case.stored
    for change, kind, message in (
        ({"k_scales": None}, ValueError, r"`k_scales`.*float32.*NoneType"),
        ({"v_scales": ic.zeros((2, 1, 7), dtype=ic.float32)}, ValueError, r"`v_scales`.*\(2, 1, 8\).*\(2, 1, 7\)"),
        ({"k_scales": ic.zeros((2, 1, 8), dtype=ic.bfloat16)}, ValueError, r"`k_scales`.*bfloat16"),
    ):
        with pytest.raises(kind, match=message):
            ic.cached_attention(case.q, k, v, *given, **{**scales, **change})
        with pytest.raises(kind, match=message):
            ic.paged_caching(k, v, *case.new, ints(case.slots), **{**scales, **change})
    with pytest.raises(TypeError, match=r"`k_cache`.*int8"):
        ic.cached_attention(case.q, k, v, *given)
    with pytest.raises(TypeError, match=r"`v_cache`.*int8 beside `k_scales`.*float32"):
        ic.cached_attention(case.q, k, v.to(ic.float32), *given, **scales)
    with pytest.raises(TypeError, match=r"`v`.*bfloat16.*float32"):
        ic.paged_caching(k, v, case.new[0], case.new[1].to(ic.bfloat16), ints(case.slots), **scales)


# ---- instruction sets --------------------------------------------------------------------------


@pytest.mark.slow
@narrower.CHOICES
def test_decoding_on(choice, width):
    """Of each dtype where the loops are others: 16-bit floats are widened otherwise on both, whole vectors on one."""
    chosen = {"avx512": "bfloat16", "avx2": "not float64", "portable": "not float64 and not (groups and bfloat16)"}
    narrower.run(choice, width, f"({chosen[choice]}) and not decoding_on", __file__)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_products_are_vector_code_in_registers(dtype):
    source = render.stub("attention.decode.decode", {"T": dtype, "C": dtype, "WIDTH": 8})
    text = jit.assembly("attention.decode.decode", source)
    register = {64: "zmm", 32: "ymm", 16: "xmm"}[isa.vector_bytes()]
    product = "vdpbf16ps" if dtype == "bfloat16" and rates.choices().pairs else "vfmadd" if isa.has_fma() else "mulps"
    lines = [line for line in text.splitlines() if product in line and register in line]
    # 8 keys x 2 registers of rows, and 8 rows x 2 of values for whole and for last elements
    assert len(lines) >= 3 * 16 * isa.vector_bytes() // 64
    assert not re.search(r"call.*<(expf|exp2f|fmaf)", text)


@pytest.mark.parametrize("alibi", [False, True])
def test_calls_of_a_known_layout(alibi, rng):
    """What was found out for one call is used by the next with other tensors, lengths, tables, and the same checks."""
    slopes = ic.from_numpy(rng.random(4).astype(np.float32)) if alibi else None
    heads, kv_heads, size, blocks, block_size = 4, 2, 16, 12, 8
    for turn in range(4):
        scale = 0.25 if turn != 2 else 0.5
        q, k, v = (
            ic.from_numpy(rng.standard_normal(shape).astype(np.float32))
            for shape in ((3, heads, size), (blocks, kv_heads, block_size, size), (blocks, kv_heads, block_size, size))
        )
        table, lens = rng.permutation(blocks).reshape(3, 4), rng.integers(1, 4 * block_size + 1, 3)
        result = ic.paged_attention(q, k, v, ints(table), ints(lens), slopes, scale)
        for i in range(3):
            keys, values = (
                wide(x)[table[i]].transpose(0, 2, 1, 3).reshape(-1, kv_heads, size)[: lens[i]] for x in (k, v)
            )
            expected = reference(
                wide(q)[i : i + 1], keys, values, scale, 1, 0, None if slopes is None else wide(slopes)
            )
            close(result[i : i + 1], expected, TOLERANCE["float32"])
        with pytest.raises(ValueError, match="block_tables"):
            ic.paged_attention(q, k, v, ints(table + 7), ints(lens), slopes, scale)
        with pytest.raises(ValueError, match="cache_lens"):
            ic.paged_attention(q, k, v, ints(table), ints(lens + 99), slopes, scale)
    for wrong in (ints(lens)[:2], ic.ones(3)):
        with pytest.raises((ValueError, TypeError), match="cache_lens"):
            ic.paged_attention(q, k, v, ints(table), wrong, slopes, scale)
    with pytest.raises(TypeError, match="k_cache"):
        ic.paged_attention(q, k.to(ic.float64), v, ints(table), ints(lens), slopes, scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_that_follow_one_another(dtype, rng):
    """Long sequences of different lengths, whose first keys are fetched while the one before ends."""
    case = Case(rng, [700, 513, 0, 1200, 640], [1, 1, 1, 1, 1], 8, 4, 64, 64, dtype)
    for threads in (1, 2):
        ic.set_num_threads(threads)
        close(case.run(), case.expected(), TOLERANCE[dtype])
    ic.set_num_threads(2)
