"""Attention on the matrix units of GPUs: plans and tiles on the host, compiled code, results where there is a GPU."""

import numpy as np
import pytest
from infinicore.kernels.blocks.cuda import DECODE, FLASH, FLASH_GRAD
from infinicore.kernels.build import load
from infinicore.kernels.cuda import driver, policy
from infinicore.kernels.cuda.attention import tiles as tiles_of_warps
from infinicore.kernels.cuda.attention import wgmma
from infinicore.kernels.cuda.plans import attention as plans
from infinicore.kernels.cuda.plans import plan
from infinicore.kernels.problems.attention import Attention, AttentionBackward, AttentionForward

import infinicore as ic

from . import compared
from .without import Gpu, assembled, ptxas

HAS_GPU = driver.device_count() > 0


def dense(**changes):
    """Two sequences of 200 queries and 300 keys, 8 heads of 64 that share 2 of keys."""
    q, k = (200 * 512, 512, 64), (300 * 128, 128, 64)
    problem = Attention(
        "bfloat16", "bfloat16", q, q, k, k, 2, 200, 8, 2, 300, 2, 64, 64, 300, 0.125, 1, 0, None, None, None, False,
        None, None, None, None,
    )  # fmt: skip
    return problem._replace(**changes)


TOGETHER = (300 * 128, 64, 300 * 64)  # strides of keys where the tokens of a head follow one another


def planned(problem):
    with load.on(Gpu()):
        return plan(problem)


def paged(block_size, columns=8):
    return {"table": (4, columns, 1, columns), "block_size": block_size, "blocks": 40, "lens": (4, 1)}


@pytest.mark.parametrize(
    "changes, name",
    [
        ({}, "wgmma.attend_64"),
        ({"size_qk": 80}, "wgmma.attend_128"),
        ({"dtype": "float16", "cache": "float16", "size_qk": 128, "size_v": 128}, "wgmma.attend_128"),
        ({"starts": (4, 1), "lens": (4, 1), "window": 100}, "wgmma.attend_64"),
        (paged(16), "wgmma.attend_64"),
        (paged(256), "wgmma.attend_64"),
        (paged(24), "tiles.attend_16_64"),  # steps of 128 keys are not whole blocks
        (paged(301, 1), "wgmma.attend_64"),  # which does not matter where all keys are in one
        ({"dtype": "float32", "cache": "float32"}, "tiles.attend_32_64_few"),
        ({"dtype": "float32", "cache": "float32", "size_v": 128}, "tiles.attend_32_128_few"),
        ({"dtype": "float32", "cache": "float32", "q_len": 2200}, "tiles.attend_32_64"),
        ({"dtype": "float32", "cache": "float32", "size_qk": 200}, "tiles.attend_32_256"),
        ({"cache": "int8", "scales": ((600, 2, 1),) * 2}, "tiles.attend_16_64"),
        ({"slopes": 1}, "tiles.attend_16_64"),
        ({"scale": -0.5}, "tiles.attend_16_64"),
        ({"size_qk": 256}, "tiles.attend_16_256"),
        ({"size_v": 63}, "tiles.attend_16_64"),
        ({"size_qk": 257}, "rows.attend"),
        ({"slopes": 1, "q_len": 2}, "rows.attend"),
        ({"dtype": "float64", "cache": "float64"}, "rows.attend"),
        ({"q_len": 1}, "grouped.attend_64"),
        ({"q_len": 1, "block_size": 8192}, "grouped.attend_64"),
        ({"q_len": 1, "num_seqs": 64, "k": TOGETHER, "v": TOGETHER}, "grouped.attend_bulk_64"),
        ({"q_len": 1, "num_seqs": 63, "k": TOGETHER, "v": TOGETHER}, "grouped.attend_64"),
        ({"q_len": 1, "num_seqs": 64, "k": TOGETHER, "v": (*TOGETHER[:2], TOGETHER[2] + 4)}, "grouped.attend_64"),
        ({"q_len": 1, "kv_heads": 8}, "decode.attend"),
        ({"q_len": 1, "size_qk": 32, "size_v": 32}, "decode.attend"),
        ({"q_len": 1, "dtype": "float32", "cache": "float32"}, "decode.attend"),
    ],
)
def test_kernels_by_problem(changes, name):
    one, *rest = planned(dense(**changes)).launches
    assert one.kernel == f"attention.{name}"
    joined = "decode" in name or changes.get("block_size", 0) > 500  # a part of few keys is not worth a launch
    assert [other.kernel for other in rest] == ["attention.decode.join"] * joined
    assert policy.shape(one.kernel).shared <= 227 << 10
    if "wgmma" in name:
        size = int(name.rpartition("_")[2])
        assert max(one.values[FLASH.size_qk], 64) <= size
        tiles = 200 // 128 + 3 if "starts" in changes else 2
        assert one.n == tiles * (8 if "starts" in changes else 16) and one.values[FLASH.tiles] == tiles
        assert one.values[FLASH.box] == min(128, changes.get("block_size", 128))
        assert {place for place, *_ in one.places} >= {FLASH.map_q, FLASH.map_k, FLASH.map_v}


def test_rows_that_the_copy_engine_cannot_read_are_gathered():
    (one,) = planned(dense(k=(300 * 132, 132, 66))).launches
    assert one.values[FLASH.gathered] == 1 and not any(one.values[FLASH.map_q : FLASH.map_q + 16])
    (one,) = planned(dense()).launches
    assert one.values[FLASH.gathered] == 0 and any(one.values[FLASH.map_q : FLASH.map_q + 16])


def test_both_passes_of_training():
    q, k = (200 * 512, 64, 512), (300 * 128, 64, 128)
    forward = AttentionForward("bfloat16", q, k, k, q, None, 2, 8, 2, 200, 300, 64, 64, 0.125, True, 0.0, True)
    (one,) = planned(forward).launches
    assert one.kernel == "attention.wgmma.attend_64" and (FLASH.lse, "lse", 0) in one.places
    names = [one.kernel for one in planned(AttentionBackward(forward, q, q, k, k)).launches]
    assert names == [f"attention.wgmma_grad.{name}" for name in ("delta", "queries_64", "keys_64")]
    for change, own, name in (
        ({"mask": ((0, 0, 300), 1)}, "wgmma.attend_64", "wgmma_grad.*_64"),
        ({"dropout": 0.5}, "wgmma.attend_64", "wgmma_grad.*_64"),
        ({"mask": ((0, 0, 300), 4)}, "tiles.attend_16_64", "tiles_grad.*_16_64"),
        ({"size_qk": 200}, "tiles.attend_16_256", "tiles_grad.*_16_256"),
        ({"dtype": "float32", "size_v": 128}, "tiles.attend_32_128_few", "tiles_grad.*_32_128"),
    ):
        other = forward._replace(**change)
        assert planned(other).launches[0].kernel == f"attention.{own}"
        delta, *names = [one.kernel for one in planned(AttentionBackward(other, q, q, k, k)).launches]
        assert delta == "attention.wgmma_grad.delta"
        assert names == ["attention." + name.replace("*", x) for x in ("queries", "keys")]
        assert all(policy.shape(kernel).shared <= 227 << 10 for kernel in names)
    other = forward._replace(dtype="float64")
    assert planned(other).launches[0].kernel == "attention.grad.forward"
    names = [one.kernel for one in planned(AttentionBackward(other, q, q, k, k)).launches]
    assert names == ["attention.grad.queries", "attention.grad.keys"]


def test_maps_lie_at_multiples_of_64_bytes_of_the_parameters():
    places = [getattr(FLASH, f"map_{x}") for x in "qkv"] + [getattr(FLASH_GRAD, f"map_{x}") for x in "qkvg"]
    assert all((4 + place) % 8 == 0 for place in places)  # four words of the launch come first


@pytest.mark.parametrize("pairs, tiles, heads, blocks", [(0, 5, 7, 12), (1, 8, 6, 12), (1, 5, 7, 12), (1, 1, 3, 12)])
def test_every_tile_is_taken_once(monkeypatch, pairs, tiles, heads, blocks):
    monkeypatch.setattr(wgmma, "ratio", lambda x, y: x // y)
    monkeypatch.setattr(wgmma, "blocks", lambda: blocks)
    taken, work = [], []
    for block in range(blocks):
        monkeypatch.setattr(wgmma, "block", lambda block=block: block)
        turn, own = 0, []
        while (turn >> pairs << pairs) * blocks < tiles * heads:
            index = wgmma.turn_of.py_func(turn, pairs)
            turn += 1
            if index < tiles * heads:
                own.append(wgmma.tile_in.py_func(index, tiles, pairs))
        taken += own
        work.append(sum(1 + tile for _, tile in own))
    assert sorted(taken) == [(head, tile) for head in range(heads) for tile in range(tiles)]
    if pairs and tiles % 2 == 0:  # a pair of a causal prompt is as long as every other
        assert max(work) - min(work) in (0, 1 + tiles)


@pytest.mark.parametrize("down", ["rows", "columns"])
def test_threads_share_the_numbers_of_dropout(monkeypatch, down):
    """Value number i of a thread has the bit of its own query row and key, whichever of them lies down."""

    def keeps(row, key):
        return (row * 2654435761 + key * 40503) >> 7 & 1

    def four_kept(row, group, seed, limit):
        return sum(keeps(row, 4 * group + i) << i for i in range(4))

    function, owned, place, key, tiles = getattr(tiles_of_warps, f"kept_in_{down}").py_func, {}, 1000, 64, 8
    monkeypatch.setattr(tiles_of_warps, "four_kept", four_kept)
    monkeypatch.setattr(tiles_of_warps, "I64", int)
    found = {}
    for turn in range(2):  # what threads hand on in the second turn, they made in the first one
        for lane in range(32):
            row, column = lane >> 2, 2 * (lane & 3)
            monkeypatch.setattr(tiles_of_warps, "thread", lambda lane=lane: lane)

            def from_lane(own, apart, lane=lane):
                owned[lane] = own
                return owned.get(lane ^ apart, 0)

            monkeypatch.setattr(tiles_of_warps, "from_lane", from_lane)
            first = place + (row if down == "rows" else column)
            found[lane] = function(first, key, 0, 0, tiles)
            for i in range(32):
                below, across = row + 8 * (i >> 1 & 1), 8 * (i >> 2) + column + (i & 1)
                want = keeps(place + below, key + across) if down == "rows" else keeps(place + across, key + below)
                assert turn == 0 or found[lane] >> i & 1 == want


NAMES = (
    "wgmma.attend_64",
    "wgmma.attend_128",
    *(f"wgmma_grad.{x}_{n}" for x in ("queries", "keys") for n in (64, 128)),
)


@pytest.mark.slow
def test_products_run_beside_other_work():
    """What ptxas says of the kernels: no product waits for the one before, and little is spilled (outside of loops)."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    from infinicore.kernels.cuda.load import CompiledOnly
    from infinicore.kernels.lang.lowp import bfloat16

    if ptxas() is None:
        pytest.skip("ptxas is not installed")
    kernels = CompiledOnly("sm_90a")
    for name in NAMES:
        options = {"T": bfloat16.name.removeprefix("ic_"), "MASK": 0, "DROPOUT": 0}
        kernels.kernel(f"attention.{name}", options)
    for name, ptx in kernels.found.items():
        assert ".target sm_90a" in ptx and "wgmma.mma_async" in ptx and "setmaxnreg" in ptx
        found = assembled(ptx.encode())
        assert "serialized" not in found.said and found.spilled <= 64, f"{name}: {found.said}"


# ---- results, where there is a GPU ----


def reference(q, k, v, scale, causal):
    """float64 attention of q [B, S, H, D], k and v [B, L, Hkv, D]; row i sees the keys up to i."""
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = np.einsum("bshd,blhd->bhsl", q, k) * scale
    if causal:
        scores = np.where(np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhsl,blhd->bshd", weights / weights.sum(-1, keepdims=True), v)


def error(found, want):
    return np.linalg.norm(found.cpu().to(ic.float32).numpy().astype(np.float64) - want) / np.linalg.norm(want)


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("shift", [0, 1, 2])  # views that the copy engine cannot read
@pytest.mark.parametrize("size, causal", [(64, True), (128, True), (128, False), (80, True), (36, False)])
def test_prompts_and_their_gradients(size, causal, shift):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, n, h, size + shift)).astype("f4") for n, h in ((333, 4), (401, 2), (401, 2))]
    tensors = [ic.from_numpy(x).to(ic.bfloat16).to("cuda").requires_grad_() for x in arrays]
    q, k, v = (x[..., shift:] for x in tensors)
    y = ic.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True)
    rounded = [x.detach().cpu().to(ic.float32).numpy().astype(np.float64)[..., shift:] for x in tensors]
    assert error(y.detach().transpose(1, 2), reference(*rounded, size**-0.5, causal)) < 4e-3
    y.backward(ic.ones_like(y))
    cpu = [ic.from_numpy(x.astype("f4")).requires_grad_() for x in rounded]
    turned = [x.transpose(1, 2) for x in cpu]
    ic.scaled_dot_product_attention(*turned, is_causal=causal, enable_gqa=True).sum().backward()
    for own, other in zip(tensors, cpu):
        assert error(own.grad[..., shift:], other.grad.numpy().astype(np.float64)) < 8e-3


def test_a_token_of_sequences_in_blocks_of_their_own():
    (one,) = planned(dense(**paged(301, 1), q_len=1)).launches
    assert one.kernel == "attention.grouped.attend_64" and one.values[DECODE.slots] == 1


def test_parts_of_keys_fill_the_multiprocessors():
    one, _ = planned(dense(**paged(32, 1000), q_len=1)).launches
    assert one.values[DECODE.parts] == one.values[DECODE.slots] == 64 and one.n == 2 * 2 * 64
    (one,) = planned(dense(**paged(32, 1000), q_len=1, num_seqs=192)).launches  # three blocks for each of 132, nearly
    assert one.n == 2 * 192


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("block_size, columns", [(16, 26), (128, 26), (24, 26), (301, 1)])
@pytest.mark.parametrize("queries", [None, 1])
def test_caches_may_hold_anything_behind_the_last_key(block_size, columns, queries):
    rng, lens, size = np.random.default_rng(1), [300, 77], 128
    caches = [np.full((80, 2, block_size, size), np.nan, "f4") for _ in range(2)]
    table = rng.permutation(80)[: 2 * columns].reshape(2, columns).astype("i4")
    rows = [rng.standard_normal((n, 2, size)).astype("f4") for n in lens for _ in range(2)]
    for i, n in enumerate(lens):
        for cache, own in zip(caches, rows[2 * i : 2 * i + 2]):
            for token in range(n):
                cache[table[i, token // block_size], :, token % block_size] = own[token]
    counts = lens if queries is None else [queries] * 2
    q = rng.standard_normal((sum(counts), 4, size)).astype("f4")
    g = [ic.from_numpy(x).to(ic.bfloat16) for x in (q, *caches)]
    rest = [ic.from_numpy(np.array(x, "i4")) for x in (np.cumsum([0, *counts]), lens, table)]
    y = ic.cached_attention(*(x.to("cuda") for x in (*g, *rest)))
    assert error(y, ic.cached_attention(*g, *rest).to(ic.float32).numpy().astype(np.float64)) < 6e-3


def on_both(function, arrays, dtype, grads=True):
    """Results and gradients of a function of tensors [B, n, H, D]: there, and here of the same values in float32."""
    found = []
    rounded = [ic.from_numpy(x).to(dtype) for x in arrays]
    for device, kind in (("cuda", dtype), ("cpu", ic.float32)):
        tensors = [x.to(kind).to(device).detach().requires_grad_(grads) for x in rounded]
        y = function(*(x.transpose(1, 2) for x in tensors))
        if grads:
            g = np.random.default_rng(9).standard_normal(y.shape).astype("f4")
            y.backward(ic.from_numpy(g).to(dtype).to(kind).to(device))
        found.append([y.detach(), *(x.grad for x in tensors if grads)])
    return zip(found[0], (x.to(ic.float32).numpy().astype(np.float64) for x in found[1]))


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 1.2e-2), ("float16", 1.6e-3), ("float32", 1e-5)])
@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (256, 200), (33, 47)])
@pytest.mark.parametrize("kind", ["padding", "rows", "added", "causal", "dropout"])
def test_masks_dropout_and_their_gradients(dtype, tolerance, sizes, kind):
    rng, (size, size_v), (rows, keys) = np.random.default_rng(2), sizes, (150, 203)
    lines = (rows, 4, size), (keys, 2, size), (keys, 2, size_v)
    arrays = [rng.standard_normal((2, *line)).astype("f4") for line in lines]
    hidden = rng.random((2, 4, rows, keys)) < 0.2
    hidden[0, 1, 7] = True  # a row that sees no key
    masks = {
        "padding": np.arange(keys) < np.array([keys, 61]).reshape(2, 1, 1, 1),
        "rows": ~hidden,
        "added": np.where(hidden[:, :1], -np.inf, rng.standard_normal((1, 1, rows, keys))).astype("f4"),
    }
    options = {"enable_gqa": True, "is_causal": kind in ("causal", "padding"), "seed": 1 << 40}
    options["dropout_p"] = 0.25 if kind in ("dropout", "padding") else 0.0

    def attention(q, k, v):
        mask = ic.from_numpy(masks[kind]).to(q.device) if kind in masks else None
        return ic.scaled_dot_product_attention(q, k, v, mask, **options)

    for own, other in on_both(attention, arrays, getattr(ic, dtype)):
        assert error(own, other) < tolerance


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_views_that_begin_anywhere():
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((2, n, h, 71)).astype("f4") for n, h in ((70, 2), (90, 1), (90, 1))]
    mask = ic.from_numpy(rng.random((70, 90)) < 0.9)

    def attention(q, k, v):
        parts = (x[..., i : i + 67] for i, x in enumerate((q, k, v)))
        return ic.scaled_dot_product_attention(*parts, mask.to(q.device), enable_gqa=True)

    for own, other in on_both(attention, arrays, ic.bfloat16):
        assert error(own, other) < 1.2e-2


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 6e-3), ("float16", 8e-4), ("float32", 4e-6)])
@pytest.mark.parametrize(
    "size, block_size, lengths", [(64, 16, (130, 77, 1)), (128, 24, (3, 1, 9)), (256, 16, (9, 70, 2))]
)
@pytest.mark.parametrize("stored", ["int8", "alibi", "both"])
def test_int8_caches_and_slopes(dtype, tolerance, size, block_size, lengths, stored):
    rng, keys = np.random.default_rng(4), np.array([300, 77, 5], "i4")
    blocks = -(-300 // block_size)
    table = rng.permutation(3 * blocks).reshape(3, blocks).astype("i4")
    shape = (3 * blocks, 2, block_size, size)
    q = ic.from_numpy(rng.standard_normal((sum(lengths), 8, size)).astype("f4")).to(getattr(ic, dtype))
    starts, options = np.cumsum([0, *lengths]).astype("i4"), {}
    if stored == "alibi":
        caches = [ic.from_numpy(rng.standard_normal(shape).astype("f4")).to(getattr(ic, dtype)) for _ in range(2)]
    else:
        caches = [ic.from_numpy(rng.integers(-128, 128, shape, "i1")) for _ in range(2)]
        for name in ("k_scales", "v_scales"):
            options[name] = ic.from_numpy((rng.random(shape[:3]) * 0.02).astype("f4"))
    if stored != "int8":
        options["alibi_slopes"] = ic.from_numpy((rng.random(8) * 0.1).astype("f4"))
    rest = [ic.from_numpy(x) for x in (starts, keys, table)]
    found = ic.cached_attention(
        q.to("cuda"), *(x.to("cuda") for x in (*caches, *rest)), **{k: v.to("cuda") for k, v in options.items()}
    )
    wide = [q.to(ic.float32), *(x if x.dtype == ic.int8 else x.to(ic.float32) for x in caches)]
    want = ic.cached_attention(*wide, *rest, **options).numpy().astype(np.float64)
    assert error(found, want) < tolerance


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("how", ["heads first", "tokens first", "anywhere", "apart"])
@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize(
    "heads, kv_heads, block_size, window",
    [(16, 2, 16, None), (24, 1, 32, 70), (40, 1, 64, None), (6, 3, 128, None), (6, 3, 701, 300)],
)
@pytest.mark.parametrize("bulk", [False, True])
def test_decoding_with_shared_keys(size, heads, kv_heads, block_size, window, how, bulk, monkeypatch):
    """`bulk`: by the copy engine, where it can read the cache, however few blocks there are."""
    monkeypatch.setattr(plans, "BULK_BLOCKS", 1 if bulk else 1 << 30)
    lens = (700, 0, 129, 1, 33)[: 5 - bulk]  # plans are kept: another number of sequences has another one
    rng = np.random.default_rng(5)
    found, want = compared.decoded("cuda", rng, lens, heads, kv_heads, size, block_size, window, how, "bfloat16")
    assert np.linalg.norm(found - want) < 6e-3 * np.linalg.norm(want)
