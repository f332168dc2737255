"""Attention and its caches: sizes, masks, layouts, mixed batches, recorded graphs, bad input.

`test_table.py` compares every op with its reference in each dtype; here is what samples do not show.
"""

import numpy as np
import pytest
from infinicore.kernels.ops._attention import reference

import infinicore as ic

TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}


@pytest.fixture
def normal(rng):
    """Standard normal tensors of any shape."""

    def make(*shape, dtype="float32"):
        return ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(ic.dtype(dtype))

    return make


def wide(x):
    return x.to(ic.float64).numpy()


def ints(*values, dtype=np.int64):
    return ic.from_numpy(np.array(values, dtype))


def close(result, expected, tolerance=2e-6):
    expected = np.asarray(expected)
    np.testing.assert_allclose(wide(result), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max(initial=0)))


def blocks_of(rng, x, block_size, spare=3):
    """x [B, L, H, D] in a paged cache [blocks, H, block_size, D], stored [blocks, block_size, H, D], and its table."""
    x = wide(x).astype(np.float32)
    batch, length, heads, size = x.shape
    width = -(-length // block_size)
    table = rng.permutation(batch * width + spare)[: batch * width].reshape(batch, width)
    cache = np.full((batch * width + spare, block_size, heads, size), np.nan, np.float32)
    padded = np.full((batch, width * block_size, heads, size), np.nan, np.float32)
    padded[:, :length] = x
    cache[table] = padded.reshape(batch, width, block_size, heads, size)
    return ic.from_numpy(cache).permute((0, 2, 1, 3)), table


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("q_len", [1, 3, 17, 257])
def test_sizes_and_groups(dtype, q_len, normal):
    shapes = [(1, 1, 1, 1), (257, 4, 2, 64), (300, 8, 1, 80), (17, 3, 3, 33), (260, 7, 1, 128)]
    for keys, heads, kv_heads, size in shapes:
        for causal in (False, True):
            q, k = normal(1, q_len, heads, size, dtype=dtype), normal(1, keys, kv_heads, size, dtype=dtype)
            v = normal(1, keys, kv_heads, size + 5, dtype=dtype)
            expected = reference(wide(q)[0], wide(k)[0], wide(v)[0], size**-0.5, int(causal))
            close(ic.mha(q, k, v, scale=size**-0.5, is_causal=causal)[0], expected, TOLERANCE[dtype])


@pytest.mark.parametrize("q_len", [2, 40])
@pytest.mark.parametrize("window", [None, 1, 30, 1 << 40])
@pytest.mark.parametrize("alibi", [False, True])
def test_windows_and_slopes(q_len, window, alibi, normal, rng):
    q, k, v = normal(q_len, 6, 48), normal(1, 2, 150, 48), normal(1, 2, 150, 48)
    slopes = rng.random(6).astype(np.float32) if alibi else None
    result = ic.cached_attention(
        q, k, v, ints(0, q_len), ints(145), window=window, alibi_slopes=ic.from_numpy(slopes) if alibi else None
    )
    keys, values = (wide(x)[0, :, :145].swapaxes(0, 1) for x in (k, v))
    close(result, reference(wide(q), keys, values, 48**-0.5, 1, window or 0, slopes))


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_mixed_batch_over_a_permuted_paged_cache(block_size, index, normal, rng):
    """A prompt, decoding sequences, one with no token, one with no key, padding: all in one call."""
    k, v = normal(5, 200, 2, 64), normal(5, 200, 2, 64)
    k_cache, table = blocks_of(rng, k, block_size)
    v_cache = ic.from_numpy(np.full(wide(k_cache).shape, np.nan, np.float32))
    slots = table[:, np.arange(200) // block_size] * block_size + np.arange(200) % block_size
    ic.paged_caching(k_cache, v_cache, k.view((1000, 2, 64)), v.view((1000, 2, 64)), ic.from_numpy(slots.reshape(-1)))
    counts, lens = [60, 1, 0, 3, 2], [200, 133, 50, 0, 64]
    starts, q = np.concatenate([[0], np.cumsum(counts)]), normal(70, 8, 64)
    expected = np.zeros((70, 8, 64))
    for i, length in enumerate(lens):
        rows = slice(starts[i], starts[i + 1])
        expected[rows] = reference(wide(q)[rows], wide(k)[i, :length], wide(v)[i, :length], 0.125, 1)
    args = [ic.from_numpy(np.asarray(a, index)) for a in (starts, lens, table)]
    for hints in ({}, {"max_seqlen_q": 1, "max_kv_len": 7}, {"max_seqlen_q": 60, "max_kv_len": 200}):
        close(ic.cached_attention(q, k_cache, v_cache, *args, **hints), expected)
    close(ic.paged_attention_prefill(q, k_cache, v_cache, args[2], args[1], args[0], scale=0.125), expected)


def test_packed_projection_and_threads(normal):
    packed = normal(2, 90, 12, 64)
    q, k, v = packed.narrow(2, 0, 8), packed.narrow(2, 8, 2), packed.narrow(2, 10, 2)
    expected = [reference(wide(q)[b], wide(k)[b], wide(v)[b], 0.125, 1) for b in range(2)]
    before = ic.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            ic.set_num_threads(threads)
            results.append(ic.mha(q, k, v, scale=0.125, is_causal=True))
    finally:
        ic.set_num_threads(before)
    close(results[0], expected)
    np.testing.assert_array_equal(results[0].numpy(), results[1].numpy())


@pytest.mark.parametrize("q_len", [1, 30])
@pytest.mark.parametrize("size, size_v", [(576, 512), (1200, 40)])
def test_large_heads(q_len, size, size_v, normal):
    q, k, v = normal(1, q_len, 2, size), normal(1, 50, 1, size), normal(1, 50, 1, size_v)
    close(ic.mha(q, k, v, scale=0.05)[0], reference(wide(q)[0], wide(k)[0], wide(v)[0], 0.05))


@pytest.mark.parametrize("q_len", [2, 40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_named_memory_is_read(q_len, dtype, normal):
    """Tensors between NaN on all sides."""

    def island(x):
        sea = ic.from_numpy(np.full([n + 2 for n in x.shape], np.nan, np.float32)).to(x.dtype)
        for dim, size in enumerate(x.shape):
            sea = sea.narrow(dim, 1, size)
        sea.copy_(x)
        return sea

    q, k, v = (normal(2, n, 2, 33, dtype=dtype) for n in (q_len, 75, 75))
    plain = ic.mha(q, k, v, is_causal=True)
    assert np.isfinite(wide(plain)).all()
    np.testing.assert_array_equal(wide(ic.mha(island(q), island(k), island(v), is_causal=True)), wide(plain))


@pytest.mark.parametrize("q_len", [4, 40])
def test_special_values(q_len, normal):
    q, k, v = normal(1, q_len, 1, 16), normal(1, q_len, 1, 16), normal(1, q_len, 1, 16)
    clean = ic.mha(q, k, v, is_causal=True).numpy().copy()
    k.numpy()[0, 2, 0, 3] = np.nan  # seen by the rows from 2 on
    result = ic.mha(q, k, v, is_causal=True).numpy()
    np.testing.assert_array_equal(result[:, :2], clean[:, :2])
    assert np.isnan(result[:, 2:]).all()
    k.numpy()[0, 2, 0] = 1e4 * q.numpy()[0, 2, 0]  # scores far apart: one key takes all
    result = ic.mha(q, k, v, is_causal=True, scale=1.0).numpy()
    np.testing.assert_array_equal(result[0, 2], v.numpy()[0, 2])


def test_top_left_mask_and_lengths_of_flash_attention(normal):
    q, k, v = normal(2, 4, 20, 64), normal(2, 2, 30, 64), normal(2, 2, 30, 64)
    result = ic.flash_attention(q, k, v, ints(30, 0), is_causal=True, enable_gqa=True)
    one = [wide(x)[0].swapaxes(0, 1) for x in (q, k, v)]
    close(result[0], reference(*one, 0.125, 2).swapaxes(0, 1))
    assert not result[1].numpy().any()


def test_steps_of_attention_equal_one_pass(normal):
    q, k, v = normal(8, 21, 64), normal(2, 21, 64), normal(2, 21, 64)
    caches = ic.zeros((2, 40, 64), dtype=ic.float32), ic.zeros((2, 40, 64), dtype=ic.float32)
    whole, pos, parts = ic.attention(q, k, v, *caches, 0).numpy(), 0, []
    for size in (5, 1, 14, 1):
        step = [x.narrow(1, pos, size) for x in (q, k, v)]
        parts.append(ic.attention(*step, *caches, pos).numpy())
        pos += size
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-6)
    np.testing.assert_array_equal(caches[0].numpy()[:, :21], k.numpy())


def test_a_recorded_step_follows_new_lengths_tables_and_slots(normal):
    q, k, v = normal(3, 4, 32), normal(3, 2, 32), normal(3, 2, 32)
    k_cache, v_cache = ic.zeros((9, 2, 4, 32), dtype=ic.float32), ic.zeros((9, 2, 4, 32), dtype=ic.float32)
    starts, lens, slots = ints(0, 1, 2, 3), ints(1, 1, 1), ints(0, 12, 24)
    table, out = ints(*range(9)).view((3, 3)), ic.zeros((3, 4, 32), dtype=ic.float32)
    ic.start_graph_recording()
    ic.paged_caching(k_cache, v_cache, k, v, slots)
    ic.cached_attention(q, k_cache, v_cache, starts, lens, table, out=out)
    graph = ic.stop_graph_recording()
    seen = [wide(k)[:, None]], [wide(v)[:, None]]
    for step in range(1, 9):
        for x in (q, k, v):
            x.copy_(normal(*x.shape))
        lens.numpy()[:] = step + 1
        slots.numpy()[:] = np.array([0, 12, 24]) + step
        graph.run()
        seen[0].append(wide(k)[:, None])
        seen[1].append(wide(v)[:, None])
        keys, values = (np.concatenate(s, 1) for s in seen)
        close(out, np.concatenate([reference(wide(q)[i : i + 1], keys[i], values[i], 32**-0.5) for i in range(3)]))
    table.numpy()[2, 2] = 9
    with pytest.raises(ValueError, match=r"`block_tables`.*from 0 to 8"):
        graph.run()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_caching_in_place(dtype, normal):
    k, v = normal(5, 2, 40, dtype=dtype), normal(5, 2, 24, dtype=dtype)
    k_cache = ic.zeros((3, 4, 2, 40), dtype=ic.dtype(dtype)).permute((0, 2, 1, 3))
    v_cache = ic.zeros((3, 2, 24, 4), dtype=ic.dtype(dtype)).permute((0, 1, 3, 2))
    result = ic.paged_caching(k_cache, v_cache, k, v, ints(11, -1, 0, 6, -7))
    assert result[0] is k_cache and result[1] is v_cache
    expected = np.zeros((3, 2, 4, 40))
    for token, slot in ((0, 11), (2, 0), (3, 6)):
        expected[slot // 4, :, slot % 4] = wide(k)[token]
    np.testing.assert_array_equal(wide(k_cache), expected)
    assert wide(v_cache)[2, 1, 3].tolist() == wide(v)[0, 1].tolist()


def test_bad_input_names_the_argument(normal):
    q, k = normal(3, 4, 16), normal(4, 2, 8, 16)
    table, lens, starts = ints(0, 1, 2, 3).view((2, 2)), ints(16, 9), ints(0, 2, 3)
    run = lambda **change: ic.cached_attention(**{
        "q": q, "k_cache": k, "v_cache": k, "cu_seqlens_q": starts, "kv_lens": lens, "block_tables": table, **change
    })  # fmt: skip
    run()
    bad = [
        ({"kv_lens": ints(17, 9)}, ValueError, "`kv_lens`.*16"),
        ({"kv_lens": ints(16, -1)}, ValueError, "`kv_lens`"),
        ({"kv_lens": ints(1, 1, 1)}, ValueError, r"`cu_seqlens_q`.*\(4\)"),
        ({"kv_lens": normal(2)}, TypeError, "`kv_lens`.*float32"),
        ({"block_tables": ints(0, 4, 2, 3).view((2, 2))}, ValueError, "`block_tables`.*from 0 to 3"),
        ({"block_tables": ints(0, -1, 2, 3).view((2, 2))}, ValueError, "`block_tables`"),
        ({"cu_seqlens_q": ints(0, 2, 1)}, ValueError, "`cu_seqlens_q`"),
        ({"cu_seqlens_q": ints(1, 2, 3)}, ValueError, "`cu_seqlens_q`"),
        ({"cu_seqlens_q": ints(0, 2, 4)}, ValueError, "`cu_seqlens_q`.*3"),
        ({"q": normal(3, 3, 16)}, ValueError, "the 2 key/value heads.*3"),
        ({"q": normal(3, 4, 15)}, ValueError, "15 and 16"),
        ({"q": normal(3, 4, 16, dtype="bfloat16")}, TypeError, "`k_cache`.*float32.*bfloat16"),
        ({"window": 0}, ValueError, "`window`.*0"),
        ({"alibi_slopes": normal(3)}, ValueError, r"`alibi_slopes`.*\(4,\)"),
    ]
    for change, kind, message in bad:
        with pytest.raises(kind, match=message):
            run(**change)
    wide_q, wide_k = normal(1, 1, 1, 5000), normal(1, 2, 1, 5000)
    with pytest.raises(ValueError, match=r"head sizes up to 4[0-9]+, got 5000 of `q` and 16 of `v`"):
        ic.mha(wide_q, wide_k, wide_k[..., :16])
    new = normal(1, 2, 16)
    with pytest.raises(ValueError, match=r"`slot_mapping`.*32"):
        ic.paged_caching(k, k, new, new, ints(32))
    caches = ic.zeros((2, 10, 16), dtype=ic.float32), ic.zeros((2, 10, 16), dtype=ic.float32)
    step = [normal(h, 4, 16) for h in (4, 2, 2)]
    for pos in (-1, 7):
        with pytest.raises(ValueError, match="`pos`"):
            ic.attention(*step, *caches, pos)
    with pytest.raises(ValueError, match="`past_kv_lengths`"):
        new = normal(1, 2, 4, 16)
        ic.kv_caching(caches[0].unsqueeze(0), caches[1].unsqueeze(0), new, new, ints(7))
