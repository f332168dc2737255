"""Attention on the matrix units of GPUs: plans and tiles on the host, compiled code, results where there is a GPU."""

import re
import subprocess

import numpy as np
import pytest
from infinicore.kernels.blocks.cuda import FLASH, FLASH_GRAD
from infinicore.kernels.build import load
from infinicore.kernels.cuda import driver, policy
from infinicore.kernels.cuda.attention import wgmma
from infinicore.kernels.cuda.plans import plan
from infinicore.kernels.problems.attention import Attention, AttentionBackward, AttentionForward

import infinicore as ic

from .without import Gpu, ptxas

HAS_GPU = driver.device_count() > 0


def dense(**changes):
    """Two sequences of 200 queries and 300 keys, 8 heads of 64 that share 2 of keys."""
    q, k = (200 * 512, 512, 64), (300 * 128, 128, 64)
    problem = Attention(
        "bfloat16", "bfloat16", q, q, k, k, 2, 200, 8, 2, 300, 2, 64, 64, 300, 0.125, 1, 0, None, None, None, False,
        None, None, None, None,
    )  # fmt: skip
    return problem._replace(**changes)


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
        (paged(24), "rows.attend"),  # steps of 128 keys are not whole blocks
        (paged(301, 1), "wgmma.attend_64"),  # which does not matter where all keys are in one
        ({"dtype": "float32", "cache": "float32"}, "rows.attend"),
        ({"cache": "int8", "scales": ((600, 2, 1),) * 2}, "rows.attend"),
        ({"slopes": 1}, "rows.attend"),
        ({"scale": -0.5}, "rows.attend"),
        ({"size_qk": 256}, "rows.attend"),
        ({"size_v": 63}, "rows.attend"),
    ],
)
def test_kernels_by_problem(changes, name):
    (one,) = planned(dense(**changes)).launches
    assert one.kernel == f"attention.{name}"
    if "wgmma" in name:
        size = int(name.rpartition("_")[2])
        assert policy.shape(one.kernel).shared <= 227 << 10 and max(one.values[FLASH.size_qk], 64) <= size
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
    for other in (forward._replace(mask=((0, 0, 300), 1)), forward._replace(dropout=0.5)):
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


NAMES = (
    "wgmma.attend_64",
    "wgmma.attend_128",
    *(f"wgmma_grad.{x}_{n}" for x in ("queries", "keys") for n in (64, 128)),
)


@pytest.mark.slow
def test_products_run_beside_other_work(tmp_path):
    """What ptxas says of the kernels: no product waits for the one before, and little is spilled (outside of loops)."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    from infinicore.kernels.cuda.load import CompiledOnly
    from infinicore.kernels.lang.lowp import bfloat16

    if ptxas() is None:
        pytest.skip("ptxas is not installed")
    kernels = CompiledOnly("sm_90a")
    for name in NAMES:
        kernels.kernel(f"attention.{name}", {"T": bfloat16.name.removeprefix("ic_")})
    for name, ptx in kernels.found.items():
        assert ".target sm_90a" in ptx and "wgmma.mma_async" in ptx and "setmaxnreg" in ptx
        path = tmp_path / "kernel.ptx"
        path.write_text(ptx)
        done = subprocess.run(
            [ptxas(), "-v", "-arch=sm_90a", "-o", str(tmp_path / "out"), str(path)], capture_output=True, text=True
        )
        assert done.returncode == 0 and "serialized" not in done.stderr, f"{name}: {done.stderr}"
        assert int(re.search(r"(\d+) bytes spill stores", done.stderr)[1]) <= 64, f"{name}: {done.stderr}"


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
    (_, one) = planned(dense(**paged(301, 1), q_len=1)).launches
    assert one.kernel == "attention.decode.join"


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
