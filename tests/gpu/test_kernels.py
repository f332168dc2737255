"""Kernels that GPUs have of their own against the CPU's, in sizes and layouts that take every path: `--device cuda`."""

import numpy as np
import pytest
from infinicore.kernels.cuda import fuse

import infinicore as ic
from infinicore.nn import functional as F

from .compared import TOLERANCE, equal, with_gradients


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 5), (7, 33), (300, 768), (2049, 100), (3, 20001)])
def test_norms_and_their_derivatives(gpu, rng, shape, dtype):
    size = shape[-1:]
    x, w, b = rng.standard_normal(shape) * 2 + 1, rng.standard_normal(size), rng.standard_normal(size)
    layer = with_gradients(lambda x, w, b: F.layer_norm(x, size, w, b), dtype, 3)
    equal(gpu, layer, x, w, b, tolerance=TOLERANCE[dtype])
    equal(gpu, with_gradients(lambda x, w: F.rms_norm(x, size, w), dtype), x, w, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(1, 3), (37, 1000), (40, 50304)])
def test_cross_entropy(gpu, rng, shape, smoothing, dtype):
    x, t = rng.standard_normal(shape) * 3, rng.integers(0, shape[1], shape[0])
    t[shape[0] // 2 :: 5] = -100
    t[0] = shape[1] - 1
    for reduction in ("mean", "none"):
        loss = with_gradients(
            lambda x, t, how=reduction: F.cross_entropy(x, t, label_smoothing=smoothing, reduction=how), dtype, 1
        )
        equal(gpu, loss, x, t, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("classes", [5000, 5003])
def test_the_loss_of_a_last_layer(gpu, rng, classes):
    x, w, t = rng.standard_normal((300, 64)), rng.standard_normal((classes, 64)) / 8, rng.integers(0, 5000, 300)
    t[7] = -100
    equal(gpu, with_gradients(ic.linear_cross_entropy, "float32"), x, w, t, tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "int32", "uint8", "int8", "bool"])
@pytest.mark.parametrize("shape", [(1,), (3, 17), (9, 700), (5, 4096), (2, 4097), (1, 100003), (100, 3000)])
def test_sorting(gpu, rng, shape, dtype):
    """Stable, NaN last, also of columns; the first ones alone."""
    x = np.round(rng.standard_normal(shape) * 50)
    if "float" in dtype and x.size > 9:
        x.flat[[3, 5, 7, 8]] = np.nan, -0.0, -np.inf, np.inf
    x = np.abs(x) if dtype == "uint8" else x

    def run(x, down):
        x = x > 0 if dtype == "bool" else x.to(dtype=dtype)
        return [*ic.sort(x, -1, down, stable=True), *ic.sort(x, 0, down, stable=True)]

    for down in (False, True):
        equal(gpu, run, x, down)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "uint8"])
@pytest.mark.parametrize(
    "shape, k",
    [((5, 100), 7), ((300, 900), 50), ((2, 9000), 2000), ((3, 40000), 300), ((1, 300001), 20), ((1, 4999), 1)],
)
def test_the_first_of_sorted_rows(gpu, rng, shape, k, dtype):
    """Of one part of a row and of several, among equal ones the first, of rows that lie apart; with NaN."""
    x = np.abs(np.round(rng.standard_normal(shape) * 50))
    if "float" in dtype:
        x.flat[::97] = np.nan
        x.flat[1::89] = -0.0
    for largest in (True, False):
        equal(gpu, lambda x, way=largest: ic.topk(x.to(dtype=dtype), k, -1, way), x)
        equal(gpu, lambda x, way=largest: ic.topk((x * 0).to(dtype=dtype), k, -1, way), np.nan_to_num(x))
    equal(gpu, lambda x: ic.topk(x.to(dtype=dtype)[:, 1:-1], min(k, 90)), x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows, length, count", [(5, 1, 3), (700, 33, 3000), (3, 768, 500), (50304, 8, 1000)])
def test_sums_by_index(gpu, rng, rows, length, count, dtype):
    """Many of one index and few of others; the gradient of an embedding and `index_add`."""
    table, index = rng.standard_normal((rows, length)), rng.integers(0, rows, count)
    index[: count // 2] = rows - 1
    equal(gpu, with_gradients(lambda w, i: F.embedding(i, w), dtype, 1), table, index, tolerance=TOLERANCE[dtype])
    added = rng.standard_normal((count, length))

    def add(t, i, v):
        return ic.index_add(t.to(dtype=dtype), 0, i, v.to(dtype=dtype), alpha=0.5)

    equal(gpu, add, table, index, added, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "shape, groups", [((3, 6, 5, 7), 3), ((2, 8, 16, 16), 8), ((5, 12, 40, 33), 2), ((1, 2, 9000), 1)]
)
def test_norms_of_channels(gpu, rng, shape, groups, dtype):
    """Runs that are whole vectors and others, units of a warp and of a block, channels shared out among warps."""
    x, w, b = rng.standard_normal(shape) * 2 + 1, *rng.standard_normal((2, shape[1]))

    def batch(x, w, b):
        mean, var = (
            ic.zeros(shape[1], dtype=x.dtype, device=x.device),
            ic.ones(shape[1], dtype=x.dtype, device=x.device),
        )
        return F.batch_norm(x, mean, var, w, b, True), mean, var

    equal(gpu, with_gradients(lambda *given: batch(*given)[0], dtype, 3), x, w, b, tolerance=TOLERANCE[dtype])
    equal(gpu, lambda *given: batch(*(t.to(dtype=dtype) for t in given))[1:], x, w, b, tolerance=TOLERANCE[dtype])
    group = with_gradients(lambda x, w, b: F.group_norm(x, groups, w, b), dtype, 3)
    equal(gpu, group, x, w, b, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [1, 1000, 100003])
def test_dropout_has_the_numbers_of_the_cpu(gpu, rng, size, dtype):
    def run(x):
        ic.manual_seed(5)
        return F.dropout(x.to(dtype=dtype), 0.3, True)

    equal(gpu, run, rng.standard_normal(size), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("size", [1, 64, 1000, 100003])
def test_random_numbers_are_the_cpus_to_the_last_bit(gpu, size):
    def run(device):
        ic.manual_seed(5)
        made = ic.randn(size, device=device), ic.rand(size, device=device), ic.empty(size + 3, device=device)[3:]
        return [x.cpu().numpy() for x in (*made[:2], made[2].normal_(-3.5, 1.7), made[2].uniform_(-1e-3, 7.7))]

    for found, expected in zip(run(gpu), run("cpu")):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows, columns", [(1, 7), (33, 100), (3000, 1030)])
def test_activations_on_the_way_back(gpu, rng, rows, columns, dtype):
    g, before = rng.standard_normal((rows, 2 * columns)), rng.standard_normal((rows, columns))

    def run(g, before):
        g, before = g.to(dtype=dtype), before.to(dtype=dtype)
        return ic.activation_backward(g[:, :columns], before, "gelu_tanh", bias=True)

    equal(gpu, run, g, before, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("heads, kv_heads, size, block", [
    (8, 2, 64, 32), (6, 6, 64, 16), (6, 3, 128, 16), (16, 1, 32, 64), (9, 3, 256, 16), (4, 4, 8, 128), (4, 2, 40, 16),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_rows_and_many_keys(gpu, rng, heads, kv_heads, size, block, dtype):
    """One token of a sequence over a paged cache, and a few of packed sequences with a window."""
    lens = np.array([900, 1, 0, 33, 500])
    width = -(-1000 // block)
    tables = rng.permutation(len(lens) * width).reshape(len(lens), width)
    k, v = (rng.standard_normal((len(lens) * width, kv_heads, block, size)) for _ in range(2))
    q, starts = rng.standard_normal((6, heads, size)), np.array([0, 2, 2, 2, 5, 6])

    def run(q, k, v, tables, lens, starts):
        q, k, v = (x.to(dtype=dtype) for x in (q, k, v))
        one = ic.paged_attention(q[: len(lens)], k, v, tables, lens, scale=size**-0.5)
        return one, ic.cached_attention(q, k, v, starts, lens, tables, window=70)

    equal(gpu, run, q, k, v, tables, lens, starts, tolerance=1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("algo, kind", [(0, "interleaved"), (1, "halves")])
@pytest.mark.parametrize("heads, kv_heads, size, room, one", [
    (8, 2, 64, 8, True), (32, 8, 128, 8, True), (6, 3, 256, 4, True), (8, 2, 128, 64, False), (8, 2, 32, 8, False),
])  # fmt: skip
def test_a_token_is_turned_written_and_attended_to_at_once(
    gpu, rng, monkeypatch, algo, kind, heads, kv_heads, size, room, one
):  # fmt: skip
    """In a graph one launch, which leaves the same bits everywhere as three; keys in `room` blocks of 32."""
    lens, names, joined = room * 32 - 7, [], fuse.joined
    given = rng.standard_normal((heads + 2 * kv_heads, size)), *rng.standard_normal((2, room + 1, kv_heads, 32, size))
    qkv, k_cache, v_cache = (ic.as_tensor(x.astype("f4")).to(gpu, ic.bfloat16) for x in given)
    angle = np.outer(np.arange(lens), 0.01 ** (np.arange(size // 2) * 2 / size)).astype("f4")
    sin, cos = (ic.as_tensor(f(angle), device=gpu) for f in (np.sin, np.cos))
    table = rng.permutation(room + 1)[:room].reshape(1, room)
    slot = table[0, (lens - 1) // 32] * 32 + (lens - 1) % 32
    position, slot, table, lens = (ic.as_tensor(x, device=gpu) for x in (
        np.array([lens - 1]), np.array([slot]), table, np.array([lens]),
    ))  # fmt: skip

    def launches(rows, kernels, errors):
        found, kept = joined(rows, kernels, errors)
        names.append([kernels.name_of(row[0]).partition("-")[0] for row in found])
        return found, kept

    def run():
        x, keys, values = qkv.clone()[None], k_cache.clone(), v_cache.clone()

        def step():
            x.copy_(qkv)
            q, k, v = x[:, :heads], x[:, heads:-kv_heads], x[:, -kv_heads:]
            ic.rope_qk(q, k, position, sin, cos, algo)
            ic.paged_caching(keys, values, k, v, slot)
            return ic.paged_attention(q, keys, values, table, lens, scale=size**-0.5)

        step()
        ic.start_graph_recording(gpu)
        out = step()
        ic.stop_graph_recording().run()
        return [t.to("float32").cpu().numpy() for t in (out, x, keys, values)]

    monkeypatch.setattr(fuse, "joined", launches)
    together = run()
    monkeypatch.setattr(fuse, "_JOINS", ())
    apart = run()
    assert (f"attention.grouped.turned_{kind}_{size}" in names[0]) == one
    assert len(names[0]) == len(names[1]) - (2 if one else 1)
    for a, b in zip(together, apart):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(together[0]).all() and not np.array_equal(together[2], k_cache.to("float32").cpu().numpy())


def test_a_table_that_names_no_block(gpu, rng):
    q, k = rng.standard_normal((1, 4, 64)), rng.standard_normal((2, 4, 32, 64))
    q, k, tables, lens = (
        ic.as_tensor(x, device=gpu) for x in (q.astype("f4"), k.astype("f4"), np.full((1, 2), 7), np.array([40]))
    )
    with pytest.raises(ValueError, match="must name blocks from 0 to 1"):
        ic.paged_attention(q, k, k, tables, lens).cpu()


@pytest.mark.parametrize("size, rows", [(100, 3), (512, 7), (32000, 5), (128256, 2)])
def test_tokens_are_those_that_the_cpu_draws(gpu, rng, size, rows):
    for trial in range(4):
        logits = (rng.standard_normal((rows, size)) * (1 + trial)).astype("f4")
        if trial == 2:
            logits = np.round(logits)  # many equal ones
        history = rng.integers(-1, size, (rows, 50))
        history[:, 10] = history[:, 20]
        options = {"random_val": rng.random(rows), "temperature": rng.random(rows) * 1.5}
        options["temperature"][0] = 0.0
        options |= {"top_p": rng.random(rows)} if trial % 2 else {}
        options |= {"top_k": rng.integers(0, 60, rows)} if trial >= 2 else {}
        options |= {"min_p": rng.random(rows) * 0.2} if trial == 3 else {}
        options |= {"repetition_penalty": 1 + rng.random(rows), "history": history}
        options["history_bias"] = rng.standard_normal((rows, 50)).astype("f4")
        equal(gpu, lambda x, *given, names=tuple(options): ic.sample_tokens(x, **dict(zip(names, given))), logits,
              *options.values())  # fmt: skip


def test_a_row_without_a_token(gpu):
    logits = ic.as_tensor(np.full((2, 300), -np.inf, "f4"), device=gpu)
    with pytest.raises(ValueError):
        ic.sample_tokens(logits, None, ic.ones(2, dtype=ic.float64, device=gpu)).cpu()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norms_of_many_tensors(gpu, rng, dtype):
    """More than a launch has room for, of sizes around a unit; also their scaling and clamping."""
    arrays = [rng.standard_normal(size) for size in [1, 3, 16383, 16384, 16385, 40000] + 300 * [17]]

    def run(*tensors):
        tensors = [x.to(dtype=dtype).clone() for x in tensors]
        norms = [ic.multi_norm(tensors, ord) for ord in (2.0, 1.0, 0.0, np.inf, -np.inf, 3.0)]
        found = ic.multi_scale(tensors, 0.5)
        ic.multi_clamp(tensors, 0.3)
        return *norms, found, *tensors

    equal(gpu, run, *arrays, tolerance=1e-3 if dtype == "bfloat16" else 1e-6)


def test_a_gradient_that_is_not_finite(gpu, rng):
    arrays = [rng.standard_normal(20000) for _ in range(3)]
    arrays[1][777] = np.nan

    def run(*tensors):
        return ic.multi_scale([x.clone() for x in tensors], 2.0), ic.multi_norm(list(tensors), np.inf)

    equal(gpu, run, *arrays)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int64"])
def test_joining(gpu, rng, dtype):
    """Pieces of any lengths, also none; more of them than a launch has room for."""
    for rows, lengths in ((1, [100000, 3, 70000]), (7, [1000, 0, 1001, 4099]), (3, [2048] * 300), (50, [513, 511])):
        arrays = [rng.integers(0, 100, (rows, length)).astype("f8") for length in lengths]
        equal(gpu, lambda *x: [ic.cat([y.to(dtype=dtype) for y in x], 1), ic.cat([y.to(dtype=dtype) for y in x[:1]])],
              *arrays)  # fmt: skip
